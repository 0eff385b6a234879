"""How many batches each host has, known before the first is read; and how the last is padded."""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from trainer.input.parse import KEY, Features
from trainer.input.plan import Choices
from trainer.input.position import Position
from trainer.input.windowed_reader import FOREVER


def images_left(choices: Choices, start: Position, epochs: int) -> int:
    """Returns the images of all hosts from a position to the end of some epochs, its own included."""
    return max(0, epochs * choices.epoch_images - start.records)


def batch_count(choices: Choices, start: Position, epochs: int) -> int | None:
    """Returns how many batches every host has; None for `FOREVER` and where a tf.data service deals them out.

    Args:
      choices: what the pipeline decided.
      start: where it starts.
      epochs: passes over the split, or `FOREVER`.
    """
    if epochs == FOREVER or choices.served:  # each worker of a service drops what is too little for a batch of its own
        return None
    if choices.training:
        return images_left(choices, start, epochs) // choices.options.batch_size
    images = images_left(choices, start, epochs)
    if choices.host.count > 1:  # the host that has the most records
        images = -(-choices.total // choices.host.count) * choices.crops * epochs
    return -(-images // choices.batch)


def filled(stream: tf.data.Dataset, choices: Choices, count: int | None) -> tf.data.Dataset:
    """Fills up the batches of evaluation where all must have one shape: `pad_batches`, or several hosts."""
    is_padded = not choices.training and (choices.host.count > 1 or choices.options.pad_batches)
    return padded(stream, choices.batch, FOREVER if count is None else count) if is_padded else stream


def counted(stream: tf.data.Dataset, count: int | None) -> tf.data.Dataset:
    """Lets a pipeline say how many batches it has, by `len` and `cardinality()`.

    Keras begins one step more where it has to find the end. A number that is not true is an error at that end.
    """
    return stream if count is None else stream.apply(tf.data.experimental.assert_cardinality(count))


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
