"""Models of the recipes: one network for the uint8 images of our pipeline, or for the floats of the naive one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from benchmarks.recipes.training import FROZEN_BASE
from trainer.models import build_model
from trainer.models.builtin import classify, image_input, normalise

if TYPE_CHECKING:
    from trainer.models import ModelSpec

_POOL = 4
_LEVELS = (32, 64, 128)


def frozen_base(spec: ModelSpec, floats: bool) -> keras.Model:
    """Builds a frozen base with a trainable classifier: transfer learning in which the cost of the input is measurable.

    The base is small and has random weights, because only time is measured: pretrained weights are not in every package
    index, and on a machine of two cores a full-size base would take 30 times as long as the input.

    Args:
      spec: specification of the model.
      floats: whether the inputs are normalised float32 images instead of uint8 images.

    Returns:
      images[batch, side, side, 3] -> float32[batch, classes], probabilities.
    """
    inputs = keras.Input([spec.side_px, spec.side_px, 3]) if floats else image_input(spec)
    features = keras.layers.AveragePooling2D(_POOL)(keras.ops.cast(inputs, "float32"))
    # Pooling and normalisation commute, and after pooling a sixteenth of the values remains.
    features = features if floats else normalise(features, spec)
    for channels in _LEVELS:
        convolution = keras.layers.Conv2D(channels, 3, 2, padding="same", activation="relu", trainable=False)
        features = convolution(features)
    return keras.Model(inputs, classify(features, spec))


def make_model(name: str, spec: ModelSpec, floats: bool, seed: int) -> keras.Model:
    """Builds a model; equal seeds give equal initial weights for both kinds of inputs.

    Args:
      name: `frozen_base`, or a model of `trainer.models`.
      spec: specification of the model.
      floats: whether the inputs are normalised float32 images instead of uint8 images.
      seed: seed of the weights.
    """
    keras.utils.set_random_seed(seed)
    if name == FROZEN_BASE:
        return frozen_base(spec, floats)
    model = build_model(name, spec)
    return keras.Model(model.get_layer("normalise").output, model.output) if floats else model
