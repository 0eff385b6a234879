"""Models of Feedline and Keras: a small CNN, ResNets, and the networks of `keras.applications` by name.

All models take uint8 images and return probabilities, and have the same first and last layers. A `ModelSpec` describes
the data.
"""

from __future__ import annotations

import inspect
import math
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import keras

from beam_jobs.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The shape and the statistics of the data of a model, and its initial weights.

    Examples:
      >>> from trainer import ModelSpec
      >>> ModelSpec(side_px=32, classes=2, mean_rgb=(125, 123, 114), std_rgb=(63, 62, 67)).weights
      ''

    Attributes:
      side_px: height and width of the images.
      classes: number of classes.
      mean_rgb: mean of each channel of the training split, 0-255.
      std_rgb: standard deviation of each channel of the training split, 0-255.
      multi_label: whether an image may have several classes or none, so that the model returns independent
        probabilities.
      weights: initial weights: a file (`.weights.h5`, `.keras` or `.h5`, see `transfer.load_weights`), `imagenet`
        for a model of `keras.applications`, or empty for random weights.
    """

    side_px: int
    classes: int
    mean_rgb: tuple[float, ...]
    std_rgb: tuple[float, ...]
    multi_label: bool = False
    weights: str = ""


def image_input(spec: ModelSpec) -> keras.KerasTensor:
    """Returns the input of a model: uint8[batch, side, side, 3], as the input pipeline delivers it."""
    return keras.Input([spec.side_px, spec.side_px, 3], dtype="uint8", name="image")


def normalise(images: keras.KerasTensor, spec: ModelSpec) -> keras.KerasTensor:
    """Normalises each channel to mean 0 and deviation 1 with the statistics of the training split."""
    # The deviation is at least 1, because a constant channel has 0.
    variance = [max(std, 1.0) ** 2 for std in spec.std_rgb]
    return keras.layers.Normalization(mean=list(spec.mean_rgb), variance=variance, name="normalise")(images)


def classify(features: keras.KerasTensor, spec: ModelSpec) -> keras.KerasTensor:
    """Converts features[batch, height, width, channels] to probabilities: pooling, dropout, `logits`, activation."""
    features = keras.layers.GlobalAveragePooling2D()(features)
    features = keras.layers.Dropout(0.2)(features)
    return probabilities(features, spec)


def probabilities(features: keras.KerasTensor, spec: ModelSpec) -> keras.KerasTensor:
    """Converts features[batch, channels] to probabilities float32[batch, classes].

    The sum over the classes is 1; with several labels per image, the probabilities are independent.
    """
    logits = keras.layers.Dense(spec.classes, name="logits")(features)
    activation = "sigmoid" if spec.multi_label else "softmax"
    # float32 even under mixed precision: half precision loses small probabilities.
    return keras.layers.Activation(activation, dtype="float32", name="probabilities")(logits)


LARGE_PX = 128  # side from which `small_cnn` has a stride of 2; a slightly smaller side takes as long as twice the side


def small_cnn(spec: ModelSpec) -> keras.Model:
    """Builds a network of 3x3 convolutions and pooling down to 4 pixels, which trains on 1,000 images in seconds.

    From 128 pixels on, the first convolution has a stride of 2, for a quarter of the arithmetic: 213 instead of 881
    million multiplications for an image of 224 pixels.

    Args:
      spec: shape of the data.

    Returns:
      uint8[batch, side, side, 3] -> float32[batch, classes], probabilities.
    """
    inputs = image_input(spec)
    features = normalise(inputs, spec)
    is_large = spec.side_px >= LARGE_PX
    for level in range(max(1, round(math.log2(spec.side_px / 4)) - is_large)):
        stride = 2 if is_large and level == 0 else 1
        features = keras.layers.Conv2D(min(32 << level, 256), 3, stride, "same", use_bias=False)(features)
        features = keras.layers.BatchNormalization(momentum=0.9)(features)
        features = keras.layers.ReLU()(features)
        features = keras.layers.MaxPooling2D()(features)
    return keras.Model(inputs, classify(features, spec))


def resnet20(spec: ModelSpec) -> keras.Model:
    """Builds the CIFAR network (20 layers, 0.27 million weights) of He et al., "Deep Residual Learning" (2015), 4.2.

    Three stages of three blocks with 16, 32 and 64 channels. Where a stage halves the image, a strided 1x1 convolution
    replaces the padded shortcut of the paper ("option B").

    Returns:
      uint8[batch, side, side, 3] -> float32[batch, classes], probabilities.
    """
    inputs = image_input(spec)
    features = _convolve(normalise(inputs, spec), 16)
    for stage, channels in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage and not block else 1
            shortcut = features if stride == 1 else _convolve(features, channels, 1, stride, has_relu=False)
            features = _convolve(_convolve(features, channels, 3, stride), channels, has_relu=False)
            features = keras.layers.ReLU()(keras.layers.Add()([features, shortcut]))
    return keras.Model(inputs, classify(features, spec))


def cifar_resnet(spec: ModelSpec) -> keras.Model:
    """Builds the nine-layer residual network of 6.6 million weights of D. Page, "How to train your ResNet" (2018).

    It learns CIFAR-10 in tens of epochs, where `resnet20` takes hundreds, and needs ten times the arithmetic.

    Returns:
      uint8[batch, side, side, 3] -> float32[batch, classes], probabilities.
    """
    inputs = image_input(spec)
    features = _convolve(normalise(inputs, spec), 64)
    for channels, has_residual in ((128, True), (256, False), (512, True)):
        features = _convolve(features, channels)
        features = keras.layers.MaxPooling2D(padding="same")(features)
        if has_residual:
            features = keras.layers.Add()([features, _convolve(_convolve(features, channels), channels)])
    features = keras.layers.GlobalMaxPooling2D()(features)
    # Page scales the logits by 1/8, because a maximum over many positions is large. The next layer is linear, so the
    # features can be scaled instead.
    return keras.Model(inputs, probabilities(keras.layers.Rescaling(0.125)(features), spec))


def _convolve(
    features: keras.KerasTensor, channels: int, size: int = 3, stride: int = 1, has_relu: bool = True
) -> keras.KerasTensor:
    convolution = keras.layers.Conv2D(channels, size, stride, "same", use_bias=False, kernel_initializer="he_normal")
    features = keras.layers.BatchNormalization(momentum=0.9)(convolution(features))
    return keras.layers.ReLU()(features) if has_relu else features


IMAGENET = "imagenet"
_TIMEOUT_S = 20.0  # enough for a slow server; Python's default is to wait without end for packets that are dropped


def application_names() -> dict[str, str]:
    """Returns name in lower case -> name of every model of `keras.applications`: `mobilenetv2` -> `MobileNetV2`."""
    return {name.lower(): name for name, value in vars(keras.applications).items() if inspect.isfunction(value)}


def application(name: str, spec: ModelSpec) -> keras.Model:
    """Builds a model of `keras.applications`: preprocessing, the layers without the classifier, `classify`.

    The mean and deviation of the training split are not used: the weights of each family need its own preprocessing. In
    some families the preprocessing is a layer, and `preprocess_input` changes nothing.

    Args:
      name: name in `keras.applications`.
      spec: shape of the data; of `weights`, only `imagenet` has an effect.

    Returns:
      uint8[batch, side, side, 3] -> float32[batch, classes], probabilities; its base is a nested model.

    Raises:
      OptionError: the images are too small for the model, or its weights cannot be fetched.
    """
    builder: Callable[..., keras.Model] = getattr(keras.applications, name)
    family = getattr(keras.applications, builder.__module__.rpartition(".")[2])
    inputs = image_input(spec)
    base = _application_base(name, builder, spec)
    # float32 under mixed precision too: 255 levels minus a mean of 103.939 do not fit into half precision.
    pixels = keras.layers.Rescaling(1.0, dtype="float32", name="pixels")(inputs)
    return keras.Model(inputs, classify(base(family.preprocess_input(pixels)), spec))


def _application_base(name: str, builder: Callable[..., keras.Model], spec: ModelSpec) -> keras.Model:
    weights = IMAGENET if spec.weights == IMAGENET else None
    try:
        with _network_timeout(_TIMEOUT_S):
            return builder(include_top=False, weights=weights, input_shape=(spec.side_px, spec.side_px, 3))
    except ValueError as error:
        raise OptionError(f"{name} does not take images of {spec.side_px} pixels: {_first_line(error)}") from error
    except Exception as error:  # Keras raises a bare Exception for a download that fails
        if not weights:
            raise
        raise OptionError(_download_message(name, error)) from error


def _download_message(name: str, error: Exception) -> str:
    url_match = re.search(r"https?://\S+?(?=:? |$)", str(error))
    source = url_match[0] if url_match else "its weights file without top from the Keras project"
    return (
        f"the imagenet weights of {name} cannot be fetched ({_first_line(error)}); fetch {source} on a machine with a "
        "network and give the path of the file as the weights"
    )


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


@contextmanager
def _network_timeout(seconds: float) -> Iterator[None]:
    previous_s = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(previous_s)
