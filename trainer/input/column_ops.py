"""The ops of user columns inside the transform graph.

An op changes values and never their number: a sparse or ragged column stays one, and what is missing stays missing.
What is learnt from the training split is constant in the graph, so one row is served as the whole split was analysed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf
import tensorflow_transform as tft

from beam_jobs.errors import OptionError
from trainer.input.columns import Bucketise, ColumnOp, Hashed, Scale, Vocabulary

Column: TypeAlias = tf.Tensor | tf.SparseTensor | tf.RaggedTensor
_RANK_ERROR = 0.001  # of the quantiles, as a share of all values


def apply_column(name: str, op: ColumnOp, column: Column) -> Column:
    """Adds an op to the graph.

    Args:
      name: of the column, without `extra/`.
      op: what to do.
      column: int64, float32 or string.

    Returns:
      a column of the same form; float32 of `Scale` and `Zscore`, int64 of the others.

    Raises:
      OptionError: the op does not fit what the column holds.
    """
    _check_type(name, op, column.dtype)
    if isinstance(op, Vocabulary):
        return _map_values(column, lambda values: _look_up(name, op, values))
    if isinstance(op, Hashed):
        return _map_values(column, lambda values: tft.hash_strings(_text(values), op.buckets))
    if isinstance(op, Bucketise):
        return _map_values(column, lambda values: _bucketise(op, values))
    return _map_values(column, _scale if isinstance(op, Scale) else _zscore)


def vocabulary_name(name: str) -> str:
    """Returns the name of the vocabulary of a column in the transform output, made of letters, digits and `_`."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    # Two columns whose names differ in a space or an accent have files of their own.
    return f"column_{name}" if plain == name else f"column_{plain}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _map_values(column: Column, function: Callable[[tf.Tensor], tf.Tensor]) -> Column:
    """Applies a function of [n] -> [n] to the values of a column."""
    if isinstance(column, tf.SparseTensor):
        return tf.SparseTensor(column.indices, function(column.values), column.dense_shape)
    if isinstance(column, tf.RaggedTensor):
        return column.with_flat_values(function(column.flat_values))
    result = tf.reshape(function(tf.reshape(column, [-1])), tf.shape(column))
    return tf.ensure_shape(result, column.shape)


def _scale(values: tf.Tensor) -> tf.Tensor:
    numbers = tf.cast(values, tf.float64)
    seen = _finite(numbers)
    least, most = tft.min(seen), tft.max(seen)
    span = most - least
    # A constant column has no span, and one that the training split does not have has infinite ends.
    usable = tf.math.is_finite(span) & (span > 0)
    shares = tf.clip_by_value((numbers - least) / tf.where(usable, span, 1.0), 0.0, 1.0)
    return _only(usable & ~tf.math.is_nan(numbers), shares)


def _zscore(values: tf.Tensor) -> tf.Tensor:
    numbers = tf.cast(values, tf.float64)
    seen = _finite(numbers)
    mean, deviation = tft.mean(seen), tf.sqrt(tft.var(seen))
    usable = tf.math.is_finite(deviation) & (deviation > 0)
    scores = (numbers - mean) / tf.where(usable, deviation, 1.0)
    return _only(usable & tf.math.is_finite(numbers), scores)


def _bucketise(op: Bucketise, values: tf.Tensor) -> tf.Tensor:
    numbers = tf.cast(values, tf.float64)
    boundaries = tft.quantiles(_finite(numbers), op.buckets, epsilon=min(_RANK_ERROR, 0.1 / op.buckets))
    # NaN is not in order with anything; the bucket of the smallest takes it.
    ordered = tf.where(tf.math.is_nan(numbers), tf.constant(float("-inf"), tf.float64), numbers)
    return tft.apply_buckets(ordered, boundaries)


def _look_up(name: str, op: Vocabulary, values: tf.Tensor) -> tf.Tensor:
    return tft.compute_and_apply_vocabulary(
        _text(values), top_k=op.top, num_oov_buckets=op.oov, vocab_filename=vocabulary_name(name)
    )


def _finite(numbers: tf.Tensor) -> tf.Tensor:
    return tf.boolean_mask(numbers, tf.math.is_finite(numbers))


def _only(usable: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.where(usable, values, tf.zeros_like(values)), tf.float32)


def _text(values: tf.Tensor) -> tf.Tensor:
    return values if values.dtype == tf.string else tf.strings.as_string(values)


def _check_type(name: str, op: ColumnOp, dtype: tf.DType) -> None:
    categories = isinstance(op, (Vocabulary, Hashed))
    if categories and dtype.is_floating:
        holds, fits = "fractions", "bucketise, scale or zscore"
    elif not categories and dtype == tf.string:
        holds, fits = "text", "vocabulary or hashed"
    else:
        return
    raise OptionError(
        f"transform.columns.{name} is {type(op).__name__.lower()}, but the column holds {holds}; use {fits}"
    )
