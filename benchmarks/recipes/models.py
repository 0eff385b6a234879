"""Models of the recipes: one network, that takes the bytes of our pipeline or the floats of the naive one."""

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
    """A base that does not learn, under a classifier that does: transfer learning at a cost that leaves input visible.

    The base is small and its weights random, for what is measured is time: pretrained weights are not in every package
    index, and a base of full size would take 30 times as long as the input on the cores of this machine.

    Args:
      spec: what it must fit.
      floats: take float32 images that are normalised already, instead of uint8 ones.

    Returns:
      images[batch, side, side, 3] -> float32[batch, classes], probabilities.
    """
    inputs = keras.Input([spec.side_px, spec.side_px, 3]) if floats else image_input(spec)
    features = keras.layers.AveragePooling2D(_POOL)(keras.ops.cast(inputs, "float32"))
    # Pooling and normalising commute, and there is a sixteenth to normalise.
    features = features if floats else normalise(features, spec)
    for channels in _LEVELS:
        convolution = keras.layers.Conv2D(channels, 3, 2, padding="same", activation="relu", trainable=False)
        features = convolution(features)
    return keras.Model(inputs, classify(features, spec))


def make_model(name: str, spec: ModelSpec, floats: bool, seed: int) -> keras.Model:
    """Builds a model that is compiled; equal seeds start from equal weights, whatever it takes.

    Args:
      name: `frozen_base`, or a model of `trainer.models`.
      spec: what it must fit.
      floats: take float32 images that are normalised already, instead of uint8 ones.
      seed: of its weights.
    """
    keras.utils.set_random_seed(seed)
    if name == FROZEN_BASE:
        return frozen_base(spec, floats)
    model = build_model(name, spec)
    return keras.Model(model.get_layer("normalise").output, model.output) if floats else model
