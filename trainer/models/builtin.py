"""Models of the product: a small CNN and ResNet-50, with the beginning and the end that all models share."""

from __future__ import annotations

import math

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
