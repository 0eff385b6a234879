"""`preprocessing_fn` for TFX Transform: labels, exact channel statistics and user columns.

Images are not decoded: each record contains the mean and variance of its pixels, from which the statistics of the split
are computed, exactly except for rounding.

An op on a user column changes values but not their number: sparse columns remain sparse, ragged columns ragged, and
missing values missing. Statistics of the training split become constants in the graph.
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
_RANK_ERROR = 0.001  # largest error of the rank of a quantile, as a fraction of all values


def apply_column(name: str, op: ColumnOp, column: Column) -> Column:
    """Adds an op on a column to the graph and returns its result.

    Args:
      name: name of the column, without `extra/`.
      op: op to add.
      column: int64, float32 or string.

    Returns:
      a column that is dense, sparse or ragged like the input; float32 for `Scale` and `Zscore`, otherwise int64.

    Raises:
      OptionError: the op does not fit the type of the column.
    """
    _check_type(name, op, column.dtype)
    if isinstance(op, Vocabulary):
        return _map_values(column, lambda values: _look_up(name, op, values))
    if isinstance(op, Hashed):
        return _map_values(column, lambda values: tft.hash_strings(_to_text(values), op.buckets))
    if isinstance(op, Bucketise):
        return _map_values(column, lambda values: _bucketise(op, values))
    return _map_values(column, _scale if isinstance(op, Scale) else _zscore)


def vocabulary_name(name: str) -> str:
    """Returns the name of a column's vocabulary in the transform output; it has only letters, digits and `_`."""
    safe = re.sub(r"\W", "_", name, flags=re.ASCII)
    # The hash distinguishes columns whose names differ only in replaced characters, such as spaces.
    return f"column_{name}" if safe == name else f"column_{safe}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _map_values(column: Column, function: Callable[[tf.Tensor], tf.Tensor]) -> Column:
    """Returns a column with a function applied to its values: tensor [n] -> tensor [n]."""
    if isinstance(column, tf.SparseTensor):
        return tf.SparseTensor(column.indices, function(column.values), column.dense_shape)
    if isinstance(column, tf.RaggedTensor):
        return column.with_flat_values(function(column.flat_values))
    result = tf.reshape(function(tf.reshape(column, [-1])), tf.shape(column))
    return tf.ensure_shape(result, column.shape)


def _scale(values: tf.Tensor) -> tf.Tensor:
    """Scales the range of the training split to 0-1; constant columns and NaN become 0."""
    numbers = tf.cast(values, tf.float64)
    finite = _select_finite(numbers)
    low, high = tft.min(finite), tft.max(finite)
    span = high - low
    # The span of a constant column is 0. The span of a column without values in the training split is infinite.
    is_usable = tf.math.is_finite(span) & (span > 0)
    scaled = tf.clip_by_value((numbers - low) / tf.where(is_usable, span, 1.0), 0.0, 1.0)
    return _zero_unless(is_usable & ~tf.math.is_nan(numbers), scaled)


def _zscore(values: tf.Tensor) -> tf.Tensor:
    numbers = tf.cast(values, tf.float64)
    finite = _select_finite(numbers)
    mean, deviation = tft.mean(finite), tf.sqrt(tft.var(finite))
    is_usable = tf.math.is_finite(deviation) & (deviation > 0)
    scores = (numbers - mean) / tf.where(is_usable, deviation, 1.0)
    return _zero_unless(is_usable & tf.math.is_finite(numbers), scores)


def _bucketise(op: Bucketise, values: tf.Tensor) -> tf.Tensor:
    numbers = tf.cast(values, tf.float64)
    boundaries = tft.quantiles(_select_finite(numbers), op.buckets, epsilon=min(_RANK_ERROR, 0.1 / op.buckets))
    # NaN cannot be compared, so it is put into the first bucket.
    comparable = tf.where(tf.math.is_nan(numbers), tf.constant(float("-inf"), tf.float64), numbers)
    return tft.apply_buckets(comparable, boundaries)


def _look_up(name: str, op: Vocabulary, values: tf.Tensor) -> tf.Tensor:
    return tft.compute_and_apply_vocabulary(
        _to_text(values), top_k=op.top, num_oov_buckets=op.oov, vocab_filename=vocabulary_name(name)
    )


def _select_finite(numbers: tf.Tensor) -> tf.Tensor:
    return tf.boolean_mask(numbers, tf.math.is_finite(numbers))


def _zero_unless(is_usable: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.where(is_usable, values, tf.zeros_like(values)), tf.float32)


def _to_text(values: tf.Tensor) -> tf.Tensor:
    return values if values.dtype == tf.string else tf.strings.as_string(values)


def _check_type(name: str, op: ColumnOp, dtype: tf.DType) -> None:
    is_categorical = isinstance(op, (Vocabulary, Hashed))
    if is_categorical and dtype.is_floating:
        content, alternatives = "fractions", "bucketise, scale or zscore"
    elif not is_categorical and dtype == tf.string:
        content, alternatives = "text", "vocabulary or hashed"
    else:
        return
    raise OptionError(
        f"transform.columns.{name} is {type(op).__name__.lower()}, but the column has {content}; use {alternatives}"
    )


LABEL = "label"
MEAN_RGB = "channel_mean_rgb"
STD_RGB = "channel_std_rgb"
LABEL_VOCABULARY = "label_text"
Inputs: TypeAlias = Mapping[str, Column]


def preprocessing_fn(inputs: Inputs, custom_config: Mapping[str, Any] | None = None) -> dict[str, Column]:
    """Returns the transformed columns of a batch of records.

    Args:
      inputs: columns of the schema: dense [batch, n], or sparse or ragged if the number of values differs.
      custom_config: `custom_config["transform"]` is `TransformOptions.to_json()`; None for no user columns.

    Returns:
      `label`: int64[batch]; the unchanged column if images may have several labels; absent without labels. The class
      names and their counts become the vocabulary `label_text` of the transform output.
      `channel_mean_rgb` and `channel_std_rgb`: float32[batch, 3], equal in all rows, 0-255; absent if the records have
      no mean and variance.
      `extra/NAME`: the user columns of the options; dense, sparse or ragged like the input.

    Raises:
      OptionError: a user column is unknown, or its op does not fit its type.
    """
    options = TransformOptions.from_json((custom_config or {}).get(CONFIG_KEY, {}))
    outputs: dict[str, Column] = {}
    if record.TEXT in inputs:
        tft.vocabulary(inputs[record.TEXT], vocab_filename=LABEL_VOCABULARY, store_frequency=True)
    if record.LABEL in inputs:
        outputs[LABEL] = _flatten_label(inputs[record.LABEL])
    if record.MEAN_RGB in inputs:
        mean, std = _pool_statistics(inputs)
        rows = tf.shape(inputs[record.HEIGHT])[0]
        outputs |= {MEAN_RGB: _repeat(mean, rows), STD_RGB: _repeat(std, rows)}
    return outputs | _transform_user_columns(inputs, options)


def _transform_user_columns(inputs: Inputs, options: TransformOptions) -> dict[str, Column]:
    options.check([name.removeprefix(record.EXTRA_PREFIX) for name in inputs if name.startswith(record.EXTRA_PREFIX)])
    ops = {record.EXTRA_PREFIX + name: (name, op) for name, op in options.ops().items()}
    return {feature: apply_column(name, op, inputs[feature]) for feature, (name, op) in ops.items()}


def _flatten_label(labels: Column) -> Column:
    # A dense column with two labels per image must not be flattened to twice as many rows.
    is_single = isinstance(labels, tf.Tensor) and labels.shape.rank == 2 and labels.shape[1] == 1
    return tf.reshape(labels, [-1]) if is_single else labels


def _pool_statistics(inputs: Inputs) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and deviation of all pixels: m = sum(n_i m_i) / n, v = sum(n_i (v_i + m_i^2)) / n - m^2."""
    # float64, because the variance is a difference of large numbers.
    height = tf.cast(tf.reshape(inputs[record.HEIGHT], [-1]), tf.float64)
    width = tf.cast(tf.reshape(inputs[record.WIDTH], [-1]), tf.float64)
    pixels = tf.expand_dims(height * width, 1)
    mean = tf.cast(tf.reshape(inputs[record.MEAN_RGB], [-1, 3]), tf.float64)
    variance = tf.cast(tf.reshape(inputs[record.VAR_RGB], [-1, 3]), tf.float64)
    total = tft.sum(pixels)
    pooled_mean = tft.sum(pixels * mean, reduce_instance_dims=False) / total
    mean_square = tft.sum(pixels * (variance + mean**2), reduce_instance_dims=False) / total
    return pooled_mean, tf.sqrt(tf.maximum(mean_square - pooled_mean**2, 0.0))


def _repeat(values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return tf.tile(tf.reshape(tf.cast(values, tf.float32), [1, 3]), [rows, 1])
