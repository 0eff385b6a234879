"""Which files a path stands for."""

from __future__ import annotations

import os

from beam_jobs import storage
from beam_jobs.errors import SourceError
from beam_jobs.inspect.records import is_tfrecord
from beam_jobs.sources import containers

_MARK = "tfrecord"  # in the names of nearly all such files
_TRIED = 50  # files without the mark, until a directory is taken for one of something else


def find(path: str) -> list[str]:
    """Returns the TFRecord files that a path stands for, in the order of their names.

    Below a directory those count whose name holds `tfrecord`, or all when there is none such; files and directories
    whose name begins with `.` or `_` are passed over.

    Args:
      path: of a file or a directory, or a pattern.

    Raises:
      SourceError: there is none, or it cannot be listed.
    """
    if containers.is_pattern(path):
        return [container.path for container in containers.find(path)]
    try:
        if not (os.path.isdir(path) or (storage.is_remote(path) and not storage.exists(path))):
            return [path]
        found = _remote(path) if storage.is_remote(path) else [one.path for one in containers.below(path)]
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    marked = [one for one in found if _MARK in os.path.basename(one).lower()]
    if not marked and not any(map(is_tfrecord, found[:_TRIED])):
        raise SourceError(f"{path} holds neither dataset.json nor a TFRecord file; name such a file")
    return marked or found


def name_below(file: str, path: str) -> str:
    """Returns what to call a file that `find` found: relative to the directory that was given."""
    return file.removeprefix(path.rstrip("/") + "/") if file != path else os.path.basename(file)


def _remote(path: str) -> list[str]:
    names = sorted(name for name, _, _ in storage.walk_files(path))
    found = [storage.join(path, name) for name in names if not any(p[:1] in "._" for p in name.split("/") if p)]
    if not found:
        raise SourceError(f"{path} cannot be read: there is no such file, and none below it")
    return found
