"""Models by name. Each takes the uint8 images of the input pipeline and normalises them on the device.

A name is one of `MODELS`, of `keras.applications` in any case (`MobileNetV2`), or the dotted path of a user's function
that takes a `ModelSpec` (`my_package.models.build`). The models of this package use only Keras layers and `keras.ops`,
so they train with every backend of Keras.
"""

from __future__ import annotations

from collections.abc import Callable

import keras

from beam_jobs.common.strings import unknown
from beam_jobs.errors import OptionError
from trainer.models.builtin import (
    IMAGENET,
    ModelSpec,
    application,
    application_names,
    cifar_resnet,
    resnet20,
    small_cnn,
)
from trainer.models.custom import build_custom_model, check_export, find_builder, source_digest
from trainer.training.transfer import load_weights, weights_digest

__all__ = ["MODELS", "ModelSpec", "build_model", "check_export", "check_model", "content_digest"]

MODELS: dict[str, Callable[[ModelSpec], keras.Model]] = {
    "small_cnn": small_cnn,
    "resnet20": resnet20,
    "cifar_resnet": cifar_resnet,
}


def check_model(name: str) -> None:
    """Raises `OptionError` if there is no model of that name."""
    if name in MODELS or name.lower() in application_names():
        return
    if "." not in name:
        raise OptionError(
            unknown("model", name, [*MODELS, *application_names().values(), "or my_package.models.build"])
        )
    find_builder(name)


def content_digest(name: str, weights: str) -> str:
    """Returns digests of the code of a model and of its weights, for keys of caches.

    Args:
      name: name of the model, see the module.
      weights: as in `ModelSpec`.

    Returns:
      the sha256, hex, of the code of a user's model (see `custom.source_digest`), a space, and that of the file of
      weights; each is empty for a model or weights of Feedline or Keras, or if the file is not on this machine.

    Raises:
      OptionError: the file of weights cannot be read.
    """
    is_builtin = name in MODELS or name.lower() in application_names() or "." not in name
    code_digest = "" if is_builtin else source_digest(name)
    return f"{code_digest} {'' if weights in ('', IMAGENET) else weights_digest(weights)}"


def build_model(name: str, spec: ModelSpec) -> keras.Model:
    """Builds a model and loads the weights of the spec.

    Examples:
      >>> from trainer import ModelSpec, build_model
      >>> spec = ModelSpec(side_px=32, classes=2, mean_rgb=(125, 123, 114), std_rgb=(63, 62, 67))
      >>> model = build_model("small_cnn", spec)
      >>> model.input_shape, model.output_shape
      ((None, 32, 32, 3), (None, 2))

    Args:
      name: name of the model, see the module.
      spec: shape of the data, and the initial weights.

    Returns:
      uint8[batch, side, side, 3] -> float32[batch, classes], probabilities.

    Raises:
      OptionError: the name is unknown, the model does not fit the spec, or its weights cannot be loaded.
    """
    check_model(name)
    application_name = "" if name in MODELS else application_names().get(name.lower(), "")
    if spec.weights == IMAGENET and not application_name:
        raise OptionError(
            f"weights is imagenet, which only models of keras.applications have; model is {name}; set weights to a "
            "file, or leave it empty"
        )
    if application_name:
        model = application(application_name, spec)
    elif name in MODELS:
        model = MODELS[name](spec)
    else:
        model = build_custom_model(name, spec)
    if spec.weights not in ("", IMAGENET):
        load_weights(model, spec.weights)
    return model
