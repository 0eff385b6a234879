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
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from beam_jobs import storage
from beam_jobs.common.source_code import code_version, source_digest
from beam_jobs.sources import containers
from pipeline.config import LOCK_NAME, LOG_NAME, PipelineConfig

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
    """A source cannot be compared by the status of its files."""


def inputs(config: PipelineConfig) -> str:
    """Returns a digest of everything that decides the results of a run; empty when that cannot be known."""
    model, files = config.train.model, [path for path in (config.schema, config.train.weights) if path]
    try:
        if any(map(storage.is_remote, (config.root, config.pattern, *files))):
            return ""
        values = [
            *(config.to_json(), code_version(), _environment(), _source(config)),
            source_digest(model) if "." in model else "",
            [(path, _stat(path)) for path in files if os.path.lexists(path)],
        ]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()
    except Exception:  # noqa: BLE001 - in doubt nothing is known, and the run itself reports the error
        return ""


def forget(root: str) -> None:
    """Removes the record and the traces when another run begins."""
    for name in (_RECORD_NAME, _TRACE_NAME):
        with contextlib.suppress(OSError):
            storage.remove(os.path.join(root, name))


def remember(config: PipelineConfig, before: str, answer: Answer) -> None:
    """Writes the record of a finished run, unless an input changed meanwhile; call it while the root is locked.

    Args:
      config: configuration of the run.
      before: its `inputs` before the run.
      answer: what the next run prints if nothing changed.
    """
    if not before or before != inputs(config):
        return
    with contextlib.suppress(Exception):  # without a record, the next run takes the long way
        outputs = _tree(config.root, _UNNAMED)
        record = {"format": _FORMAT, "inputs": before, "outputs": outputs, "finished": _now(), "answer": asdict(answer)}
        storage.write_bytes(os.path.join(config.root, _RECORD_NAME), json.dumps(record).encode())


def is_recorded(root: str) -> bool:
    """Returns whether there is a record of the last run in a root."""
    return os.path.isfile(os.path.join(root, _RECORD_NAME))


def find(config: PipelineConfig) -> tuple[Answer, str] | None:
    """Returns the answer of the last run in a root and the time of its end, if nothing changed since; else None.

    Call it while the root is locked. Leaves a trace of this run; see `traces`.
    """
    with contextlib.suppress(Exception):  # of a damaged record
        record = storage.read_json(os.path.join(config.root, _RECORD_NAME))
        if record["format"] != _FORMAT or record["inputs"] != inputs(config):
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


def _source(config: PipelineConfig) -> list[str]:
    """Returns the path of the source or of the adopted dataset, and the status of its files."""
    path = config.resolved_source()
    if os.path.isdir(path):
        return [path, _tree(path)]
    if not config.ingest:
        raise _Unknown
    kind = config.ingest.source_kind if config.ingest.source_kind != "auto" else containers.guess_kind(path)
    if kind in _FILES:
        return [path, *(f"{found.path} {_stat(found.path)}" for found in containers.find(path))]
    base = os.path.realpath(containers.base_directory(path))
    if kind != "glob" or ".." in path or os.path.commonpath([base, os.path.realpath(config.root)]) == base:
        raise _Unknown
    return [path, _tree(base)]


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


@functools.cache  # at the first call: TensorFlow sets variables, and TFX adds paths
def _environment() -> list[Any]:
    """Returns the version of Python, the variables, and the names of the files that tell distributions and paths."""
    names = []
    for path in sys.path:
        with contextlib.suppress(OSError):
            names += [f"{path}/{name}" for name in os.listdir(path) if name.endswith(_METADATA)]
    variables = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    return [sys.version, variables, sorted(names)]
