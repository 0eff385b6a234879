"""`preprocessing_fn` for TFX Transform: labels, exact channel statistics and user columns.

No image is decoded: each record holds the mean and variance of its pixels, and the statistics of the split are computed
from them, exact to rounding.

An op of a user column changes values but not their number: sparse and ragged columns keep their form, and missing
values remain missing. Statistics of the training split are constants in the graph.
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
_RANK_ERROR = 0.001  # of the quantiles, as a fraction of all values


def apply_column(name: str, op: ColumnOp, column: Column) -> Column:
    """Adds an op to the graph.

    Args:
      name: name of the column, without `extra/`.
      op: op to add.
      column: int64, float32 or string.

    Returns:
      a column of the same form; float32 for `Scale` and `Zscore`, int64 for the others.

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
    """Returns the name of the vocabulary of a column in the transform output, of letters, digits and `_`."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    # The hash distinguishes columns whose names only differ in spaces or accents.
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
    finite = _select_finite(numbers)
    low, high = tft.min(finite), tft.max(finite)
    span = high - low
    # The span of a constant column is 0, and of a column without values in the training split infinite.
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
    # NaN goes to the first bucket, because it cannot be compared.
    ordered = tf.where(tf.math.is_nan(numbers), tf.constant(float("-inf"), tf.float64), numbers)
    return tft.apply_buckets(ordered, boundaries)


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
        f"transform.columns.{name} is {type(op).__name__.lower()}, but the column holds {content}; use {alternatives}"
    )


LABEL = "label"
MEAN_RGB = "channel_mean_rgb"
STD_RGB = "channel_std_rgb"
LABEL_VOCABULARY = "label_text"
Inputs: TypeAlias = Mapping[str, Column]


def preprocessing_fn(inputs: Inputs, custom_config: Mapping[str, Any] | None = None) -> dict[str, Column]:
    """Maps the columns of a batch of records.

    Args:
      inputs: columns of the schema: dense [batch, n], or sparse or ragged if the number of values differs.
      custom_config: `custom_config["transform"]` is `TransformOptions.to_json()`; None for no user columns.

    Returns:
      `label`: int64[batch]; unchanged for images with any number of labels; absent without labels. The class names and
      their counts become the vocabulary `label_text` of the transform output.
      `channel_mean_rgb` and `channel_std_rgb`: float32[batch, 3], the same in every row, 0-255; absent if the records
      have no moments.
      `extra/NAME`: the user columns of the options, in the same form as in the input.

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
    names = {record.EXTRA_PREFIX + name: (name, op) for name, op in options.ops().items()}
    return {full: apply_column(name, op, inputs[full]) for full, (name, op) in names.items()}


def _flatten_label(labels: Column) -> Column:
    # A dense column may also hold two labels per image, which must not become rows.
    single = isinstance(labels, tf.Tensor) and labels.shape.rank == 2 and labels.shape[1] == 1
    return tf.reshape(labels, [-1]) if single else labels


def _pool_statistics(inputs: Inputs) -> tuple[tf.Tensor, tf.Tensor]:
    """Pools per-image moments, weighted by pixels: m = sum(n_i m_i) / n, v = sum(n_i (v_i + m_i^2)) / n - m^2."""
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
