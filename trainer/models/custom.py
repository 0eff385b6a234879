"""Custom models, named by the dotted path of the function that builds them."""

from __future__ import annotations

import ast
import hashlib
import importlib
import re
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
from tensorflow.core.protobuf import saved_model_pb2

from beam_jobs.errors import FeedlineError, OptionError
from trainer.models.builtin import ModelSpec

_FEEDLINE = frozenset({"beam_jobs", "trainer", "components", "pipeline"})  # the code digest of the product covers these
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_imported: dict[str, str] = {}  # dotted path -> `source_digest` at the first import in this process
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MAX_CHARACTERS = 300  # of a message of Keras, which may list all arguments of a layer
_PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc", "NumpyFunction"})


def find_builder(path: str) -> Callable[[ModelSpec], keras.Model]:
    """Returns the function that a dotted path such as `my_package.models.build` names.

    Raises:
      OptionError: the function does not exist, its module cannot be imported, or its source has changed since then.
    """
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the import executes code of the user
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name and module_name.startswith(error.name):
            hint = "; install it, or name the folder that holds it in PYTHONPATH"
        raise OptionError(f"model {path!r}: {module_name} cannot be imported: {error}{hint}") from error
    # A process imports a module once: a second training would run the old code under the digest of the new.
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
    except Exception as error:  # of any layer of the user
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OptionError(
            f"model {path!r} does not take uint8[1, {spec.side_px}, {spec.side_px}, 3]: {line}"
        ) from error
    if shape != (1, spec.classes):
        raise OptionError(f"model {path!r} turns 1 image into the shape {shape}; it must be (1, {spec.classes})")
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
        except Exception as error:  # of any layer of the user
            plain = " ".join(_COLOURS.sub("", str(error)).split())
            raise OptionError(f"model {path!r} cannot be exported: {plain[:_MAX_CHARACTERS]}") from error
        saved = saved_model_pb2.SavedModel.FromString(Path(folder, "saved_model.pb").read_bytes())
    ops = (
        node.op for graph in saved.meta_graphs for part in graph.graph_def.library.function for node in part.node_def
    )
    if python_op := next(filter(_PYTHON_OPS.__contains__, ops), ""):
        raise OptionError(
            f"model {path!r} cannot be exported: it has the op {python_op}, which calls Python and runs only in this "
            "process; write that layer with ops of Keras or TensorFlow"
        )


def source_digest(path: str) -> str:
    """Returns the sha256, hex, of the code of a dotted path: its module and the local modules that this imports.

    Local modules are in the package of the path, or outside the standard library and installed packages. Imports are
    parsed from the source, which is not executed. The digest does not cover modules that are imported by a computed
    name, and files that the code opens.

    Args:
      path: dotted path such as `my_package.models.build`.

    Returns:
      the digest; empty if the source of the module is not on this machine.
    """
    importlib.invalidate_caches()
    module = path.rpartition(".")[0]
    own_package = module.partition(".")[0]
    sources: dict[str, bytes] = {}
    queue = [module]
    while queue:
        for name, file in _source_files(queue.pop()).items():
            if name in sources or not (name.partition(".")[0] == own_package or _is_local(name, file)):
                continue
            sources[name] = file.read_bytes()
            queue += _imports(sources[name], name if file.stem == "__init__" else name.rpartition(".")[0])
    hasher = hashlib.sha256()
    for name in sorted(sources):
        hasher.update(f"{name} {len(sources[name])} ".encode() + sources[name])
    return hasher.hexdigest() if sources else ""


def _source_files(module: str) -> dict[str, Path]:
    """Returns the source files of a module and of its parent packages, by module name."""
    files = {}
    search_path = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        # `importlib.util.find_spec` would execute the parent packages.
        specs = (finder.find_spec(name, search_path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next(filter(None, specs), None)
        if spec is None:
            break
        if spec.origin and spec.origin.endswith(".py"):
            files[name] = Path(spec.origin)
        search_path = spec.submodule_search_locations
        if search_path is None:
            break
    return files


def _is_local(name: str, file: Path) -> bool:
    if name.partition(".")[0] in _FEEDLINE or _INSTALLED.intersection(file.parts):
        return False
    return not file.is_relative_to(sysconfig.get_path("stdlib"))


def _imports(source: bytes, package: str) -> Iterator[str]:
    """Yields the names that a source text imports; for `from a import b` this is `a.b`, which may be no module."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):  # the import of the module will raise it
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: max(0, len(package.split(".")) - node.level + 1)] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names if base)
