"""Resume: seals of finished units of work, and repeated passes over unfinished units.

A seal is a small JSON file with a checksum, which names the files of a unit. A cluster may run a unit twice at the same
time, if it mistakes a slow worker for a dead one. An attempt therefore writes files with unique names, and creates the
seal only if none exists. Readers of the result use the files that the seal names, and no files of other attempts.

A worker writes a note about a unit that it could not finish and continues with other units: an exception would end the
job, on most runners with all running work. Unfinished units are retried, and the remaining ones are reported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import google_crc32c

from beam_jobs import storage
from beam_jobs.common import strings
from beam_jobs.common.strings import plural
from beam_jobs.common.system import map_ordered
from beam_jobs.errors import Fault, Unreadable

SEAL_SUFFIX = ".json"
_CHECKSUM_NAME = "check"
_STORE_THREADS = 32  # number of threads that read seals from a store; they mostly wait

T = TypeVar("T")


class Attempt:
    """One attempt at a unit of work. The end of the block removes its files unless its seal may have been created."""

    def __init__(self, path: str) -> None:
        """Sets the path of the seal; the files of the attempt are in the same directory."""
        self._path = path
        self._token = uuid.uuid4().hex
        self._names: list[str] = []
        self._may_be_sealed = False

    def name(self, stem: str, suffix: str) -> str:
        """Returns a unique file name, and records it as a file of this attempt."""
        self._names.append(f"{stem}.{self._token}{suffix}")
        return self._names[-1]

    def seal(self, values: dict[str, Any], read_result: Callable[[], T | None]) -> T | None:
        """Creates the seal if none exists; replaces a seal that is damaged, or whose files are missing or damaged.

        Args:
          values: content of the seal: names and checksums of the files, and other results of the unit.
          read_result: reads the existing seal and returns the result of its attempt; None if the seal is not valid.

        Returns:
          the result of another attempt that was sealed first; None if this attempt is sealed.

        Raises:
          OSError: the seal cannot be written.
        """
        # Set before the write: after an interrupt or a lost response, a seal may exist that names the files.
        self._may_be_sealed = True
        while not storage.create_exclusive(self._path, _to_checked_json(values)):
            if result := read_result():
                self._may_be_sealed = False
                return result
            storage.remove(self._path)
        return None

    def __enter__(self) -> Attempt:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Removes the files of an attempt that is not sealed."""
        if not self._may_be_sealed:
            for name in self._names:
                with contextlib.suppress(OSError):  # `sweep_unsealed` removes the file later
                    storage.remove(storage.join(os.path.dirname(self._path), name))


def sweep_unsealed(
    directory: str, list_files: Callable[[dict[str, Any]], Iterable[str]], seals: Collection[str] | None = None
) -> None:
    """Removes the files of killed attempts: those that no seal in a directory names.

    Args:
      directory: directory of the seals and the files.
      list_files: returns the names of the files in the values of a seal.
      seals: names of the valid seals; other seals are removed, too. None for all seals.

    Raises:
      OSError: a file cannot be removed.
    """
    names = storage.list_files(directory)
    retained = {name for name in names if name.endswith(SEAL_SUFFIX) and (seals is None or name in seals)}
    for values in map_ordered(partial(_read_seal, directory), sorted(retained), seal_threads(directory)):
        retained.update(list_files(values) if values else ())
    for name in names:
        if name not in retained:
            storage.remove(storage.join(directory, name))


def seal_threads(directory: str) -> int:
    """Returns the number of threads that read the seals of a directory."""
    return _STORE_THREADS if storage.is_remote(directory) else 1


def _read_seal(directory: str, name: str) -> dict[str, Any] | None:
    try:
        return read_checked(storage.join(directory, name))
    except (OSError, ValueError):  # not valid: the next attempt at its unit replaces it
        return None


def write_checked(path: str, values: dict[str, Any]) -> None:
    """Writes values with their checksum, atomically, and replaces an existing file; see `storage.atomic_writer`."""
    storage.write_bytes(path, _to_checked_json(values))


def read_checked(path: str) -> dict[str, Any]:
    """Reads a file that `write_checked` or `Attempt.seal` wrote.

    Raises:
      OSError: the file is missing or not readable.
      ValueError: its content is damaged.
    """
    return parse_checked(storage.read_bytes(path))


def parse_checked(data: bytes) -> dict[str, Any]:
    """Returns the values in the content of a checked file, without the checksum.

    Raises:
      ValueError: the content is damaged.
    """
    values = json.loads(data)
    if not isinstance(values, dict) or values.pop(_CHECKSUM_NAME, None) != _checksum(values):
        raise ValueError("the checksum does not match the values")
    return values


def _to_checked_json(values: dict[str, Any]) -> bytes:
    return json.dumps({**values, _CHECKSUM_NAME: _checksum(values)}).encode()


def _checksum(values: dict[str, Any]) -> int:
    return google_crc32c.value(json.dumps(values).encode())


# Waits before the second and third pass. Within a pass, the clients of stores retry for up to two minutes.
WAITS_S = (2.0, 15.0)
# A unit is abandoned after this many faults, because each read from an unavailable store may take two minutes.
MAX_FAULTS = 100

_LISTED_FAULTS = 10
_MAX_KEY_CHARACTERS = 300  # a cell of a table may contain a megabyte
_NOTE_SUFFIX = ".json"
UNITS_SUFFIX = ".jsonl"

Unit = TypeVar("Unit")


def write_fault_note(directory: str, unit: str, faults: Iterable[Fault]) -> None:
    """Writes a note of the faults of an unfinished unit of work. Idempotent."""
    write_checked(storage.join(directory, unit + _NOTE_SUFFIX), {"faults": [list(fault) for fault in faults]})


def read_fault_notes(directory: str) -> dict[str, tuple[Fault, ...]]:
    """Returns unit -> faults of the notes in a directory; no faults for a damaged note."""
    return {
        name.removesuffix(_NOTE_SUFFIX): _read_faults(storage.join(directory, name))
        for name in storage.list_files(directory)
    }


def write_units(directory: str, units: Iterable[Any]) -> str:
    """Writes a list of units of work, which are dataclasses, and returns its path, with a digest as name."""
    data = "\n".join(json.dumps(dataclasses.asdict(unit)) for unit in units).encode()
    path = storage.join(directory, f"{hashlib.sha256(data).hexdigest()[:16]}{UNITS_SUFFIX}")
    storage.write_bytes(path, data, durable=False)  # every run writes it again
    return path


def read_units(path: str) -> Iterator[dict[str, Any]]:
    """Yields the fields of the units in a list of `write_units`.

    Raises:
      OSError: the file cannot be read.
    """
    return map(json.loads, storage.read_bytes(path).splitlines())


def run_passes(
    units: Sequence[Unit],
    run_pass: Callable[[Sequence[Unit], bool], None],
    list_unfinished: Callable[[Sequence[Unit]], Sequence[Unit]],
    report: Callable[[str], None],
) -> Sequence[Unit]:
    """Runs a pass over all units, and up to two more passes over the unfinished units.

    Args:
      units: units of work.
      run_pass: processes units; its second argument is whether the pass is the last one.
      list_unfinished: returns the unfinished units of those that a pass has processed.
      report: prints a line of text before each wait.

    Returns:
      the units that are unfinished after the last pass.
    """
    for wait_s in (*WAITS_S, None):
        run_pass(units, wait_s is None)
        units = list_unfinished(units)
        if not units or wait_s is None:
            break
        report(f"retrying  {plural(len(units), 'unit')} of work that could not be read, in {wait_s:g} s")
        time.sleep(wait_s)
    return units


def unfinished_error(faults: Sequence[Fault], remedy: str) -> Unreadable:
    """Returns the error about the units that are unfinished after the last pass.

    Args:
      faults: files that could not be read or written; the message names the first ones.
      remedy: end of the message, an alternative to repairing the causes; may be empty.
    """
    listed = "; ".join(strings.line(f"{key[:_MAX_KEY_CHARACTERS]} ({cause})") for key, cause in faults[:_LISTED_FAULTS])
    more = f"; and {len(faults) - _LISTED_FAULTS:,} more" if len(faults) > _LISTED_FAULTS else ""
    return Unreadable(
        f"{plural(len(faults), 'file')} could not be read or written in {len(WAITS_S) + 1} passes: {listed}{more}. "
        f"Nothing was published. Repair the causes; finished work is kept, run the same command again{remedy}",
        tuple(faults),
    )


def _read_faults(path: str) -> tuple[Fault, ...]:
    """Returns the faults in a note; empty if the note is damaged."""
    try:
        return tuple(Fault(*pair) for pair in read_checked(path)["faults"])
    except ValueError:
        return ()
