"""Custom models, named by the dotted path of the function that builds them."""

from __future__ import annotations

import importlib
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
from tensorflow.core.protobuf import saved_model_pb2

from beam_jobs.common.source_code import source_digest
from beam_jobs.errors import FeedlineError, OptionError
from trainer.models.builtin import ModelSpec

_imported: dict[str, str] = {}  # dotted path -> `source_digest` at the first import in this process
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MAX_CHARACTERS = 300  # shown of a message of Keras, which may list all arguments of a layer
_PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc", "NumpyFunction"})


def find_builder(path: str) -> Callable[[ModelSpec], keras.Model]:
    """Returns the function that a dotted path such as `my_package.models.build` names.

    Raises:
      OptionError: the function does not exist, its module cannot be imported, or has changed since its import.
    """
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the import executes code of the user
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name and module_name.startswith(error.name):
            hint = "; install it, or add its folder to PYTHONPATH"
        raise OptionError(f"model {path!r}: {module_name} cannot be imported: {error}{hint}") from error
    # A process imports a module once, so a second training would use the old code with the digest of the new code.
    if _imported.setdefault(path, digest := source_digest(path)) != digest:
        raise OptionError(
            f"model {path!r}: its source has changed since this process imported it; start the command, or the kernel "
            "of the notebook, again"
        )
    builder = getattr(module, name, None)
    if not callable(builder):
        raise OptionError(f"model {path!r}: {module_name} has no function {name}; define one that takes a ModelSpec")
    return builder


def build_custom_model(path: str, spec: ModelSpec) -> keras.Model:
    """Builds the model and runs it on one black image, to check the shapes of input and output before training.

    Raises:
      OptionError: the result is no Keras model, or does not fit the spec.
    """
    model = find_builder(path)(spec)
    if not isinstance(model, keras.Model):
        raise OptionError(f"model {path!r}: it returned {type(model).__name__}; it must return a keras.Model")
    try:
        shape = tuple(model(np.zeros([1, spec.side_px, spec.side_px, 3], np.uint8)).shape)
    except Exception as error:  # from any layer of the user
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OptionError(
            f"model {path!r} does not take uint8[1, {spec.side_px}, {spec.side_px}, 3]: {line}"
        ) from error
    if shape != (1, spec.classes):
        raise OptionError(f"model {path!r} returns the shape {shape} for 1 image; it must be (1, {spec.classes})")
    return model


def check_export(path: str, export: Callable[..., None], model: keras.Model) -> None:
    """Checks before the training that other processes can load the export of a custom model, by exporting it.

    Args:
      path: dotted path of the model; a name without a dot needs no check.
      export: (model, path=directory) -> None.
      model: untrained model.

    Raises:
      OptionError: the model cannot be exported, or its export calls Python.
    """
    if "." not in path:
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            export(model, path=folder)
        except FeedlineError:
            raise
        except Exception as error:  # from any layer of the user
            text = " ".join(_COLOURS.sub("", str(error)).split())
            raise OptionError(f"model {path!r} cannot be exported: {text[:_MAX_CHARACTERS]}") from error
        saved_model = saved_model_pb2.SavedModel.FromString(Path(folder, "saved_model.pb").read_bytes())
    libraries = (graph.graph_def.library for graph in saved_model.meta_graphs)
    ops = (node.op for library in libraries for function in library.function for node in function.node_def)
    if python_op := next(filter(_PYTHON_OPS.__contains__, ops), ""):
        raise OptionError(
            f"model {path!r} cannot be exported: it has the op {python_op}, which calls Python and runs only in this "
            "process; write that layer with ops of Keras or TensorFlow"
        )
