"""Several datasets as one, by weight: which one comes next is a pure function of the seed and the place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from beam_jobs import errors
from beam_jobs.dataset import record
from beam_jobs.errors import OptionError
from trainer.input.parse import WEIGHT_SPEC
from trainer.input.plan import Choices, make_choices
from trainer.input.position import Host
from trainer.input_fn import FOREVER, Batch, batches, check_room, check_shape, images, tf_options
from trainer.ops import IMAGE, Normalize, parse_ops
from trainer.ops.tf_ops import as_written
from trainer.options import InputOptions

_BLOCK = 4096  # draws made by one op
_PURPOSE = 1 << 62  # keeps the draws of the mixture apart from those of the orders


@as_written
def make_mixture(
    parts: Mapping[str, float],
    split: str,
    options: InputOptions,
    start: int = 0,
    host: Host = Host(),  # noqa: B008 - frozen
) -> tf.data.Dataset:
    """Builds an endless training input from several datasets.

    Each dataset goes through its own epochs in its own order. The next one is drawn for `lanes` images at a time, with
    probabilities that are proportional to the weights.

    Examples:
      >>> from trainer import InputOptions, make_mixture
      >>> options = InputOptions(image_side_px=32, batch_size=8)
      >>> train = make_mixture({"dataset": 0.9, "drawings": 0.1}, "train", options)
      >>> features, label = next(iter(train))
      >>> features["image"].shape
      TensorShape([8, 32, 32, 3])

    Args:
      parts: directory of a dataset -> weight, above 0.
      split: name of the split, the same in each.
      options: how shards become batches; `shuffle_mb` is shared by all.
      start: images that all hosts together have delivered, such as steps x batch size.
      host: which part to read.

    Returns:
      dataset of (features, label) as of `make_dataset`; labels are places in `mixture_labels`.

    Raises:
      UsageError: there is no such dataset or split, a weight is not above 0, or images have not one label each.
    """
    chosen = _choices(parts, split, options, host)
    check_room(options, chosen[0].batch)
    weights = np.array(list(parts.values()), np.float64)
    groups, rest = divmod(start, options.lanes)
    delivered = np.bincount(_first_draws(weights, options.seed, groups), minlength=len(parts)) * options.lanes
    labels = mixture_labels(list(parts))
    streams = [
        images(choice, int(before)).map(_relabelled(choice, labels))
        for choice, before in zip(chosen, delivered, strict=True)
    ]
    each = options.lanes // host.count
    turns = _draws(weights, options.seed, groups).flat_map(lambda part: tf.data.Dataset.from_tensors(part).repeat(each))
    mine = -(-(rest - host.index) // host.count)  # of a group that was begun; the hosts take turns
    stream = tf.data.Dataset.choose_from_datasets(streams, turns).skip(mine)
    mixed = dataclasses.replace(chosen[0].dataset, labels=labels)
    stream = batches(stream, dataclasses.replace(chosen[0], dataset=mixed))
    check_shape(stream.element_spec[0][IMAGE].shape[1:], options, training=True)
    stream = stream.prefetch(options.prefetch_batches)
    return stream.with_options(tf_options(options))


def mixture_labels(paths: list[str]) -> tuple[str, ...]:
    """Returns the class names of all datasets, each once, in the order in which they come up.

    Examples:
      >>> from trainer import mixture_labels
      >>> mixture_labels(["dataset", "drawings"])
      ('cat', 'dog', 'owl')

    Args:
      paths: directories of the datasets, in the order of the mixture.

    Returns:
      class names; the place of a name is the label that `make_mixture` delivers.

    Raises:
      UsageError: there is no such dataset.
      CorruptDataset: one is damaged.
    """
    from beam_jobs.dataset import manifest

    return tuple(dict.fromkeys(name for path in paths for name in manifest.load(path).labels))


def _choices(parts: Mapping[str, float], split: str, options: InputOptions, host: Host) -> list[Choices]:
    if not parts:
        raise OptionError("the mixture is empty; name at least one dataset and its weight")
    for path, weight in parts.items():
        errors.check_above(f"weight of {path}", weight, 0)
    if any(isinstance(op, Normalize) and not op.mean_rgb for op in parse_ops(options.train_spec)):
        raise OptionError(
            "normalize of a mixture needs numbers, normalize((r, g, b), (r, g, b)): every part has its own"
        )
    share = dataclasses.replace(options, shuffle_mb=options.shuffle_mb / len(parts))
    chosen = [make_choices(path, split, share, training=True, epochs=FOREVER, host=host) for path in parts]
    for path, choice in zip(parts, chosen, strict=True):
        if choice.dataset.label_kind != "single":
            raise OptionError(f"{path} cannot be mixed: its images do not have one label each")
        if choice.crops != 1:
            raise OptionError("a mixture takes no op that makes several images of one")
    return _alike(chosen)


def _alike(chosen: list[Choices]) -> list[Choices]:
    """Lets the same ops run on batches everywhere: where images have one size, more of them could."""
    if any(record.WEIGHT in choice.spec for choice in chosen):  # the streams must hold the same features
        chosen = [dataclasses.replace(choice, spec={**choice.spec, **WEIGHT_SPEC}) for choice in chosen]
    shared = min(len(choice.batch_ops) for choice in chosen)
    cuts = [len(choice.batch_ops) - shared for choice in chosen]
    return [
        dataclasses.replace(
            choice, image_ops=(*choice.image_ops, *choice.batch_ops[:cut]), batch_ops=choice.batch_ops[cut:]
        )
        for choice, cut in zip(chosen, cuts, strict=True)
    ]


def _draws(weights: np.ndarray, seed: int, first: int) -> tf.data.Dataset:
    """Returns the endless sequence of parts, int64, from the group `first` on."""
    blocks = tf.data.Dataset.counter(start=first // _BLOCK, dtype=tf.int64)
    drawn = blocks.flat_map(lambda block: tf.data.Dataset.from_tensor_slices(_block(weights, seed, block)))
    return drawn.skip(first % _BLOCK)


def _first_draws(weights: np.ndarray, seed: int, count: int) -> np.ndarray:
    blocks = [_block(weights, seed, tf.constant(number, tf.int64)).numpy() for number in range(-(-count // _BLOCK))]
    return np.concatenate([np.zeros(0, np.int64), *blocks])[:count]


def _block(weights: np.ndarray, seed: int, number: tf.Tensor) -> tf.Tensor:
    uniform = tf.random.stateless_uniform(
        [_BLOCK], tf.stack([tf.constant(seed + _PURPOSE, tf.int64), number]), alg="philox"
    )
    bounds = tf.constant(np.cumsum(weights / weights.sum())[:-1], tf.float32)
    return tf.searchsorted(bounds, uniform, side="right", out_type=tf.int64)


def _relabelled(choice: Choices, labels: tuple[str, ...]) -> Callable[..., Batch]:
    places = tf.constant([labels.index(name) for name in choice.dataset.labels], tf.int64)

    def relabel(features: dict[str, tf.Tensor], label: tf.Tensor) -> Batch:
        return features, tf.gather(places, label)

    return relabel
