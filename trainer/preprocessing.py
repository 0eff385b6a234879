"""`preprocessing_fn` for TFX Transform: labels and exact channel statistics. No pixel passes through it.

The image facts of the records are enough: each holds the mean and variance of its own pixels, so the statistics of the
whole split are sums of them, exact to rounding, without decoding anything again.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
import tensorflow_transform as tft

from beam_jobs import record

LABEL = "label"
MEAN_RGB = "channel_mean_rgb"
STD_RGB = "channel_std_rgb"
LABEL_VOCABULARY = "label_text"


def preprocessing_fn(inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Maps the columns of a batch of records.

    Args:
      inputs: the columns of the schema, dense, [batch, 1] or [batch, 3].

    Returns:
      `label` int64[batch]; `channel_mean_rgb` and `channel_std_rgb` float32[batch, 3], the same in every row, 0-255.
      The class names with their counts become the vocabulary `label_text` of the transform output.
    """
    tft.vocabulary(_column(inputs, record.TEXT), vocab_filename=LABEL_VOCABULARY, store_frequency=True)
    mean, std = _channel_statistics(inputs)
    label = _column(inputs, record.LABEL)
    rows = tf.size(label)
    return {LABEL: label, MEAN_RGB: _repeat(mean, rows), STD_RGB: _repeat(std, rows)}


def _channel_statistics(inputs: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
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


def _column(inputs: Mapping[str, tf.Tensor], name: str) -> tf.Tensor:
    return tf.reshape(inputs[name], [-1])


def _repeat(values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return tf.tile(tf.reshape(tf.cast(values, tf.float32), [1, 3]), [rows, 1])
