"""Models of the user's own, by the dotted path of the function that builds them."""

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

_FEEDLINE = frozenset({"beam_jobs", "trainer", "components", "pipeline"})  # `code` of the cache key covers these
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_imported: dict[str, str] = {}  # dotted path -> `source_digest` when this process imported it first
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MOST_LETTERS = 300  # of a message of Keras, which may list all arguments of a layer
_PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc", "NumpyFunction"})


def find_builder(path: str) -> Callable[[ModelSpec], keras.Model]:
    """Returns the function that a dotted path such as `my_package.models.build` names.

    Raises:
      OptionError: there is none, its module fails to import, or its source has changed since it was imported.
    """
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the module does when it is imported
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name and module_name.startswith(error.name):
            hint = "; install it, or name the folder that holds it in PYTHONPATH"
        raise OptionError(f"model {path!r}: {module_name} cannot be imported: {error}{hint}") from error
    # A process imports a module once: a second run of it would train the old code under the digest of the new.
    if _imported.setdefault(path, digest := source_digest(path)) != digest:
        raise OptionError(
            f"model {path!r}: its source has changed since this process imported it; start the command, or the kernel "
            "of the notebook, again"
        )
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


def check_export(path: str, export: Callable[..., None], model: keras.Model) -> None:
    """Exports a model of the user's on trial, so that what no process can load is known before it is trained.

    Args:
      path: of the model; one by a name of the table, which has no dot, is known to be exportable.
      export: (model, path=directory) -> None.
      model: as it was built.

    Raises:
      OptionError: it cannot be exported.
    """
    if "." not in path:
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            export(model, path=folder)
        except FeedlineError:
            raise
        except Exception as error:  # of any layer of theirs
            plain = " ".join(_COLOURS.sub("", str(error)).split())
            raise OptionError(f"model {path!r} cannot be exported: {plain[:_MOST_LETTERS]}") from error
        saved = saved_model_pb2.SavedModel.FromString(Path(folder, "saved_model.pb").read_bytes())
    nodes = (
        node.op for graph in saved.meta_graphs for part in graph.graph_def.library.function for node in part.node_def
    )
    if found := next(filter(_PYTHON_OPS.__contains__, nodes), ""):
        raise OptionError(
            f"model {path!r} cannot be exported: it holds the op {found}, which calls Python and runs in this process "
            "alone; write that layer with ops of Keras or TensorFlow"
        )


def source_digest(path: str) -> str:
    """Returns the sha256, hex, of the code behind a dotted path: its module and the local modules that this imports.

    Local modules lie outside of the standard library and of installed packages, or in the package of the path itself.
    Imports are read from the text, in any place of it; nothing is executed. A module that is imported by a computed
    name, and a file that the code opens, are not found.

    Args:
      path: such as `my_package.models.build`.

    Returns:
      the digest; empty where no source of the module is found on this machine.
    """
    importlib.invalidate_caches()
    module = path.rpartition(".")[0]
    own_package = module.partition(".")[0]
    sources: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        for name, file in _source_files(waiting.pop()).items():
            if name in sources or not (name.partition(".")[0] == own_package or _is_local(name, file)):
                continue
            sources[name] = file.read_bytes()
            waiting += _imports(sources[name], name if file.stem == "__init__" else name.rpartition(".")[0])
    hasher = hashlib.sha256()
    for name in sorted(sources):
        hasher.update(f"{name} {len(sources[name])} ".encode() + sources[name])
    return hasher.hexdigest() if sources else ""


def _source_files(module: str) -> dict[str, Path]:
    """Returns the packages around a module and the module itself -> source file, as far as there are such."""
    files = {}
    places = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        # `importlib.util.find_spec` would execute the packages around the module.
        specs = (finder.find_spec(name, places) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next(filter(None, specs), None)
        if spec is None:
            break
        if spec.origin and spec.origin.endswith(".py"):
            files[name] = Path(spec.origin)
        places = spec.submodule_search_locations
        if places is None:
            break
    return files


def _is_local(name: str, file: Path) -> bool:
    if name.partition(".")[0] in _FEEDLINE or _INSTALLED.intersection(file.parts):
        return False
    return not file.is_relative_to(sysconfig.get_path("stdlib"))


def _imports(source: bytes, package: str) -> Iterator[str]:
    """Yields what a source text imports; of `from a import b` it is `a.b`, which need not be a module."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):  # the import itself gives the reason
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: max(0, len(package.split(".")) - node.level + 1)] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names if base)
