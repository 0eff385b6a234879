"""The beginning and the end that the models share."""

from __future__ import annotations

import keras

from trainer.models.spec import ModelSpec


def image_input(spec: ModelSpec) -> keras.KerasTensor:
    """Returns the input of a model: uint8[batch, side, side, 3], as the input pipeline delivers it."""
    return keras.Input([spec.side_px, spec.side_px, 3], dtype="uint8", name="image")


def normalise(images: keras.KerasTensor, spec: ModelSpec) -> keras.KerasTensor:
    """Brings each channel to mean 0 and deviation 1, by the statistics of the training split."""
    # A channel that never varies (all images grey at one level) must not divide by zero.
    variance = [max(std, 1.0) ** 2 for std in spec.std_rgb]
    return keras.layers.Normalization(mean=list(spec.mean_rgb), variance=variance, name="normalise")(images)


def classify(features: keras.KerasTensor, spec: ModelSpec) -> keras.KerasTensor:
    """Turns features[batch, height, width, channels] into probabilities: pooling, dropout, `logits`, activation."""
    features = keras.layers.GlobalAveragePooling2D()(features)
    features = keras.layers.Dropout(0.2)(features)
    return probabilities(features, spec)


def probabilities(features: keras.KerasTensor, spec: ModelSpec) -> keras.KerasTensor:
    """Turns features[batch, channels] into float32[batch, classes].

    They add up to 1 over the classes; with several labels an image, each is the probability of that class alone.
    """
    logits = keras.layers.Dense(spec.classes, name="logits")(features)
    activation = "sigmoid" if spec.multi_label else "softmax"
    # float32 even under mixed precision: half precision loses small probabilities.
    return keras.layers.Activation(activation, dtype="float32", name="probabilities")(logits)
