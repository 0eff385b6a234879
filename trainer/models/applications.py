"""The networks of `keras.applications` by name, from uint8 to probabilities."""

from __future__ import annotations

import inspect
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import keras

from beam_jobs.errors import OptionError
from trainer.models.builtin import classify, image_input
from trainer.models.spec import ModelSpec

IMAGENET = "imagenet"
# Python waits for ever where packets are dropped without an answer. Long enough for a slow server to begin.
_TIMEOUT_S = 20.0


def names() -> dict[str, str]:
    """Returns the models there are, by their name in lower case: `mobilenetv2` -> `MobileNetV2`."""
    return {name.lower(): name for name, value in vars(keras.applications).items() if inspect.isfunction(value)}


def application(name: str, spec: ModelSpec) -> keras.Model:
    """Builds a model: pixels as that family wants them, its layers without the last, pooling, dropout, classes.

    The mean and deviation of the training split are not used: every family has its own preprocessing, which its
    weights depend on. Some have it among their layers; for those `preprocess_input` changes nothing.

    Args:
      name: as in `keras.applications`.
      spec: what it must fit; `weights` other than `imagenet` are left to the caller.

    Returns:
      uint8[batch, side, side, 3] -> float32[batch, classes], probabilities; its layer that is a model is the base.

    Raises:
      OptionError: the images are too small for it, or its weights cannot be fetched.
    """
    builder: Callable[..., keras.Model] = getattr(keras.applications, name)
    family = getattr(keras.applications, builder.__module__.rpartition(".")[2])
    inputs = image_input(spec)
    base = _base(name, builder, spec)
    # float32 under mixed precision too: 255 levels minus a mean of 103.939 do not fit into half precision.
    pixels = keras.layers.Rescaling(1.0, dtype="float32", name="pixels")(inputs)
    return keras.Model(inputs, classify(base(family.preprocess_input(pixels)), spec))


def _base(name: str, builder: Callable[..., keras.Model], spec: ModelSpec) -> keras.Model:
    pretrained = spec.weights == IMAGENET
    try:
        with _network_timeout(_TIMEOUT_S):
            return builder(
                include_top=False,
                weights=IMAGENET if pretrained else None,
                input_shape=(spec.side_px, spec.side_px, 3),
            )
    except ValueError as error:
        raise OptionError(f"{name} does not take images of {spec.side_px} pixels: {_first_line(error)}") from error
    except Exception as error:  # Keras raises a bare Exception for a download that fails
        if not pretrained:
            raise
        raise OptionError(_not_fetched(name, error)) from error


def _not_fetched(name: str, error: Exception) -> str:
    address = re.search(r"https?://\S+?(?=:? |$)", str(error))
    file = address[0] if address else "its file without top from the Keras project"
    return (
        f"the imagenet weights of {name} cannot be fetched ({_first_line(error)}); fetch {file} on a machine with a "
        "network and give the path of the file as the weights"
    )


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


@contextmanager
def _network_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
