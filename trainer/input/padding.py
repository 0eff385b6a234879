"""Batches of evaluation that all have one shape, as many on every host: filled up, and marked where they are."""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from trainer.input.parse import KEY, Features

VALID = "valid"


def padded(stream: tf.data.Dataset, size: int, count: int) -> tf.data.Dataset:
    """Fills up the batches of a dataset.

    Args:
      stream: dataset of (features, label), the last batch perhaps smaller.
      size: rows that every batch shall have.
      count: batches that there shall be; at least as many as there are.

    Returns:
      the dataset, with `valid` float32[size] among the features: 1 for a record, 0 for a row that was filled up.
    """
    nothing = tf.nest.map_structure(_no_rows, stream.element_spec)
    stream = stream.concatenate(tf.data.Dataset.from_tensors(nothing).repeat()).take(count)

    def pad(features: Features, label: tf.Tensor) -> tuple[Features, tf.Tensor]:
        rows = tf.shape(features[KEY])[0]
        valid = tf.cast(tf.range(size) < rows, tf.float32)
        fill = partial(_pad_rows, missing=size - rows, size=size)
        features, label = tf.nest.map_structure(fill, (features, label))
        return {**features, VALID: valid}, label

    return stream.map(pad)


def _no_rows(spec: tf.TypeSpec) -> tf.Tensor | tf.RaggedTensor:
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensor.from_row_lengths(tf.zeros([0, *spec.shape[2:]], spec.dtype), tf.zeros([0], tf.int64))
    return tf.zeros([0, *spec.shape[1:]], spec.dtype)


def _pad_rows(rows: tf.Tensor | tf.RaggedTensor, missing: tf.Tensor, size: int) -> tf.Tensor | tf.RaggedTensor:
    if isinstance(rows, tf.RaggedTensor):
        lengths = tf.pad(rows.row_lengths(), [[0, missing]])
        return tf.RaggedTensor.from_row_lengths(rows.values, lengths)
    margins = [[0, missing], *[[0, 0]] * (rows.shape.rank - 1)]
    padded = tf.pad(rows, margins, constant_values="") if rows.dtype == tf.string else tf.pad(rows, margins)
    return tf.ensure_shape(padded, [size, *rows.shape[1:]])
