"""A mixture of several datasets by weight; the dataset of an image is a pure function of seed and position."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from beam_jobs import errors
from beam_jobs.dataset import manifest, record
from beam_jobs.errors import OptionError
from trainer.input.parse import WEIGHT_SPEC
from trainer.input.plan import InputPlan, make_plan
from trainer.input.position import Host
from trainer.input_fn import FOREVER, Batch, batches, check_memory, check_shape, images, tf_options
from trainer.ops import IMAGE, Normalize, parse_ops
from trainer.ops.tf_ops import without_autograph
from trainer.options import InputOptions

_BLOCK_GROUPS = 4096  # number of groups for which one op chooses the datasets
_SEED_OFFSET = 1 << 62  # keeps the random numbers of the mixture apart from those of the orders


@without_autograph
def make_mixture(
    parts: Mapping[str, float],
    split: str,
    options: InputOptions,
    start: int = 0,
    host: Host = Host(),  # noqa: B008 - frozen
) -> tf.data.Dataset:
    """Builds an endless training input from several datasets.

    Each dataset has its own epochs and its own order. A dataset is chosen for each group of `lanes` images, with a
    probability that is proportional to its weight.

    Examples:
      >>> from trainer import InputOptions, make_mixture
      >>> options = InputOptions(image_side_px=32, batch_size=8)
      >>> train = make_mixture({"dataset": 0.9, "drawings": 0.1}, "train", options)
      >>> features, label = next(iter(train))
      >>> features["image"].shape
      TensorShape([8, 32, 32, 3])

    Args:
      parts: directory of a dataset -> its weight, above 0.
      split: name of the split, the same in each.
      options: options of the pipeline; the datasets share `shuffle_mb`.
      start: number of images that all hosts together have delivered, such as steps x batch size.
      host: host whose part is read.

    Returns:
      dataset of (features, label) as of `make_dataset`; labels are indices into `mixture_labels`.

    Raises:
      UsageError: there is no such dataset or split, a weight is not above 0, or images do not have exactly one label.
    """
    plans = _make_plans(parts, split, options, host)
    check_memory(options, plans[0].batch)
    weights = np.array(list(parts.values()), np.float64)
    groups, group_images = divmod(start, options.lanes)
    starts = np.bincount(_choose_first_parts(weights, options.seed, groups), minlength=len(parts)) * options.lanes
    labels = mixture_labels(list(parts))
    streams = [
        images(plan, int(start)).map(_label_converter(plan, labels)) for plan, start in zip(plans, starts, strict=True)
    ]
    repeats = options.lanes // host.count
    choices = _choose_parts(weights, options.seed, groups)
    choices = choices.flat_map(lambda part: tf.data.Dataset.from_tensors(part).repeat(repeats))
    skipped = -(-(group_images - host.index) // host.count)  # images of a group go to the hosts in turn
    stream = tf.data.Dataset.choose_from_datasets(streams, choices).skip(skipped)
    mixed_dataset = dataclasses.replace(plans[0].dataset, labels=labels)
    stream = batches(stream, dataclasses.replace(plans[0], dataset=mixed_dataset))
    check_shape(stream.element_spec[0][IMAGE].shape[1:], options, training=True)
    stream = stream.prefetch(options.prefetch_batches)
    return stream.with_options(tf_options(options, sum(plan.waiting_threads for plan in plans)))


def mixture_labels(paths: list[str]) -> tuple[str, ...]:
    """Returns the class names of all datasets, each once, in the order of their first appearance.

    Examples:
      >>> from trainer import mixture_labels
      >>> mixture_labels(["dataset", "drawings"])
      ('cat', 'dog', 'owl')

    Args:
      paths: directories of the datasets, in the order of the mixture.

    Returns:
      class names; the index of a name is its label in `make_mixture`.

    Raises:
      UsageError: there is no such dataset.
      CorruptDataset: a dataset is damaged.
    """
    return tuple(dict.fromkeys(name for path in paths for name in manifest.load(path).labels))


def _make_plans(parts: Mapping[str, float], split: str, options: InputOptions, host: Host) -> list[InputPlan]:
    if not parts:
        raise OptionError("the mixture is empty; name at least one dataset and its weight")
    for path, weight in parts.items():
        errors.check_above(f"weight of {path}", weight, 0)
    if any(isinstance(op, Normalize) and not op.mean_rgb for op in parse_ops(options.train_spec)):
        raise OptionError(
            "normalize of a mixture needs numbers, normalize((r, g, b), (r, g, b)): each dataset has its own statistics"
        )
    part_options = dataclasses.replace(options, shuffle_mb=options.shuffle_mb / len(parts))
    plans = [make_plan(path, split, part_options, training=True, epochs=FOREVER, host=host) for path in parts]
    for path, plan in zip(parts, plans, strict=True):
        if plan.dataset.label_kind != "single":
            raise OptionError(f"{path} cannot be part of a mixture: its images do not have exactly one label")
        if plan.crops != 1:
            raise OptionError("multi_crop is not supported in mixtures; remove it")
    return _align_plans(plans)


def _align_plans(plans: list[InputPlan]) -> list[InputPlan]:
    """Returns plans with the same features and ops on batches; datasets of one image size may have more such ops."""
    if any(record.WEIGHT in plan.spec for plan in plans):
        plans = [dataclasses.replace(plan, spec={**plan.spec, **WEIGHT_SPEC}) for plan in plans]
    shared_count = min(len(plan.batch_ops) for plan in plans)
    cuts = [len(plan.batch_ops) - shared_count for plan in plans]  # numbers of batch ops that become image ops
    return [
        dataclasses.replace(plan, image_ops=(*plan.image_ops, *plan.batch_ops[:cut]), batch_ops=plan.batch_ops[cut:])
        for plan, cut in zip(plans, cuts, strict=True)
    ]


def _choose_parts(weights: np.ndarray, seed: int, first: int) -> tf.data.Dataset:
    """Returns the endless sequence of indices of parts, int64, from the group `first` on."""
    blocks = tf.data.Dataset.counter(start=first // _BLOCK_GROUPS, dtype=tf.int64)
    parts = blocks.flat_map(lambda block: tf.data.Dataset.from_tensor_slices(_choose_block(weights, seed, block)))
    return parts.skip(first % _BLOCK_GROUPS)


def _choose_first_parts(weights: np.ndarray, seed: int, count: int) -> np.ndarray:
    """Returns the index of the part of each of the first `count` groups, int64."""
    numbers = range(-(-count // _BLOCK_GROUPS))
    blocks = [_choose_block(weights, seed, tf.constant(number, tf.int64)).numpy() for number in numbers]
    return np.concatenate([np.zeros(0, np.int64), *blocks])[:count]


def _choose_block(weights: np.ndarray, seed: int, number: tf.Tensor) -> tf.Tensor:
    """Returns the index of the part of each group of a block of groups, by the number of the block, int64."""
    block_seed = tf.stack([tf.constant(seed + _SEED_OFFSET, tf.int64), number])
    uniform = tf.random.stateless_uniform([_BLOCK_GROUPS], block_seed, alg="philox")
    bounds = tf.constant(np.cumsum(weights / weights.sum())[:-1], tf.float32)
    return tf.searchsorted(bounds, uniform, side="right", out_type=tf.int64)


def _label_converter(plan: InputPlan, labels: tuple[str, ...]) -> Callable[..., Batch]:
    indices = tf.constant([labels.index(name) for name in plan.dataset.labels], tf.int64)
    return lambda features, label: (features, tf.gather(indices, label))
