"""The input pipeline from shards to batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import tensorflow as tf

from beam_jobs.dataset import record
from trainer.input import cache, windowed_reader
from trainer.input.batches import VALID, batch_count, count_images, iterate_passes, pad_if_needed, set_cardinality
from trainer.input.checks import check_memory, check_options, check_shape, check_start
from trainer.input.parse import (
    IMAGE_SEED,
    KEY,
    LABEL,
    WEIGHT,
    Features,
    batch_ragged,
    decode_mask,
    deliver_columns,
    derive_image_seeds,
    parse,
)
from trainer.input.plan import InputPlan, evaluation_ops, find_first_record, find_last_record, make_plan
from trainer.input.position import Host, Position
from trainer.input.windowed_reader import ENDLESS, FOREVER, Index
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
from trainer.ops.tf_ops import without_autograph
from trainer.options import InputOptions

_CROP_FEATURES = (IMAGE, MASK, BOXES, BOX_LABELS, IMAGE_SEED)  # features with one value per crop
# Each window goes to one worker, so that the workers together deliver each record once.
_SHARDING = tf.data.experimental.service.ShardingPolicy.DYNAMIC
Batch: TypeAlias = tuple[Features, tf.Tensor]
__all__ = [
    "FOREVER",
    "IMAGE_SEED",
    "KEY",
    "VALID",
    "check_options",
    "check_shape",
    "epoch_records",
    "evaluation_ops",
    "make_dataset",
]


@without_autograph
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

    The order and every random number are a pure function of (seed, epoch): the same call gives the same batches, and
    with a later `start` exactly the remaining batches.

    Each iteration over a training dataset reads the next pass. With `epochs=1`, the first pass is the epoch of `start`,
    the second the next epoch, and so on: `model.fit(batches, epochs=20)` reads 20 epochs. A pass that is not read to
    its last batch, as with `take(1)`, is repeated. After a start inside an epoch, all passes are as short as the first.

    Examples:
      >>> from trainer import FOREVER, InputOptions, make_dataset
      >>> options = InputOptions(image_side_px=96, batch_size=8)
      >>> train = make_dataset("dataset", "train", options, training=True, epochs=FOREVER)
      >>> features, label = next(iter(train))
      >>> features["image"].shape, features["image"].dtype, label.shape
      (TensorShape([8, 96, 96, 3]), tf.uint8, TensorShape([8]))
      >>> batches = train.map(lambda features, label: (features["image"], label))  # for `model.fit`

    Args:
      path: directory of a published dataset.
      split: name of the split.
      options: options of the pipeline.
      training: shuffle, augment and drop an incomplete last batch; otherwise read all records in order.
      epochs: passes over the split, or `FOREVER`. A batch may hold the end of one epoch and the start of the next.
      start: position of the first image, over all hosts; its epoch is the first of `epochs`. Evaluation on several
        hosts must start at the beginning of an epoch, because each host reads its own part.
      host: host whose part is read. The hosts together read every record once; the records of a global batch do not
        depend on the number of hosts.

    Returns:
      dataset of (features, label): `features["image"]` is uint8[batch, side, side, 3], sRGB, 0-255, `features["key"]`
      string[batch] and `features["draw"]` int32[batch, 2]; label is int64[batch], or float32[batch, classes] of images
      with any number of labels. A dataset with a weight column also delivers `features["weight"]`, float32[batch], at
      least 0. A batch is `batch_size / host.count` images. `len` raises TypeError with `FOREVER` or a tf.data service.

    Raises:
      UsageError: there is no such dataset or split, or the options do not fit it.
      CorruptDataset: the dataset is damaged.
    """
    plan = make_plan(path, split, options, training, epochs, host)
    check_memory(options, plan.batch)  # for small splits too, because tf.data allocates complete batches
    check_start(start, plan)
    cached = _load_cache(plan)
    count, image_count = batch_count(plan, start, epochs), count_images(plan, start, epochs)
    begin = start.epoch * plan.local_images + start.records
    if epochs == FOREVER:
        stream = _batches(plan, cached, begin, ENDLESS)
    elif training:
        # Complete batches only: images that are read ahead would be lost at the end of a pass.
        batched_images = image_count if count is None else count * options.batch_size

        def make_pass(pass_number: tf.Tensor) -> tf.data.Dataset:
            pass_begin = begin + pass_number * image_count
            return _batches(plan, cached, pass_begin, pass_begin + batched_images, count)

        stream = iterate_passes(make_pass, count)
    else:
        stream = _batches(plan, cached, begin, (start.epoch + epochs) * plan.local_images, count)
    return set_cardinality(stream, count).with_options(tf_options(options, plan.waiting_threads))


def _batches(plan: InputPlan, cached: Features, begin: Index, end: Index, count: int | None = None) -> tf.data.Dataset:
    """Returns the batches of this host between two positions in the sequence of the images of all hosts.

    Args:
      plan: plan of the pipeline.
      cached: result of `_load_cache`.
      begin: position of the first image.
      end: position after the last image, or `ENDLESS`.
      count: number of batches, if it is known.
    """
    options = plan.options
    if plan.vectorised:  # then each record is one image
        stream = make_records_dataset(plan, begin, end, cached)  # in batches: single records take twice the time
        stream = _map_in_parallel(stream, partial(_prepare, plan=plan), plan)
        stream = _rebatch(stream, plan)
    else:
        stream = images(plan, begin, end, cached)
        stream = batch_ragged(stream, plan.batch, plan.training)  # of uint8, a quarter of the bytes of floats
    if plan.batch_ops or options.columns_form != "ragged":
        stream = _map_in_parallel(stream, partial(_finish, plan=plan), plan)
    stream = pad_if_needed(stream, plan, count)
    if plan.crops > 1 and count is not None:
        stream = stream.take(count)  # the last group of records may be delivered in part
    check_shape(stream.element_spec[0][IMAGE].shape[1:], options, plan.training)
    if plan.uses_data_service:
        stream = stream.apply(tf.data.experimental.service.distribute(_SHARDING, options.service))
    return stream.prefetch(options.prefetch_batches)  # not AUTOTUNE, which has no memory limit


@without_autograph
def images(plan: InputPlan, begin: Index, end: Index = ENDLESS, cached: Features | None = None) -> tf.data.Dataset:
    """Returns the images of one host one by one, before batching: a dataset of (features, label).

    Args:
      plan: plan of the pipeline.
      begin: position of the first image, in the sequence of the images of all hosts.
      end: position after the last image in that sequence, or `ENDLESS`.
      cached: as in `make_records_dataset`.
    """
    first_record, skipped_images = find_first_record(plan, begin)
    end_record = end if end is ENDLESS else find_last_record(plan, end)
    stream = make_records_dataset(plan, first_record, end_record, cached).unbatch()  # images differ in size
    stream = _map_in_parallel(stream, partial(_prepare, plan=plan), plan)  # decodes on all cores
    return _interleave_crops(stream, plan, skipped_images)


@without_autograph
def batches(stream: tf.data.Dataset, plan: InputPlan) -> tf.data.Dataset:
    """Returns batches of the dataset of `images`, after the ops that run on batches."""
    stream = batch_ragged(stream, plan.batch, plan.training)
    return _map_in_parallel(stream, partial(_finish, plan=plan), plan)


def epoch_records(path: str, split: str, options: InputOptions, training: bool) -> int:
    """Returns the number of images in one pass over a split, over all hosts: `epoch_records` of `Position.after`.

    Examples:
      >>> from beam_jobs import load
      >>> from trainer import InputOptions, epoch_records
      >>> epoch_records("dataset", "train", InputOptions(), training=True) == load("dataset").split("train").records
      True

    Args:
      path: directory of a published dataset.
      split: name of the split.
      options: options of the pipeline; `multi_crop` and `max_corrupt_records` change the number.
      training: whether the pass is for training.

    Returns:
      number of images, at least 1.

    Raises:
      UsageError: there is no such dataset or split.
    """
    # The number does not depend on the cache, so no disk cache is written.
    options = dataclasses.replace(options, cache="none", cache_dir="", cache_mb=0)
    return make_plan(path, split, options, training).epoch_images


def make_records_dataset(
    plan: InputPlan, begin: Index = 0, end: Index = ENDLESS, cached: Features | None = None
) -> tf.data.Dataset:
    """Builds the dataset of the parsed records of one host, in batches of any size.

    Args:
      plan: plan of the pipeline; its order is that of training, or that of the shards in evaluation.
      begin: position of the first record, in the sequence of the records of all hosts.
      end: position after the last record in that sequence, or `ENDLESS`.
      cached: cached features from `_load_cache`, required inside a graph; None loads the cache.
    """
    cached = _load_cache(plan) if cached is None else cached
    host = plan.host if plan.training else Host()  # in evaluation, `plan.index` has only the records of this host
    plan_windows = windowed_reader.plan_windows
    if plan.uses_data_service:
        plan_windows = windowed_reader.plan_data_service_windows
    windows = plan_windows(plan.order, begin, end, host)
    records = _gather_cached(windows, cached, plan) if cached else _parse_windows(windows, plan, host.count)
    return _map_in_parallel(records, partial(_add_random_numbers, plan=plan), plan)


def _parse_windows(windows: tf.data.Dataset, plan: InputPlan, hosts: int = 1) -> tf.data.Dataset:
    """Returns batches of the parsed records of windows, in the order of the positions in each window."""
    window_records = windowed_reader.read_windows(windows, plan.index, plan.options, hosts, plan.uses_remote_reader)
    batch_records = plan.options.parse_batch
    parse_batch = partial(parse, spec=plan.spec, dataset=plan.dataset, seed=plan.options.seed)

    def split_window(serialized: tf.Tensor, indices: tf.Tensor, seed_epochs: tf.Tensor) -> tf.data.Dataset:
        slices = tf.data.Dataset.from_tensor_slices((indices, seed_epochs)).batch(batch_records)
        return slices.map(lambda index, epoch: (tf.gather(serialized, index), epoch))

    return _map_in_parallel(window_records.flat_map(split_window), parse_batch, plan)


def _map_in_parallel(stream: tf.data.Dataset, function: Callable[..., Any], plan: InputPlan) -> tf.data.Dataset:
    calls = tf.data.AUTOTUNE if plan.options.autotune else plan.threads
    return stream.map(function, calls, deterministic=plan.options.ordered)


def _add_random_numbers(features: Features, plan: InputPlan) -> Features:
    """Adds the random numbers of a batch; record by record, they would take a tenth of the time of decoding."""
    return draw_numbers(plan.image_ops, features, features[IMAGE_SEED], plan.first_salt)


def _load_cache(plan: InputPlan) -> Features:
    """Returns the features of the cache in memory; an empty dict if there is no such cache."""
    if plan.cache.kind != "memory":
        return {}
    shard_order = dataclasses.replace(plan.order, kind="none", quota={})
    windows = windowed_reader.plan_windows(shard_order, 0, len(plan.index), Host())
    records = _parse_windows(windows, plan)
    cached_ops = plan.all_ops[: plan.cache.ops]
    return cache.load_in_memory(records, cached_ops, plan.index, plan.options.thread_count)


def _gather_cached(windows: tf.data.Dataset, cached: Features, plan: InputPlan) -> tf.data.Dataset:
    """Returns batches of the records of windows from the cache in memory, with the image seeds of their epochs."""

    def gather_features(window: windowed_reader.Window) -> Features:
        features = {name: tf.gather(values, window.numbers) for name, values in cached.items()}
        return {**features, IMAGE_SEED: derive_image_seeds(features[KEY], window.seed_epochs, plan.options.seed)}

    slices = windows.flat_map(lambda window: tf.data.Dataset.from_tensor_slices(window).batch(plan.batch))
    return _map_in_parallel(slices, gather_features, plan)


def _prepare(row: Features, plan: InputPlan) -> Batch:
    """Runs the ops on one image, or on a batch of a vectorised pipeline."""
    features = apply_ops(plan.image_ops, decode_mask(row), row[IMAGE_SEED], plan.first_salt)
    if plan.crops > 1:
        features[IMAGE_SEED] = rng.split(row[IMAGE_SEED], plan.crops)
    for name in (record.HEIGHT, record.WIDTH):  # size of the stored image, which only the ops need
        features.pop(name)
    label = features.pop(LABEL)
    return features, label


def _rebatch(stream: tf.data.Dataset, plan: InputPlan) -> tf.data.Dataset:
    if any(isinstance(spec, tf.RaggedTensorSpec) for spec in tf.nest.flatten(stream.element_spec)):
        return batch_ragged(stream.unbatch(), plan.batch, plan.training)  # `rebatch` takes no ragged tensors
    return stream.rebatch(plan.batch, drop_remainder=plan.training)


def _finish(features: Features, label: tf.Tensor, plan: InputPlan) -> Batch:
    """Runs the ops on batches, and converts user columns to the form of `columns_form`."""
    features = deliver_columns(features, plan.options)
    if plan.batch_ops:
        image_seed, salt, stride = features[IMAGE_SEED], plan.batch_salt, plan.mixing_stride
        features[IMAGE] = apply_batch_ops(plan.batch_ops, features[IMAGE], image_seed, salt, stride)
        if any(isinstance(op, MixingOp) for op in plan.batch_ops):
            if label.dtype == tf.int64:
                label = tf.one_hot(label, len(plan.dataset.labels))
            mix = partial(mix_batch_labels, plan.batch_ops, image_seed=image_seed, first=salt, stride=stride)
            if WEIGHT in features:
                label, features[WEIGHT] = mix_weighted(tf_ops, mix, label, features[WEIGHT])
            else:
                label = mix(label)
    return features, label


def _interleave_crops(stream: tf.data.Dataset, plan: InputPlan, skipped_images: Index) -> tf.data.Dataset:
    """Splits groups of records into crops: the first crop of every record, then the second ones; skips some images."""
    if plan.crops == 1:
        return stream

    def crop(crop_index: tf.Tensor, features: Features, label: tf.Tensor) -> Batch:
        names = [name for name in _CROP_FEATURES if name in features]
        cropped = {name: _select_crop(features[name], crop_index, plan.crops) for name in names}
        return {**features, **cropped}, label

    def split_group(features: Features, label: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.range(plan.crops).map(lambda crop_index: crop(crop_index, features, label)).unbatch()

    return batch_ragged(stream, plan.group, False).flat_map(split_group).skip(skipped_images)


def _select_crop(values: tf.Tensor | tf.RaggedTensor, index: tf.Tensor, crops: int) -> tf.Tensor | tf.RaggedTensor:
    """Returns the values of the crop `index` of each image, from values [images, crops, ...]."""
    if isinstance(values, tf.RaggedTensor):  # TensorFlow cannot index its second dimension
        return tf.gather(values.merge_dims(0, 1), tf.range(values.nrows()) * crops + index)
    return values[:, index]


def tf_options(input_options: InputOptions, waiting_threads: int = 0) -> tf.data.Options:
    """Returns the tf.data options of a pipeline with fixed buffers and thread counts, unless `autotune` is on.

    Args:
      input_options: options of the pipeline.
      waiting_threads: see `InputPlan.waiting_threads`.
    """
    options = tf.data.Options()
    options.deterministic = input_options.ordered
    options.threading.private_threadpool_size = input_options.thread_count + waiting_threads
    options.threading.max_intra_op_parallelism = 1  # the map already uses every core
    options.autotune.enabled = input_options.autotune
    if input_options.autotune:
        options.autotune.ram_budget = int(input_options.shuffle_mb * 1e6)  # the default is half of all memory
    options.experimental_optimization.inject_prefetch = False
    # Each host reads only its part, so a strategy must not divide the input again.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
