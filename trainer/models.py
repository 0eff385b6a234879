"""Models by name. Every one takes the uint8 images of the input pipeline and normalises them itself, on the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import keras

from beam_jobs.errors import OptionError
from beam_jobs.suggest import unknown


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What a model must fit.

    Attributes:
      side_px: height and width of the images.
      classes: number of classes.
      mean_rgb: mean of each channel of the training split, 0-255.
      std_rgb: standard deviation of each channel.
    """

    side_px: int
    classes: int
    mean_rgb: tuple[float, ...]
    std_rgb: tuple[float, ...]


def small_cnn(spec: ModelSpec) -> keras.Model:
    """A plain convolutional network that trains in seconds a thousand images: 3x3 convolutions, halved until 4 pixels.

    Args:
      spec: what it must fit.

    Returns:
      uint8[batch, side, side, 3] -> float32[batch, classes], probabilities.
    """
    inputs = keras.Input([spec.side_px, spec.side_px, 3], dtype="uint8", name="image")
    features = _normalise(inputs, spec)
    for level in range(max(1, round(math.log2(spec.side_px / 4)))):
        features = keras.layers.Conv2D(min(32 << level, 256), 3, padding="same", use_bias=False)(features)
        features = keras.layers.BatchNormalization(momentum=0.9)(features)
        features = keras.layers.ReLU()(features)
        features = keras.layers.MaxPooling2D()(features)
    features = keras.layers.GlobalAveragePooling2D()(features)
    features = keras.layers.Dropout(0.2)(features)
    logits = keras.layers.Dense(spec.classes, name="logits")(features)
    # float32 even under mixed precision: a softmax in half precision loses small probabilities.
    return keras.Model(inputs, keras.layers.Activation("softmax", dtype="float32", name="probabilities")(logits))


MODELS: dict[str, Callable[[ModelSpec], keras.Model]] = {"small_cnn": small_cnn}


def check_model(name: str) -> None:
    """Raises `OptionError` unless there is a model of that name."""
    if name not in MODELS:
        raise OptionError(unknown("model", name, MODELS))


def build_model(name: str, spec: ModelSpec) -> keras.Model:
    """Builds a model of the table.

    Raises:
      OptionError: there is no model of that name.
    """
    check_model(name)
    return MODELS[name](spec)


def _normalise(images: keras.KerasTensor, spec: ModelSpec) -> keras.KerasTensor:
    # A channel that never varies (all images grey at one level) must not divide by zero.
    variance = [max(std, 1.0) ** 2 for std in spec.std_rgb]
    return keras.layers.Normalization(mean=list(spec.mean_rgb), variance=variance, name="normalise")(images)
