"""Models of the recipes: one network for the uint8 images of our pipeline, or for the floats of the naive one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from benchmarks.recipes.training import FROZEN_BASE, HALF_RESNET
from trainer.models import build_model
from trainer.models.builtin import classify, image_input, normalise, probabilities

if TYPE_CHECKING:
    from trainer.models import ModelSpec

_POOL = 4
_LEVELS = (32, 64, 128)
_MOMENTUM = 0.9  # of the running averages


class FusedBatchNormalization(keras.layers.Layer):
    """Batch normalisation in one kernel: an epoch of `half_resnet` takes a fifth less than with the layer of Keras."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Makes scale and offset, and the running averages of mean and variance, float32[channels] each."""
        make = functools.partial(self.add_weight, shape=(shape[-1],))
        self.scale, self.offset = make(initializer="ones", name="scale"), make(initializer="zeros", name="offset")
        self.mean = make(initializer="zeros", trainable=False, name="mean")
        self.variance = make(initializer="ones", trainable=False, name="variance")

    def call(self, features: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Normalises float32[batch, height, width, channels] by the batch in training, else by the averages."""
        averages = () if training else (self.mean.value, self.variance.value)
        normalised, *moments = tf.compat.v1.nn.fused_batch_norm(
            features, self.scale.value, self.offset.value, *averages, is_training=training
        )
        if training:
            for average, moment in zip((self.mean, self.variance), moments, strict=True):
                average.assign(_MOMENTUM * average + (1 - _MOMENTUM) * moment)
        return normalised


def half_resnet(spec: ModelSpec, floats: bool) -> keras.Model:
    """Builds `cifar_resnet` of `trainer.models` with half of its channels: 1.6 million weights, a quarter of the work.

    Args:
      spec: specification of the model.
      floats: whether the inputs are normalised float32 images instead of uint8 images.

    Returns:
      images[batch, side, side, 3] -> float32[batch, classes], probabilities.
    """

    def convolve(features: keras.KerasTensor, channels: int) -> keras.KerasTensor:
        options = {"padding": "same", "use_bias": False, "kernel_initializer": "he_normal"}
        return keras.layers.ReLU()(FusedBatchNormalization()(keras.layers.Conv2D(channels, 3, **options)(features)))

    inputs = keras.Input([spec.side_px, spec.side_px, 3]) if floats else image_input(spec)
    features = convolve(inputs if floats else normalise(inputs, spec), 32)
    for channels, residual in ((64, True), (128, False), (256, True)):
        features = keras.layers.MaxPooling2D(padding="same")(convolve(features, channels))
        if residual:
            features = keras.layers.Add()([features, convolve(convolve(features, channels), channels)])
    features = keras.layers.Rescaling(0.125)(keras.layers.GlobalMaxPooling2D()(features))
    return keras.Model(inputs, probabilities(features, spec))


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
      name: `frozen_base`, `half_resnet`, or a model of `trainer.models`.
      spec: specification of the model.
      floats: whether the inputs are normalised float32 images instead of uint8 images.
      seed: seed of the weights.
    """
    keras.utils.set_random_seed(seed)
    own = {FROZEN_BASE: frozen_base, HALF_RESNET: half_resnet}.get(name)
    if own:
        return own(spec, floats)
    model = build_model(name, spec)
    return keras.Model(model.get_layer("normalise").output, model.output) if floats else model
