"""Shards -> batches. `make_dataset` is the whole input pipeline: one line a stage, one reason a line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import tensorflow as tf

from beam_jobs.dataset import record
from trainer.input import cache, windowed_reader
from trainer.input.batches import VALID, batch_count, counted, filled, images_left, passes_in_turn
from trainer.input.checks import check_options, check_room, check_shape, check_start
from trainer.input.parse import (
    DRAW,
    KEY,
    LABEL,
    WEIGHT,
    Features,
    batch_ragged,
    decode_mask,
    deliver_columns,
    draw_of,
    parse,
)
from trainer.input.plan import Choices, evaluation_ops, make_choices, records_before, records_until
from trainer.input.position import Host, Position
from trainer.input.windowed_reader import ENDLESS, FOREVER, Place
from trainer.ops import (
    BOX_LABELS,
    BOXES,
    IMAGE,
    MASK,
    MixingOp,
    apply_batch_ops,
    apply_ops,
    draw_numbers,
    mix_batch_labels,
    mix_weighted,
    rng,
    tf_ops,
)
from trainer.ops.tf_ops import as_written
from trainer.options import InputOptions

_OF_CROPS = (IMAGE, MASK, BOXES, BOX_LABELS, DRAW)
# Each window goes to one worker, so that together they deliver each record once.
_DEALT = tf.data.experimental.service.ShardingPolicy.DYNAMIC
Batch: TypeAlias = tuple[Features, tf.Tensor]
__all__ = [
    "DRAW",
    "FOREVER",
    "KEY",
    "VALID",
    "check_options",
    "check_shape",
    "epoch_records",
    "evaluation_ops",
    "make_dataset",
]


@as_written
def make_dataset(
    path: str,
    split: str,
    options: InputOptions,
    training: bool,
    epochs: int = 1,
    start: Position = Position(),  # noqa: B008 - frozen
    host: Host = Host(),  # noqa: B008 - frozen
) -> tf.data.Dataset:
    """Builds the input pipeline of one split.

    The order and every random draw are a pure function of (seed, epoch): the same call gives the same batches, and one
    that starts later gives exactly the remaining ones.

    A dataset of training goes on each time it is read. With one epoch, the first pass is the epoch of `start`, the
    second the next one, and so on, so `model.fit(batches, epochs=20)` sees 20 epochs. A pass that is left before its
    last batch, as by `take(1)`, comes again. Passes of a start inside of an epoch are all as long as the first.

    Examples:
      >>> from trainer import FOREVER, InputOptions, make_dataset
      >>> options = InputOptions(image_side_px=96, batch_size=8)
      >>> train = make_dataset("dataset", "train", options, training=True, epochs=FOREVER)
      >>> features, label = next(iter(train))
      >>> features["image"].shape, features["image"].dtype, label.shape
      (TensorShape([8, 96, 96, 3]), tf.uint8, TensorShape([8]))
      >>> batches = train.map(lambda features, label: (features["image"], label))  # what `model.fit` takes

    Args:
      path: directory of a published dataset.
      split: name of the split.
      options: how shards become batches.
      training: shuffle, augment and drop the ragged last batch; otherwise read in order and keep every record.
      epochs: passes over the split, or `FOREVER`. Batches run across the seam, so no record is dropped between epochs.
      start: where to start: what all hosts together have delivered. Its epoch is the first of `epochs`. Evaluation on
        several hosts starts with a whole epoch, because each of them reads a part of its own.
      host: which part to read. Together the hosts read every record once, and every global batch holds the same
        records whatever their number.

    Returns:
      dataset of (features, label), see `parsing`: `features["image"]` is uint8[batch, side, side, 3], sRGB, 0-255,
      `features["key"]` string[batch] and `features["draw"]` int32[batch, 2]; label is int64[batch], or
      float32[batch, classes] of images with any number of labels. A dataset with a weight column also delivers
      `features["weight"]`, float32[batch], at least 0. A batch is `batch_size / host.count` images. `len`
      says how many batches there are, but for `FOREVER` and where a tf.data service deals them out.

    Raises:
      UsageError: there is no such dataset or split, or the options do not fit it.
      CorruptDataset: the dataset is damaged.
    """
    choices = make_choices(path, split, options, training, epochs, host)
    check_room(options, choices.batch)  # of a split of few images too: tf.data takes the memory at the first
    check_start(start, choices)
    kept = _kept(choices)
    count, images = batch_count(choices, start, epochs), images_left(choices, start, epochs)
    begin = start.epoch * choices.local_images + start.records
    if epochs == FOREVER:
        stream = _batches(choices, kept, begin, ENDLESS)
    elif training:
        # Of whole batches alone: what is read ahead of them would be lost at the end of a pass.
        delivered = images if count is None else count * options.batch_size
        stream = passes_in_turn(
            lambda number: _batches(choices, kept, begin + number * images, begin + number * images + delivered, count),
            count,
        )
    else:
        stream = _batches(choices, kept, begin, (start.epoch + epochs) * choices.local_images, count)
    return counted(stream, count).with_options(tf_options(options))


def _batches(choices: Choices, kept: Features, begin: Place, end: Place, count: int | None = None) -> tf.data.Dataset:
    """Returns the batches of this host, from some place in the images of all hosts to another.

    Args:
      choices: what was decided.
      kept: of `_kept`.
      begin: of the first image.
      end: after the last image, or `ENDLESS`.
      count: batches that there are, if that is known.
    """
    options = choices.options
    first, skipped = records_before(choices, begin)
    last = end if end is ENDLESS else records_until(choices, end)
    stream = parsed(choices, first, last, kept)  # in batches: one by one costs twice as much
    if choices.vectorised:  # stored pixels are what the ops of batches take: not one op an image
        stream = _map(stream, partial(_prepare, choices=choices), choices)
        stream = _rebatched(stream, choices)
    else:
        stream = stream.unbatch()  # images differ in size, so from here on they go one by one
        stream = _map(stream, partial(_prepare, choices=choices), choices)  # all cores decode here
        stream = _spread(stream, choices, skipped)
        stream = batch_ragged(stream, choices.batch, choices.training)  # uint8: a quarter of what floats would move
    if choices.batch_ops or options.columns_form != "ragged":
        stream = _map(stream, partial(_finish, choices=choices), choices)
    stream = filled(stream, choices, count)
    if choices.crops > 1 and count is not None:
        stream = stream.take(count)  # of the last group, the images up to the end
    check_shape(stream.element_spec[0][IMAGE].shape[1:], options, choices.training)
    if choices.served:
        stream = stream.apply(tf.data.experimental.service.distribute(_DEALT, options.service))
    return stream.prefetch(options.prefetch_batches)  # bounded: each is a whole batch, and AUTOTUNE knows no budget


@as_written
def images(choices: Choices, begin: int) -> tf.data.Dataset:
    """Returns the images of one host before they are batched, endlessly, one by one: dataset of (features, label).

    Args:
      choices: what was decided.
      begin: place of the first in the images of all hosts.
    """
    first, skipped = records_before(choices, begin)
    prepared = parsed(choices, first).unbatch()
    prepared = _map(prepared, partial(_prepare, choices=choices), choices)
    return _spread(prepared, choices, skipped)


@as_written
def batches(stream: tf.data.Dataset, choices: Choices) -> tf.data.Dataset:
    """Returns batches of such images, finished by the ops that run on batches."""
    stream = batch_ragged(stream, choices.batch, choices.training)
    return _map(stream, partial(_finish, choices=choices), choices)


def epoch_records(path: str, split: str, options: InputOptions, training: bool) -> int:
    """Returns the images in one pass over a split, over all hosts.

    Examples:
      >>> from beam_jobs import load
      >>> from trainer import InputOptions, epoch_records
      >>> epoch_records("dataset", "train", InputOptions(), training=True) == load("dataset").split("train").records
      True

    Args:
      path: directory of a published dataset.
      split: name of the split.
      options: how shards become batches; `balance` and ops that make several images of one count.
      training: whether it is a pass of training.

    Returns:
      number of images, at least 1.

    Raises:
      UsageError: there is no such dataset or split.
    """
    # Without the cache: a disk cache would be written for the sake of a number.
    return make_choices(
        path, split, dataclasses.replace(options, cache="none", cache_dir="", cache_mb=0), training
    ).epoch_images


def parsed(choices: Choices, begin: Place = 0, end: Place = ENDLESS, kept: Features | None = None) -> tf.data.Dataset:
    """Returns the parsed records of one host, in the order of training or of the shards, in batches of any size.

    Args:
      choices: what was decided.
      begin: place of the first in the records of all hosts.
      end: place after the last.
      kept: of `_kept`, for a call from inside of a graph; None to fill the cache here.
    """
    kept = _kept(choices) if kept is None else kept
    host = choices.host if choices.training else Host()  # of evaluation, a host knows its own part alone
    make_plan = windowed_reader.serve_windows if choices.served else windowed_reader.plan_windows
    planned = make_plan(choices.order, begin, end, host)
    if kept:
        records = _from_memory(planned, kept, choices)
    else:
        records = _from_shards(windowed_reader.read_windows(planned, choices.index, choices.options), choices)
    return _map(records, partial(_drawn, choices=choices), choices)


def _from_shards(read: tf.data.Dataset, choices: Choices) -> tf.data.Dataset:
    size = choices.options.parse_batch
    parse_batch = partial(parse, spec=choices.spec, dataset=choices.dataset, seed=choices.options.seed)

    def pieces(serialized: tf.Tensor, places: tf.Tensor, draws: tf.Tensor) -> tf.data.Dataset:
        slices = tf.data.Dataset.from_tensor_slices((places, draws)).batch(size)
        return slices.map(lambda place, draw: (tf.gather(serialized, place), draw))

    return _map(read.flat_map(pieces), parse_batch, choices)


def _map(stream: tf.data.Dataset, function: Callable[..., Any], choices: Choices) -> tf.data.Dataset:
    return stream.map(function, choices.options.parallel_calls, deterministic=choices.options.ordered)


def _drawn(features: Features, choices: Choices) -> Features:
    """Draws the random numbers of a batch of records: one by one they would cost a tenth of a decode."""
    return draw_numbers(choices.image_ops, features, features[DRAW], choices.first_salt)


def _kept(choices: Choices) -> Features:
    """Returns what the cache in memory holds; nothing without one."""
    if choices.cache.kind != "memory":
        return {}
    in_order = dataclasses.replace(choices.order, kind="none", quota={})
    everything = windowed_reader.plan_windows(in_order, 0, len(choices.index), Host())
    stored = _from_shards(windowed_reader.read_windows(everything, choices.index, choices.options), choices)
    prefix = choices.whole_ops[: choices.cache.ops]
    return cache.in_memory(stored, prefix, choices.index, choices.options.thread_count)


def _from_memory(planned: tf.data.Dataset, kept: Features, choices: Choices) -> tf.data.Dataset:
    def pick(window: windowed_reader.Window) -> Features:
        features = {name: tf.gather(values, window.numbers) for name, values in kept.items()}
        return {**features, DRAW: draw_of(features[KEY], window.draws, choices.options.seed)}

    slices = planned.flat_map(lambda window: tf.data.Dataset.from_tensor_slices(window).batch(choices.batch))
    return _map(slices, pick, choices)


def _prepare(row: Features, choices: Choices) -> Batch:
    """Runs the ops on one image, or those that need none on a batch."""
    features = apply_ops(choices.image_ops, decode_mask(row), row[DRAW], choices.first_salt)
    if choices.crops > 1:
        features[DRAW] = rng.split(row[DRAW], choices.crops)
    for name in (record.HEIGHT, record.WIDTH):  # of the stored image, which is not used from here on
        features.pop(name)
    label = features.pop(LABEL)
    return features, label


def _rebatched(stream: tf.data.Dataset, choices: Choices) -> tf.data.Dataset:
    if any(isinstance(spec, tf.RaggedTensorSpec) for spec in tf.nest.flatten(stream.element_spec)):
        return batch_ragged(stream.unbatch(), choices.batch, choices.training)  # `rebatch` takes none
    return stream.rebatch(choices.batch, drop_remainder=choices.training)


def _finish(features: Features, label: tf.Tensor, choices: Choices) -> Batch:
    """Runs the ops of batches, and gives the columns the form that is asked for."""
    features = deliver_columns(features, choices.options)
    if choices.batch_ops:
        draw, salt, lanes = features[DRAW], choices.batch_salt, choices.mixing_lanes
        features[IMAGE] = apply_batch_ops(choices.batch_ops, features[IMAGE], draw, salt, lanes)
        if any(isinstance(op, MixingOp) for op in choices.batch_ops):
            label = _as_shares(label, choices)
            mix = partial(mix_batch_labels, choices.batch_ops, draw=draw, first=salt, lanes=lanes)
            if WEIGHT in features:
                label, features[WEIGHT] = mix_weighted(tf_ops, mix, label, features[WEIGHT])
            else:
                label = mix(label)
    return features, label


def _as_shares(label: tf.Tensor, choices: Choices) -> tf.Tensor:
    return tf.one_hot(label, len(choices.dataset.labels)) if label.dtype == tf.int64 else label


def _spread(stream: tf.data.Dataset, choices: Choices, skipped: Place) -> tf.data.Dataset:
    """Takes the crops of a group of records apart: the first of each, then the second of each, and so on."""
    if choices.crops == 1:
        return stream

    def crop(number: tf.Tensor, features: Features, label: tf.Tensor) -> Batch:
        of_crops = {
            name: _crop(values, number, choices.crops) for name, values in features.items() if name in _OF_CROPS
        }
        return {**features, **of_crops}, label

    def group(features: Features, label: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.range(choices.crops).map(lambda number: crop(number, features, label)).unbatch()

    return batch_ragged(stream, choices.group, False).flat_map(group).skip(skipped)


def _crop(values: tf.Tensor | tf.RaggedTensor, number: tf.Tensor, crops: int) -> tf.Tensor | tf.RaggedTensor:
    """Returns what one crop of each image has of values [images, crops, ...]."""
    if isinstance(values, tf.RaggedTensor):  # whose second side cannot be indexed
        return tf.gather(values.merge_dims(0, 1), tf.range(values.nrows()) * crops + number)
    return values[:, number]


def tf_options(given: InputOptions) -> tf.data.Options:
    """Returns the options of a pipeline whose every buffer and thread count was chosen, unless `autotune` is on."""
    options = tf.data.Options()
    options.deterministic = given.ordered
    options.threading.private_threadpool_size = given.thread_count
    options.threading.max_intra_op_parallelism = 1  # the map already uses every core
    options.autotune.enabled = given.autotune
    if given.autotune:
        options.autotune.ram_budget = int(given.shuffle_mb * 1e6)  # by default it may take half of all memory
    options.experimental_optimization.inject_prefetch = False
    # A strategy must not cut what `Host` has cut already.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
