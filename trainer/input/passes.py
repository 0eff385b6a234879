"""A dataset that goes on each time it is read: the first pass, then the next, as Keras asks for one an epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def in_turn(make: Callable[[tf.Tensor], tf.data.Dataset], count: int | None) -> tf.data.Dataset:
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
