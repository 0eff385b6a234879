"""Models of the user's own, by the dotted path of the function that builds them."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import keras
import numpy as np

from beam_jobs.errors import OptionError
from trainer.models.spec import ModelSpec


def find_builder(path: str) -> Callable[[ModelSpec], keras.Model]:
    """Returns the function that a dotted path such as `my_package.models.build` names.

    Raises:
      OptionError: there is none, or its module fails to import.
    """
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the module does when it is imported
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name and module_name.startswith(error.name):
            hint = "; install it, or name the folder that holds it in PYTHONPATH"
        raise OptionError(f"model {path!r}: {module_name} cannot be imported: {error}{hint}") from error
    builder = getattr(module, name, None)
    if not callable(builder):
        raise OptionError(f"model {path!r}: {module_name} holds no function {name}; it must take a ModelSpec")
    return builder


def own_model(path: str, spec: ModelSpec) -> keras.Model:
    """Builds the model and shows it one black image, so that what does not fit is known before training.

    Raises:
      OptionError: it is not a model that fits the spec.
    """
    model = find_builder(path)(spec)
    if not isinstance(model, keras.Model):
        raise OptionError(f"model {path!r}: it returned {type(model).__name__}; it must return a keras.Model")
    try:
        shape = tuple(model(np.zeros([1, spec.side_px, spec.side_px, 3], np.uint8)).shape)
    except Exception as error:  # of any layer of theirs
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OptionError(
            f"model {path!r} does not take uint8[1, {spec.side_px}, {spec.side_px}, 3]: {line}"
        ) from error
    if shape != (1, spec.classes):
        raise OptionError(f"model {path!r} turns 1 image into the shape {shape}; it must be (1, {spec.classes})")
    return model
