"""`preprocessing_fn` for TFX Transform: labels, exact channel statistics and user columns. No pixel passes through it.

The image facts of the records are enough: each holds the mean and variance of its own pixels, so the statistics of the
whole split are sums of them, exact to rounding, without decoding anything again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf
import tensorflow_transform as tft

from beam_jobs.dataset import record
from trainer.input.column_ops import Column, apply_column
from trainer.input.columns import CONFIG_KEY, TransformOptions

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
      `extra/NAME`: the user columns of the options, in the form they come in; see `column_ops`.

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
