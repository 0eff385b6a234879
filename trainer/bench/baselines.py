"""What people write without this project: the plainest pipeline, and the one of the tf.data tutorials."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from beam_jobs.dataset import record
from trainer.bench.chain import Source, first_mixing, open_source, unfused
from trainer.input.parse import NO_LABEL, base_spec
from trainer.ops import IMAGE, Op, apply_batch_ops, apply_ops
from trainer.options import InputOptions

_TUTORIAL_SHUFFLE = 10_000  # records
_MOST_SHUFFLE_BYTES = 256e6  # so that it fits beside everything else; reached at records over 25 kB
_MOST_DRAWS = 1 << 30


def naive_dataset(path: str, split: str, options: InputOptions) -> tf.data.Dataset:
    """Builds the pipeline of the first tutorials: one file after the other, one record after the other, floats.

    It decodes the whole image, crops afterwards, and normalises on the host. The ops are otherwise those of training.

    Returns:
      endless dataset of (float32[batch, side, side, 3] in 0-1, int64[batch]: the label, or -1).
    """
    source = open_source(path, split, options)
    stream = _prepared(tf.data.TFRecordDataset(source.files), source, None).repeat()
    stream = _batched(stream, source, None)
    bare = tf.data.Options()
    bare.autotune.enabled = False
    return stream.with_options(bare)


def tutorial_dataset(path: str, split: str, options: InputOptions) -> tf.data.Dataset:
    """Builds the pipeline of the performance guides: everything parallel, and AUTOTUNE decides how far.

    Files come in random order, interleaved and mapped in parallel, 10,000 records shuffled, and batches prefetched. It
    decodes whole images and moves floats, as those guides do. The shuffle comes before the decode: 10,000 float images
    of 224 pixels are 6 GB.

    Returns:
      endless dataset of (float32[batch, side, side, 3] in 0-1, int64[batch]: the label, or -1).
    """
    source = open_source(path, split, options)
    window_records = max(1, min(_TUTORIAL_SHUFFLE, int(_MOST_SHUFFLE_BYTES / source.record_bytes)))
    # `list_files` does just this, but would take a [ in the path for a pattern.
    stream = tf.data.Dataset.from_tensor_slices(source.files).shuffle(len(source.files))
    stream = stream.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    stream = _prepared(stream.shuffle(window_records).repeat(), source, tf.data.AUTOTUNE)
    return _batched(stream, source, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _prepared(stream: tf.data.Dataset, source: Source, parallel: int | None) -> tf.data.Dataset:
    """Parses one record at a time, decodes all of it, crops, makes floats: dataset of (image, label, draw)."""
    dataset = source.choices.dataset
    ops, spec = unfused(source.choices.whole_ops), base_spec(dataset)
    alone = ops[: first_mixing(ops)]

    def prepare(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(serialized, spec)
        draw = tf.random.uniform([2], maxval=_MOST_DRAWS, dtype=tf.int32)
        features = {name: parsed[name] for name in (record.HEIGHT, record.WIDTH)}
        image = apply_ops(alone, {**features, IMAGE: parsed[record.ENCODED]}, draw)[IMAGE]
        label = parsed[record.LABEL] if dataset.label_kind == "single" else tf.constant(NO_LABEL, tf.int64)
        return _floats(image) if len(alone) == len(ops) else image, label, draw

    return stream.map(prepare, num_parallel_calls=parallel)


def _batched(stream: tf.data.Dataset, source: Source, parallel: int | None) -> tf.data.Dataset:
    """Makes batches; ops that mix images can only run on these."""
    ops: Sequence[Op] = unfused(source.choices.whole_ops)
    place = first_mixing(ops)
    stream = stream.batch(source.options.batch_size)

    def finish(images: tf.Tensor, label: tf.Tensor, draws: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if place == len(ops):
            return images, label
        return _floats(apply_batch_ops(ops[place:], images, draws, place)), label

    return stream.map(finish, num_parallel_calls=parallel)


def _floats(images: tf.Tensor) -> tf.Tensor:
    return tf.image.convert_image_dtype(images, tf.float32)
