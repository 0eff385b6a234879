"""Shards -> batches. `make_dataset` is the whole input pipeline: one line a stage, one reason a line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import tensorflow as tf

from beam_jobs import manifest, record
from beam_jobs.errors import OptionError
from beam_jobs.manifest import Manifest
from trainer.ops import IMAGE, OPS, Op, apply_ops, parse_ops
from trainer.options import InputOptions
from trainer.raw import stored_ops

FOREVER = -1
KEY = "key"
_PARSED = (record.ENCODED, record.HEIGHT, record.WIDTH, record.LABEL, record.FILENAME)
_READ_BUFFER_BYTES = 1 << 20  # more is no faster on local files (`benchmarks.micro`), and every reader holds one


def make_dataset(
    path: str,
    split: str,
    options: InputOptions,
    training: bool,
    epochs: int = 1,
    first_epoch: int = 0,
) -> tf.data.Dataset:
    """Builds the input pipeline of one split.

    The order and every random draw are a pure function of (seed, epoch): the same call gives the same batches.

    Example:
      train = make_dataset("dataset", "train", InputOptions(image_side_px=224), training=True, epochs=FOREVER)
      model.fit(train.map(lambda features, label: (features["image"], label)), steps_per_epoch=100)

    Args:
      path: directory of a published dataset.
      split: name of the split.
      options: how shards become batches.
      training: shuffle, augment and drop the ragged last batch; otherwise read in order and keep every record.
      epochs: passes over the split, or `FOREVER`. Batches run across the seam, so no record is dropped between epochs.
      first_epoch: number of the first pass; to continue a training, the first pass not yet made.

    Returns:
      dataset of (features, label): `features["image"]` is uint8[batch, side, side, 3], sRGB, 0-255,
      `features["key"]` is string[batch], and label is int64[batch].

    Raises:
      UsageError: there is no such dataset or split, or the ops are wrong.
      CorruptDataset: `dataset.json` is damaged.
    """
    dataset = manifest.load(path)
    files = dataset.shard_paths(path, split)
    ops = stored_ops(parse_ops(options.train_spec) if training else evaluation_ops(options), dataset)
    threads = options.thread_count
    epoch_records = partial(_epoch, files=files, dataset=dataset, split=split, options=options, training=training)

    stream = _epochs(first_epoch, epochs)  # int64 scalar: every order below derives from it
    stream = stream.flat_map(epoch_records)  # parsed records in batches: one by one costs twice as much
    stream = stream.unbatch()  # images differ in size, so from here on they go one by one
    prepare = partial(_prepare, ops=ops, seed=options.seed)
    stream = stream.map(prepare, threads, deterministic=True)  # decode: the stage that wants all cores
    _check_shape(stream, options, training)
    stream = stream.batch(options.batch_size, drop_remainder=training)  # uint8: a quarter of what float32 would move
    stream = stream.prefetch(
        options.prefetch_batches
    )  # bounded: each holds a whole batch, and AUTOTUNE knows no budget
    return stream.with_options(_tf_options(threads))


def evaluation_ops(options: InputOptions) -> tuple[Op, ...]:
    """Returns the ops of evaluation and serving.

    Raises:
      OptionError: they are wrong, or one of them is random.
    """
    ops = parse_ops(options.eval_spec)
    for op in ops:
        if op.random:
            name = next(name for name, kind in OPS.items() if isinstance(op, kind))
            raise OptionError(f"eval_ops {options.eval_spec!r} holds {name}, which is random; evaluation must not be")
    return ops


def check_options(options: InputOptions) -> None:
    """Builds both chains of ops without data, so that what cannot work is known before anything runs.

    Raises:
      OptionError: an op is unknown, does not fit, or leaves images of another size than `image_side_px`.
    """
    row = {record.ENCODED: "", record.HEIGHT: 0, record.WIDTH: 0, record.LABEL: 0, record.FILENAME: "", "epoch": 0}
    types = {name: tf.string if value == "" else tf.int64 for name, value in row.items()}
    for training in (True, False):
        ops = parse_ops(options.train_spec) if training else evaluation_ops(options)
        nothing = tf.data.Dataset.from_tensors({name: tf.constant(value, types[name]) for name, value in row.items()})
        _check_shape(nothing.map(partial(_prepare, ops=ops, seed=options.seed)), options, training)


def _check_shape(stream: tf.data.Dataset, options: InputOptions, training: bool) -> None:
    side = options.image_side_px
    shape = stream.element_spec[0][IMAGE].shape
    if shape != (side, side, 3):
        name, spec = ("train_ops", options.train_spec) if training else ("eval_ops", options.eval_spec)
        raise OptionError(
            f"{name} {spec!r} end at the shape {shape}; image_side_px is {side}, so it must be {side}x{side}"
        )


def _epochs(first: int, count: int) -> tf.data.Dataset:
    if count == FOREVER:
        return tf.data.Dataset.counter(start=first, dtype=tf.int64)
    return tf.data.Dataset.range(first, first + count)


def _epoch(
    epoch: tf.Tensor, files: Sequence[str], dataset: Manifest, split: str, options: InputOptions, training: bool
) -> tf.data.Dataset:
    """Returns the parsed records of one epoch, in batches."""
    paths = tf.constant(files)
    if training:
        paths = tf.random.experimental.stateless_shuffle(paths, seed=tf.stack([options.seed, epoch]))
    stream = tf.data.Dataset.from_tensor_slices(paths)
    # A bounded cycle: open files and read buffers must not grow with the number of shards.
    stream = stream.interleave(
        lambda name: tf.data.TFRecordDataset(name, buffer_size=_READ_BUFFER_BYTES),
        cycle_length=min(options.readers, len(files)) if training else 1,
        block_length=16,
        num_parallel_calls=min(options.readers, len(files), options.thread_count) if training else None,
        deterministic=True,
    )
    if training:
        # Before decoding, while a record is a tenth of its pixels.
        held = shuffle_records(dataset, split, options)
        stream = _shuffle(stream, held, options.seed, epoch)
    return stream.batch(options.parse_batch).map(partial(_parse, epoch=epoch), options.thread_count, deterministic=True)


def shuffle_records(dataset: Manifest, split: str, options: InputOptions) -> int:
    """Returns how many records of average size fit the shuffle budget: at least 1, at most the whole split."""
    info = dataset.split(split)
    return max(1, min(info.records, int(options.shuffle_mb * 1e6 * info.records / info.bytes)))


def _shuffle(stream: tf.data.Dataset, held: int, seed: int, epoch: tf.Tensor) -> tf.data.Dataset:
    # `Dataset.shuffle` mixes in the global seed of TensorFlow, and then the order depends on whoever set that.
    shuffled = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(stream),
        buffer_size=held,
        seed=tf.constant(seed + 1, tf.int64),  # the pair (0, 0) means "draw one"
        seed2=epoch + 1,
        reshuffle_each_iteration=False,
        output_types=[tf.string],
        output_shapes=[[]],
    )
    return tf.data.experimental.from_variant(shuffled, stream.element_spec)


def _parse(serialized: tf.Tensor, epoch: tf.Tensor) -> dict[str, tf.Tensor]:
    parsed = tf.io.parse_example(serialized, record.feature_spec(_PARSED))
    return {**parsed, "epoch": tf.repeat(epoch, tf.size(serialized))}


def _prepare(parsed: dict[str, tf.Tensor], ops: Sequence[Op], seed: int) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    # From the key, not from the position: a record draws the same whatever the order, the batch or the host.
    draw = tf.strings.to_hash_bucket_fast(parsed[record.FILENAME], 1 << 62)
    features = {IMAGE: parsed[record.ENCODED], record.HEIGHT: parsed[record.HEIGHT], record.WIDTH: parsed[record.WIDTH]}
    image = apply_ops(ops, features, tf.stack([draw + seed, parsed["epoch"]]))[IMAGE]
    return {IMAGE: image, KEY: parsed[record.FILENAME]}, parsed[record.LABEL]


def _tf_options(threads: int) -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1  # the map already uses every core
    options.autotune.enabled = False  # every buffer and thread count above is chosen, and stays chosen
    options.experimental_optimization.inject_prefetch = False
    return options
