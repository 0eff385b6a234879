"""Counts and pads the batches of a host, and provides a dataset whose every iteration is the next pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from trainer.input.parse import KEY, Features
from trainer.input.plan import InputPlan
from trainer.input.position import Position
from trainer.input.windowed_reader import FOREVER


def count_images(plan: InputPlan, start: Position, epochs: int) -> int:
    """Returns the number of images of all hosts from a position to the end of the last epoch."""
    return max(0, epochs * plan.epoch_images - start.records)


def batch_count(plan: InputPlan, start: Position, epochs: int) -> int | None:
    """Returns the number of batches of every host; None for `FOREVER` and when a tf.data service distributes them.

    Args:
      plan: plan of the pipeline.
      start: position of the first image.
      epochs: passes over the split, or `FOREVER`.
    """
    if epochs == FOREVER or plan.uses_data_service:  # each worker of a service drops an incomplete batch
        return None
    if plan.training:
        return count_images(plan, start, epochs) // plan.options.batch_size
    images = count_images(plan, start, epochs)
    if plan.host.count > 1:  # of the host with the most records
        images = -(-plan.total // plan.host.count) * plan.crops * epochs
    return -(-images // plan.batch)


def pad_if_needed(stream: tf.data.Dataset, plan: InputPlan, count: int | None) -> tf.data.Dataset:
    """Pads the batches of evaluation if all must have one shape: with `pad_batches` or several hosts."""
    is_padded = not plan.training and (plan.host.count > 1 or plan.options.pad_batches)
    return pad_batches(stream, plan.batch, FOREVER if count is None else count) if is_padded else stream


def set_cardinality(stream: tf.data.Dataset, count: int | None) -> tf.data.Dataset:
    """Sets the number of batches that `len` and `cardinality()` return; if it is wrong, reading fails at the end.

    Without the number, Keras starts one extra step to find the end.
    """
    return stream if count is None else stream.apply(tf.data.experimental.assert_cardinality(count))


VALID = "valid"


def pad_batches(stream: tf.data.Dataset, size: int, count: int) -> tf.data.Dataset:
    """Pads every batch to the same size, and adds empty batches at the end.

    Args:
      stream: dataset of (features, label); the last batch may be smaller.
      size: rows of a padded batch.
      count: number of batches of the result, at least that of `stream`.

    Returns:
      the dataset with the feature `valid` float32[size]: 1 for a record, 0 for a padding row.
    """
    empty_batch = tf.nest.map_structure(_make_empty, stream.element_spec)
    stream = stream.concatenate(tf.data.Dataset.from_tensors(empty_batch).repeat()).take(count)

    def pad(features: Features, label: tf.Tensor) -> tuple[Features, tf.Tensor]:
        rows = tf.shape(features[KEY])[0]
        valid = tf.cast(tf.range(size) < rows, tf.float32)
        pad_rows = partial(_pad_rows, missing=size - rows, size=size)
        features, label = tf.nest.map_structure(pad_rows, (features, label))
        return {**features, VALID: valid}, label

    return stream.map(pad)


def _make_empty(spec: tf.TypeSpec) -> tf.Tensor | tf.RaggedTensor:
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


def iterate_passes(make_pass: Callable[[tf.Tensor], tf.data.Dataset], count: int | None) -> tf.data.Dataset:
    """Returns a dataset whose every iteration is the next pass.

    The pass of an iterator is chosen at its first batch. A pass that is not read to its last batch is repeated, and
    iterators that run at the same time read the same pass.

    Args:
      make_pass: function from the number of the pass, int64 scalar, from 0, to its batches.
      count: batches of every pass; None if it is unknown before the end.
    """
    # Keras stops after `count` batches and does not read to the end, so the last batch ends the pass. The number of the
    # pass is in the graph, where the dataset runs, and in a table, because no strategy copies a table.
    pass_table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=0)
    key = tf.constant(0, tf.int64)  # the only key of the table

    def next_pass(_: tf.Tensor) -> tf.data.Dataset:
        pass_number = pass_table.lookup(key)

        def end_pass() -> bool:
            pass_table.insert(key, tf.maximum(pass_number + 1, pass_table.lookup(key)))
            return False

        def deliver_batch(index: tf.Tensor, batch: Any) -> Any:
            tf.cond(index + 1 == count, end_pass, lambda: False)
            return batch

        batches = make_pass(pass_number)
        if count is None:
            pass_end = tf.data.Dataset.from_tensors(0).filter(lambda _: end_pass()).flat_map(lambda _: batches)
            return batches.concatenate(pass_end)
        return batches.enumerate().map(deliver_batch)

    return tf.data.Dataset.from_tensors(0).flat_map(next_pass)
