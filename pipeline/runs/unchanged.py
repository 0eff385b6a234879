"""Repeats the output of the last run if nothing changed, from a record, without the import of TensorFlow and TFX.

The record contains everything that determines the results of a run, with files as their size and times. After a change,
or if the source cannot be recorded, as with a table of images elsewhere, the pipeline runs, and TFX uses its cache.
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

_METADATA_SUFFIXES = (".dist-info", ".egg-info", ".pth")
_RECORD_NAME = "unchanged.json"
_TRACE_NAME = "unchanged.log"  # a line for each run that only printed the recorded output
_FORMAT = 1
_EXCLUDED_NAMES = (LOCK_NAME, LOG_NAME, _RECORD_NAME, _TRACE_NAME)  # files that are not recorded
_VARIABLE_PREFIXES = ("FEEDLINE_", "TF_", "KERAS_", "XLA_", "CUDA_", "PYTHON")  # of variables that affect training
# Kinds of sources that consist of the given files; a table refers to other files, in any directory.
_FILE_KINDS = ("tar", "zip", "tfrecord")


@dataclass(frozen=True, kw_only=True)
class RunOutput:
    """The output of `feedline run`.

    Attributes:
      text: the summary for a terminal.
      values: the summary in JSON values.
      refusal: reason why the model was not pushed; empty when it was pushed.
      model_dir: directory of the pushed model.
    """

    text: str
    values: Mapping[str, Any]
    refusal: str
    model_dir: str


class _CannotCompare(Exception):
    """A source cannot be compared by the status of its files."""


def input_digest(config: PipelineConfig) -> str:
    """Returns a digest of everything that determines the results of a run; empty when it cannot be computed."""
    model, files = config.train.model, [path for path in (config.schema, config.train.weights) if path]
    try:
        if any(map(storage.is_remote, (config.root, config.pattern, *files))):
            return ""
        values = [
            *(config.to_json(), code_version(), _environment(), _source_status(config)),
            source_digest(model) if "." in model else "",
            [(path, _file_status(path)) for path in files if os.path.lexists(path)],
        ]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()
    except Exception:  # noqa: BLE001 - then the components are started, and report the error
        return ""


def remove_record(root: str) -> None:
    """Removes the record and the trace file, because another run begins."""
    for name in (_RECORD_NAME, _TRACE_NAME):
        with contextlib.suppress(OSError):
            storage.remove(os.path.join(root, name))


def write_record(config: PipelineConfig, digest_before: str, output: RunOutput) -> None:
    """Writes the record of a finished run, unless an input changed during the run; call it while the root is locked.

    Args:
      config: configuration of the run.
      digest_before: value of `input_digest` before the run.
      output: output of the next run if nothing changes.
    """
    if not digest_before or digest_before != input_digest(config):
        return
    with contextlib.suppress(Exception):  # without a record, the next run starts all components
        digests = {"inputs": digest_before, "outputs": _tree_digest(config.root, _EXCLUDED_NAMES)}
        record = {"format": _FORMAT, **digests, "finished": _now(), "answer": asdict(output)}
        storage.write_bytes(os.path.join(config.root, _RECORD_NAME), json.dumps(record).encode())


def is_recorded(root: str) -> bool:
    """Returns whether a root contains a record of the last run."""
    return os.path.isfile(os.path.join(root, _RECORD_NAME))


def find(config: PipelineConfig) -> tuple[RunOutput, str] | None:
    """Returns the output of the last run in a root and the time of its end, if nothing changed since; else None.

    Call it while the root is locked. Adds the time of this call to the trace file; see `traces`.
    """
    with contextlib.suppress(Exception):  # a damaged record is ignored
        record = storage.read_json(os.path.join(config.root, _RECORD_NAME))
        if record["format"] != _FORMAT or record["inputs"] != input_digest(config):
            return None
        if record["outputs"] != _tree_digest(config.root, _EXCLUDED_NAMES):
            return None
        output = RunOutput(**record["answer"])
        with open(os.path.join(config.root, _TRACE_NAME), "a", encoding="ascii") as trace:
            trace.write(f"{_now()}\n")
        return output, str(record["finished"])
    return None


def traces(root: str) -> list[str]:
    """Returns the times, in UTC, of the runs since the record in which nothing changed."""
    try:
        with open(os.path.join(root, _TRACE_NAME), encoding="ascii", errors="replace") as trace:
            return trace.read().splitlines()
    except OSError:
        return []


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _source_status(config: PipelineConfig) -> list[str]:
    """Returns the path of the source or of the adopted dataset, and the status of its files."""
    path = config.resolved_source()
    if os.path.isdir(path):
        return [path, _tree_digest(path)]
    if not config.ingest:
        raise _CannotCompare
    kind = config.ingest.source_kind if config.ingest.source_kind != "auto" else containers.guess_kind(path)
    if kind in _FILE_KINDS:
        return [path, *(f"{file.path} {_file_status(file.path)}" for file in containers.find(path))]
    base = os.path.realpath(containers.base_directory(path))
    if kind != "glob" or ".." in path or os.path.commonpath([base, os.path.realpath(config.root)]) == base:
        raise _CannotCompare
    return [path, _tree_digest(base)]


def _tree_digest(path: str, excluded: tuple[str, ...] = ()) -> str:
    """Returns a digest of the names, sizes and times of all files below a directory."""
    hasher = hashlib.sha256()
    for line in _status_lines(path, "", excluded):
        hasher.update(line.encode(errors="surrogateescape"))
    return hasher.hexdigest()


def _status_lines(directory: str, prefix: str, excluded: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields a line for each file below a directory: its name, size, times and inode."""
    with os.scandir(directory) as entries:
        sorted_entries = sorted(entries, key=lambda entry: entry.name)
    for entry in sorted_entries:
        if entry.name in excluded:
            continue
        if entry.is_dir():
            if entry.is_symlink():  # the target may be anywhere, also above the directory
                raise _CannotCompare
            yield f"{prefix}{entry.name}/\0"
            yield from _status_lines(entry.path, f"{prefix}{entry.name}/")
        else:
            status = entry.stat()
            yield f"{prefix}{entry.name}\0{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}\0"


def _file_status(path: str) -> tuple[int, int, int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


@functools.cache  # TensorFlow sets variables, and TFX adds paths, after the first call
def _environment() -> list[Any]:
    """Returns the version of Python, the variables, and the names of the files that define distributions and paths."""
    names = []
    for path in sys.path:
        with contextlib.suppress(OSError):
            names += [f"{path}/{name}" for name in os.listdir(path) if name.endswith(_METADATA_SUFFIXES)]
    variables = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLE_PREFIXES)}
    return [sys.version, variables, sorted(names)]
