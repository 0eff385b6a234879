"""Residual networks for small images, 16 to 64 pixels."""

from __future__ import annotations

import keras

from trainer.models.layers import classify, image_input, normalise, probabilities
from trainer.models.spec import ModelSpec


def resnet20(spec: ModelSpec) -> keras.Model:
    """The CIFAR network of 20 layers and 0.27 million weights of He et al., "Deep Residual Learning" (2015), 4.2.

    Three stages of three blocks with 16, 32 and 64 channels. Where a stage halves the image, a strided 1x1 convolution
    takes the place of the padded shortcut of the paper ("option B").

    Returns:
      uint8[batch, side, side, 3] -> float32[batch, classes], probabilities.
    """
    inputs = image_input(spec)
    features = _convolve(normalise(inputs, spec), 16)
    for stage, channels in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage and not block else 1
            shortcut = features if stride == 1 else _convolve(features, channels, 1, stride, relu=False)
            features = _convolve(_convolve(features, channels, 3, stride), channels, relu=False)
            features = keras.layers.ReLU()(keras.layers.Add()([features, shortcut]))
    return keras.Model(inputs, classify(features, spec))


def cifar_resnet(spec: ModelSpec) -> keras.Model:
    """The nine-layer residual network of 6.6 million weights of D. Page, "How to train your ResNet" (2018).

    It learns CIFAR-10 in tens of epochs, where `resnet20` takes hundreds, at ten times the arithmetic.

    Returns:
      uint8[batch, side, side, 3] -> float32[batch, classes], probabilities.
    """
    inputs = image_input(spec)
    features = _convolve(normalise(inputs, spec), 64)
    for channels, residual in ((128, True), (256, False), (512, True)):
        features = _convolve(features, channels)
        features = keras.layers.MaxPooling2D(padding="same")(features)
        if residual:
            features = keras.layers.Add()([features, _convolve(_convolve(features, channels), channels)])
    features = keras.layers.GlobalMaxPooling2D()(features)
    # Page scales the logits by 1/8: after a maximum over many positions the features are large. The layer after it is
    # linear, so scaling the features is the same.
    return keras.Model(inputs, probabilities(keras.layers.Rescaling(0.125)(features), spec))


def _convolve(
    features: keras.KerasTensor, channels: int, size: int = 3, stride: int = 1, relu: bool = True
) -> keras.KerasTensor:
    convolution = keras.layers.Conv2D(
        channels, size, stride, padding="same", use_bias=False, kernel_initializer="he_normal"
    )
    features = keras.layers.BatchNormalization(momentum=0.9)(convolution(features))
    return keras.layers.ReLU()(features) if relu else features
