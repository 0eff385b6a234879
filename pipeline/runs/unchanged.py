"""Answers of runs in which nothing changed: from the record of the last run, without TensorFlow and TFX.

The record names everything that decides the results of a run, files by their size and times. Anything else, and what
cannot be compared so, such as a table of images in other places, takes the long way, on which TFX decides.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from beam_jobs import storage
from beam_jobs.errors import UsageError
from beam_jobs.sources import containers
from pipeline.config import LOCK_NAME, LOG_NAME, PipelineConfig

_PACKAGES = ("beam_jobs", "components", "pipeline", "trainer")
_PRODUCT_ROOT = Path(__file__).parent.parent.parent
_METADATA = (".dist-info", ".egg-info", ".pth")
_RECORD_NAME = "unchanged.json"
_TRACE_NAME = "unchanged.log"  # a line for each run that was answered from the record
_FORMAT = 1
_UNNAMED = (LOCK_NAME, LOG_NAME, _RECORD_NAME, _TRACE_NAME)  # what the record says nothing of
_VARIABLES = ("FEEDLINE_", "TF_", "KERAS_", "XLA_", "CUDA_", "PYTHON")  # prefixes of what may change a training
# Kinds of sources that are one file each; a table names others, which may lie anywhere.
_FILES = ("tar", "zip", "tfrecord")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What `feedline run` prints.

    Attributes:
      text: the summary for a terminal.
      values: the summary in JSON values.
      refusal: why the model was not pushed; empty when it was.
      model_dir: directory of the pushed model.
    """

    text: str
    values: Mapping[str, Any]
    refusal: str
    model_dir: str


class _Unknown(Exception):
    """Something cannot be compared, or changes while it is."""


@functools.cache
def code_version() -> str:
    """Returns the release and a digest of every file of the four packages, such as `0.1.0+3f9c0d1e`."""
    hasher = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((_PRODUCT_ROOT / package).rglob("*")):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            hasher.update(path.relative_to(_PRODUCT_ROOT).as_posix().encode())
            hasher.update(path.read_bytes())
    return f"{metadata.version('feedline')}+{hasher.hexdigest()[:8]}"


def inputs(config: PipelineConfig) -> str:
    """Returns a digest of everything that decides the results of a run, but for modules; empty when it is not known."""
    files = [path for path in (config.schema, config.train.weights) if path and os.path.lexists(path)]
    try:
        values = [
            asdict(config),
            code_version(),
            _environment(),
            _source(config),
            [(path, _stat(path)) for path in files],
        ]
    except (_Unknown, OSError, UsageError):
        return ""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def remember(config: PipelineConfig, before: str, started_ns: int, answer: Answer) -> None:
    """Writes the record of a finished run, unless an input changed meanwhile; call it while the root is locked.

    Args:
      config: configuration of the run.
      before: its `inputs` before the run.
      started_ns: time before the run, in nanoseconds since the epoch.
      answer: what the next run prints if nothing changed.
    """
    with contextlib.suppress(OSError):
        for name in (_RECORD_NAME, _TRACE_NAME):
            storage.remove(os.path.join(config.root, name))
    modules = _user_modules()
    with contextlib.suppress(_Unknown, OSError):
        changed = any(max(_stat(path)[1:3]) >= started_ns for path in modules.values())
        if changed or not before or before != inputs(config):
            return
        record = {
            "format": _FORMAT,
            "inputs": before,
            "modules": {name: [path, *_module(name, path)] for name, path in modules.items()},
            "outputs": _tree(config.root, _UNNAMED),
            "finished": _now(),
            "answer": asdict(answer),
        }
        storage.write_bytes(os.path.join(config.root, _RECORD_NAME), json.dumps(record).encode())


def is_recorded(root: str) -> bool:
    """Returns whether there is a record of the last run in a root."""
    return os.path.isfile(os.path.join(root, _RECORD_NAME))


def find(config: PipelineConfig) -> tuple[Answer, str] | None:
    """Returns the answer of the last run in a root and the time of its end, if nothing changed since; else None.

    Call it while the root is locked. Leaves a trace of this run; see `traces`.
    """
    with contextlib.suppress(_Unknown, OSError, ValueError, KeyError, TypeError):
        record = storage.read_json(os.path.join(config.root, _RECORD_NAME))
        if record["format"] != _FORMAT or record["inputs"] != inputs(config):
            return None
        if any(found != _module(name, path) for name, (path, *found) in record["modules"].items()):
            return None
        if record["outputs"] != _tree(config.root, _UNNAMED):
            return None
        answer = Answer(**record["answer"])
        with open(os.path.join(config.root, _TRACE_NAME), "a", encoding="ascii") as trace:
            trace.write(f"{_now()}\n")
        return answer, str(record["finished"])
    return None


def traces(root: str) -> list[str]:
    """Returns the times, in UTC, of the runs after the last one that found nothing changed."""
    try:
        with open(os.path.join(root, _TRACE_NAME), encoding="ascii", errors="replace") as trace:
            return trace.read().splitlines()
    except OSError:
        return []


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _source(config: PipelineConfig) -> str:
    path = config.resolved_source()
    if storage.is_remote(path):
        raise _Unknown
    if not config.ingest or os.path.isdir(path):
        return _tree(path)
    kind = config.ingest.source_kind if config.ingest.source_kind != "auto" else containers.guess_kind(path)
    if kind == "glob" or (kind in _FILES and containers.is_pattern(path)):
        return _tree(containers.base_directory(path))
    if kind not in _FILES:
        raise _Unknown
    return repr(_stat(path))


def _tree(path: str, without: tuple[str, ...] = ()) -> str:
    """Returns a digest of the names, sizes and times of all files below a directory."""
    hasher = hashlib.sha256()
    for line in _lines(path, "", without):
        hasher.update(line.encode(errors="surrogateescape"))
    return hasher.hexdigest()


def _lines(directory: str, prefix: str, without: tuple[str, ...] = ()) -> Iterator[str]:
    with os.scandir(directory) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.name in without:
            continue
        if entry.is_dir():
            if entry.is_symlink():  # it may lead anywhere, also back
                raise _Unknown
            yield f"{prefix}{entry.name}/\0"
            yield from _lines(entry.path, f"{prefix}{entry.name}/")
        else:
            status = entry.stat()
            yield f"{prefix}{entry.name}\0{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}\0"


def _stat(path: str) -> tuple[int, int, int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


@functools.cache  # before TensorFlow sets variables and TFX adds paths
def _environment() -> list[Any]:
    """Returns the version of Python, the variables, and the names of the files that tell distributions and paths."""
    names = []
    for path in sys.path:
        with contextlib.suppress(OSError):
            names += [f"{path}/{name}" for name in os.listdir(path) if name.endswith(_METADATA)]
    variables = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    return [sys.version, variables, sorted(names)]


def _user_modules() -> dict[str, str]:
    """Returns name -> path of the imported modules that belong neither to a distribution nor to Python.

    Those with two underscores are the started program, and temporary files that AutoGraph generates.
    """
    known = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    known |= {str(_PRODUCT_ROOT / package) for package in _PACKAGES}
    paths = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    return {
        name: os.path.abspath(path)
        for name, path in paths.items()
        if path
        and not name.startswith("__")
        and not any(os.path.abspath(path).startswith(f"{place}/") for place in known)
    }


def _module(name: str, path: str) -> list[Any]:
    """Returns the status of a module, and where Python would find its package now; another file may come first."""
    spec = PathFinder.find_spec(name.partition(".")[0])
    return [*_stat(path), str(spec and spec.origin)]
