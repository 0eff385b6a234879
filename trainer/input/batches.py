"""How many batches each host has, known before the first is read; how the last is padded; and one pass after another.

Keras asks for a dataset once an epoch: `passes_in_turn` gives it the first pass, then the next.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

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


def passes_in_turn(make: Callable[[tf.Tensor], tf.data.Dataset], count: int | None) -> tf.data.Dataset:
    """Returns a dataset whose every iteration is the pass after the last one that was drawn to its end.

    An iterator takes its pass when it is first asked for a batch. A pass that is left before its last batch comes
    again, and iterators that run side by side give the same one.

    Args:
      make: number of the pass, int64 scalar, from 0 -> its batches.
      count: batches of every pass; None where only the end shows how many there are.
    """
    # Keras stops after `count` batches and never sees the end, so the last batch counts as the end. The number lives
    # in the graph, because it has to lie where the dataset runs, and in a table, because no strategy copies that.
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=0)
    key = tf.constant(0, tf.int64)

    def one_pass(_: tf.Tensor) -> tf.data.Dataset:
        number = table.lookup(key)

        def finish() -> bool:
            table.insert(key, tf.maximum(number + 1, table.lookup(key)))
            return False

        def deliver(place: tf.Tensor, batch: Any) -> Any:
            tf.cond(place + 1 == count, finish, lambda: False)
            return batch

        batches = make(number)
        if count is None:
            nothing = tf.data.Dataset.from_tensors(0).filter(lambda _: finish()).flat_map(lambda _: batches)
            return batches.concatenate(nothing)
        return batches.enumerate().map(deliver)

    return tf.data.Dataset.from_tensors(0).flat_map(one_pass)
