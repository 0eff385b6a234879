"""Seals: small JSON files with a checksum of their own that say that a unit of work is done, and by which files.

A cluster may run a unit twice at once, where it takes a slow worker for a dead one. So an attempt writes files under
names that no other attempt has, and creates the seal, which names them, only if there is none. Who needs the result
follows the seal: to it, files of other attempts do not exist.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Collection, Iterable
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import google_crc32c

from beam_jobs import storage
from beam_jobs.common.concurrency import map_ordered

SUFFIX = ".json"
_CHECK = "check"
_WAITING = 32  # threads that read seals: each waits for a store most of the time

T = TypeVar("T")


class Attempt:
    """One attempt at a unit of work. Its files are removed at the end of the block unless its seal may count."""

    def __init__(self, path: str) -> None:
        """Names the seal, in whose directory the files lie."""
        self._path = path
        self._token = uuid.uuid4().hex
        self._names: list[str] = []
        self._may_count = False

    def name(self, stem: str, suffix: str) -> str:
        """Returns the name of a file of this attempt alone."""
        self._names.append(f"{stem}.{self._token}{suffix}")
        return self._names[-1]

    def seal(self, values: dict[str, Any], sealed: Callable[[], T | None]) -> T | None:
        """Creates the seal if there is none. One that is damaged, or whose files are, is replaced.

        Args:
          values: content of the seal: names and checksums of the files, and what else is to be known of the unit.
          sealed: reads the seal that is there and returns the result that it stands for; None when it is not whole.

        Returns:
          the result of another attempt, which counts; None when this one counts.

        Raises:
          OSError: the seal cannot be written.
        """
        # Before it is known: an interrupt, or a lost answer, may leave a seal behind that names the files.
        self._may_count = True
        while not storage.create_exclusive(self._path, _dumps(values)):
            if result := sealed():
                self._may_count = False
                return result
            storage.remove(self._path)
        return None

    def __enter__(self) -> Attempt:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Removes the files of an attempt that does not count."""
        if not self._may_count:
            for name in self._names:
                with contextlib.suppress(OSError):  # `sweep` removes it
                    storage.remove(storage.join(os.path.dirname(self._path), name))


def sweep(
    directory: str, files_of: Callable[[dict[str, Any]], Iterable[str]], seals: Collection[str] | None = None
) -> None:
    """Removes what no seal in a directory names: files of attempts that were killed before they could do it.

    Args:
      directory: of the seals and the files.
      files_of: returns the names of the files in the values of a seal.
      seals: names of the seals that count; the others are removed, too. None for all.

    Raises:
      OSError: a file cannot be removed.
    """
    names = storage.list_files(directory)
    kept = {name for name in names if name.endswith(SUFFIX) and (seals is None or name in seals)}
    for values in map_ordered(partial(_values, directory), sorted(kept), _WAITING):
        kept.update(files_of(values) if values else ())
    for name in names:
        if name not in kept:
            storage.remove(storage.join(directory, name))


def _values(directory: str, name: str) -> dict[str, Any] | None:
    try:
        return read(storage.join(directory, name))
    except (OSError, ValueError):  # it counts for nothing, and the next attempt at its unit replaces it
        return None


def write(path: str, values: dict[str, Any]) -> None:
    """Writes values with their checksum, atomically, over what is there; see `storage.atomic_writer`."""
    storage.write_bytes(path, _dumps(values))


def read(path: str) -> dict[str, Any]:
    """Returns the values that were written.

    Raises:
      OSError: the file is missing or not readable.
      ValueError: it is damaged.
    """
    return loads(storage.read_bytes(path))


def loads(data: bytes) -> dict[str, Any]:
    """Returns the values in the content of such a file.

    Raises:
      ValueError: it is damaged.
    """
    values = json.loads(data)
    if not isinstance(values, dict) or values.pop(_CHECK, None) != _checksum(values):
        raise ValueError("the values are not those that were written")
    return values


def _dumps(values: dict[str, Any]) -> bytes:
    return json.dumps({**values, _CHECK: _checksum(values)}).encode()


def _checksum(values: dict[str, Any]) -> int:
    return google_crc32c.value(json.dumps(values).encode())
