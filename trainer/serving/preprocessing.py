"""`preprocessing_fn` for TFX Transform: labels, exact channel statistics and user columns. No pixel passes through it.

The image facts of the records are enough: each holds the mean and variance of its own pixels, so the statistics of the
whole split are sums of them, exact to rounding, without decoding anything again.

An op of a user column changes values and never their number: a sparse or ragged column stays one, and what is missing
stays missing. What is learnt from the training split is constant in the graph, so one row is served as the whole split
was analysed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf
import tensorflow_transform as tft

from beam_jobs.dataset import record
from beam_jobs.errors import OptionError
from trainer.input.columns import CONFIG_KEY, Bucketise, ColumnOp, Hashed, Scale, TransformOptions, Vocabulary

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


LABEL = "label"
MEAN_RGB = "channel_mean_rgb"
STD_RGB = "channel_std_rgb"
LABEL_VOCABULARY = "label_text"
Inputs: TypeAlias = Mapping[str, Column]


def preprocessing_fn(inputs: Inputs, custom_config: Mapping[str, Any] | None = None) -> dict[str, Column]:
    """Maps the columns of a batch of records.

    Args:
      inputs: the columns of the schema: dense [batch, n], or sparse or ragged where their number differs.
      custom_config: `custom_config["transform"]` is `TransformOptions.to_json()`; nothing leaves user columns out.

    Returns:
      `label`: int64[batch]; of images with any number of labels as it comes in; absent without labels. The class names
      with their counts become the vocabulary `label_text` of the transform output.
      `channel_mean_rgb` and `channel_std_rgb`: float32[batch, 3], the same in every row, 0-255; absent when the records
      hold no moments.
      `extra/NAME`: the user columns of the options, in the form they come in.

    Raises:
      OptionError: a user column is unknown, or its op does not fit what it holds.
    """
    options = TransformOptions.from_json((custom_config or {}).get(CONFIG_KEY, {}))
    outputs: dict[str, Column] = {}
    if record.TEXT in inputs:
        tft.vocabulary(inputs[record.TEXT], vocab_filename=LABEL_VOCABULARY, store_frequency=True)
    if record.LABEL in inputs:
        outputs[LABEL] = _label(inputs[record.LABEL])
    if record.MEAN_RGB in inputs:
        mean, std = _channel_statistics(inputs)
        rows = tf.shape(inputs[record.HEIGHT])[0]
        outputs |= {MEAN_RGB: _repeat(mean, rows), STD_RGB: _repeat(std, rows)}
    return outputs | _user_columns(inputs, options)


def _user_columns(inputs: Inputs, options: TransformOptions) -> dict[str, Column]:
    options.check([name.removeprefix(record.EXTRA_PREFIX) for name in inputs if name.startswith(record.EXTRA_PREFIX)])
    names = {record.EXTRA_PREFIX + name: (name, op) for name, op in options.ops().items()}
    return {full: apply_column(name, op, inputs[full]) for full, (name, op) in names.items()}


def _label(labels: Column) -> Column:
    # One each is a plain vector. Two of each, which a schema also calls dense, are not twice as many images.
    single = isinstance(labels, tf.Tensor) and labels.shape.rank == 2 and labels.shape[1] == 1
    return tf.reshape(labels, [-1]) if single else labels


def _channel_statistics(inputs: Inputs) -> tuple[tf.Tensor, tf.Tensor]:
    """Pools per-image moments, weighted by pixels: m = sum(n_i m_i) / n, v = sum(n_i (v_i + m_i^2)) / n - m^2."""
    # float64: the sums run over the pixels of the whole dataset, and the variance is a difference of large numbers.
    height = tf.cast(_column(inputs, record.HEIGHT), tf.float64)
    width = tf.cast(_column(inputs, record.WIDTH), tf.float64)
    pixels = tf.expand_dims(height * width, 1)
    mean = tf.cast(tf.reshape(inputs[record.MEAN_RGB], [-1, 3]), tf.float64)
    variance = tf.cast(tf.reshape(inputs[record.VAR_RGB], [-1, 3]), tf.float64)
    total = tft.sum(pixels)
    pooled_mean = tft.sum(pixels * mean, reduce_instance_dims=False) / total
    second = tft.sum(pixels * (variance + mean**2), reduce_instance_dims=False) / total
    return pooled_mean, tf.sqrt(tf.maximum(second - pooled_mean**2, 0.0))


def _column(inputs: Inputs, name: str) -> tf.Tensor:
    return tf.reshape(inputs[name], [-1])


def _repeat(values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return tf.tile(tf.reshape(tf.cast(values, tf.float32), [1, 3]), [rows, 1])
