"""The model that trains anywhere."""

from __future__ import annotations

import math

import keras

from trainer.models.layers import classify, image_input, normalise
from trainer.models.spec import ModelSpec


def small_cnn(spec: ModelSpec) -> keras.Model:
    """A plain convolutional network that trains in seconds a thousand images: 3x3 convolutions, halved until 4 pixels.

    Args:
      spec: what it must fit.

    Returns:
      uint8[batch, side, side, 3] -> float32[batch, classes], probabilities.
    """
    inputs = image_input(spec)
    features = normalise(inputs, spec)
    for level in range(max(1, round(math.log2(spec.side_px / 4)))):
        features = keras.layers.Conv2D(min(32 << level, 256), 3, padding="same", use_bias=False)(features)
        features = keras.layers.BatchNormalization(momentum=0.9)(features)
        features = keras.layers.ReLU()(features)
        features = keras.layers.MaxPooling2D()(features)
    return keras.Model(inputs, classify(features, spec))
