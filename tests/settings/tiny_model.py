"""A model of the smallest kind, as a user would name one of their own."""

from __future__ import annotations

import keras

from trainer.models import ModelSpec


def build(spec: ModelSpec) -> keras.Model:
    """uint8[batch, side, side, 3] -> float32[batch, classes]; a convolution, batch normalisation and a dense layer."""
    inputs = keras.Input([spec.side_px, spec.side_px, 3], dtype="uint8")
    features = keras.layers.Rescaling(1 / 255)(inputs)
    features = keras.layers.Conv2D(4, 3, strides=2, name="first")(features)
    features = keras.layers.Conv2D(4, 1, activation="relu", name="second")(features)
    features = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(
        inputs, keras.layers.Dense(spec.classes, activation="softmax", dtype="float32", name="head")(features)
    )
