"""Units of work: the seals that say that one is done, and passes over those that are left.

A seal is a small JSON file with a checksum of its own, which names the files of a unit. A cluster may run a unit twice
at once, where it takes a slow worker for a dead one. So an attempt writes files under names that no other attempt has,
and creates the seal only if there is none. Who needs the result follows the seal: to it, files of other attempts do not
exist.

A worker leaves a note of a unit that it could not finish and goes on with others: an exception would end the job, on
most runners with all that is under way. What could not be read is tried again, and what remains is named.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import google_crc32c

from beam_jobs import storage
from beam_jobs.common import strings
from beam_jobs.common.strings import plural
from beam_jobs.common.system import map_ordered
from beam_jobs.errors import Fault, Unreadable

SEAL_SUFFIX = ".json"
_CHECK = "check"
_SEAL_THREADS = 32  # threads that read seals: each waits for a store most of the time

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
        while not storage.create_exclusive(self._path, _checked(values)):
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
                with contextlib.suppress(OSError):  # `sweep_unsealed` removes it
                    storage.remove(storage.join(os.path.dirname(self._path), name))


def sweep_unsealed(
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
    kept = {name for name in names if name.endswith(SEAL_SUFFIX) and (seals is None or name in seals)}
    for values in map_ordered(partial(_sealed_values, directory), sorted(kept), _SEAL_THREADS):
        kept.update(files_of(values) if values else ())
    for name in names:
        if name not in kept:
            storage.remove(storage.join(directory, name))


def _sealed_values(directory: str, name: str) -> dict[str, Any] | None:
    try:
        return read_checked(storage.join(directory, name))
    except (OSError, ValueError):  # it counts for nothing, and the next attempt at its unit replaces it
        return None


def write_checked(path: str, values: dict[str, Any]) -> None:
    """Writes values with their checksum, atomically, over what is there; see `storage.atomic_writer`."""
    storage.write_bytes(path, _checked(values))


def read_checked(path: str) -> dict[str, Any]:
    """Returns the values that were written.

    Raises:
      OSError: the file is missing or not readable.
      ValueError: it is damaged.
    """
    return parse_checked(storage.read_bytes(path))


def parse_checked(data: bytes) -> dict[str, Any]:
    """Returns the values in the content of such a file.

    Raises:
      ValueError: it is damaged.
    """
    values = json.loads(data)
    if not isinstance(values, dict) or values.pop(_CHECK, None) != _checksum(values):
        raise ValueError("the values are not those that were written")
    return values


def _checked(values: dict[str, Any]) -> bytes:
    return json.dumps({**values, _CHECK: _checksum(values)}).encode()


def _checksum(values: dict[str, Any]) -> int:
    return google_crc32c.value(json.dumps(values).encode())


# Before the second pass and the third. Within each, the clients of stores try again for up to two minutes.
WAITS_S = (2.0, 15.0)
# Of one unit, after which it is given up: every read from a store that is down may take the two minutes.
MOST_FAULTS = 100

_SHOWN_FAULTS = 10
_SHOWN_CHARACTERS = 300  # of a key; a cell of a table may hold a megabyte
_NOTE_SUFFIX = ".json"

Unit = TypeVar("Unit")


def note_faults(directory: str, unit: str, faults: Iterable[Fault]) -> None:
    """Leaves a note of what keeps a unit of work from its end. Idempotent."""
    write_checked(storage.join(directory, unit + _NOTE_SUFFIX), {"faults": [list(fault) for fault in faults]})


def noted_faults(directory: str) -> dict[str, tuple[Fault, ...]]:
    """Returns unit -> faults of the notes in a directory; none of a damaged note."""
    return {
        name.removesuffix(_NOTE_SUFFIX): _faults(storage.join(directory, name))
        for name in storage.list_files(directory)
    }


def run_passes(
    units: Sequence[Unit],
    one_pass: Callable[[Sequence[Unit], bool], None],
    left: Callable[[Sequence[Unit]], Sequence[Unit]],
    say: Callable[[str], None],
) -> Sequence[Unit]:
    """Makes a pass over all units, and up to two more over those that are left.

    Args:
      units: of work.
      one_pass: does some of them; takes whether it is the last pass, too.
      left: returns which of those that a pass should have done are not done.
      say: takes a line of text before each wait.

    Returns:
      the units that are left after the last pass.
    """
    for wait_s in (*WAITS_S, None):
        one_pass(units, wait_s is None)
        units = left(units)
        if not units or wait_s is None:
            break
        say(f"retrying  {plural(len(units), 'unit')} of work that could not be read, in {wait_s:g} s")
        time.sleep(wait_s)
    return units


def unreadable(faults: Sequence[Fault], remedy: str) -> Unreadable:
    """Returns the error about what is left after the last pass.

    Args:
      faults: what could not be read or written; the first are shown.
      remedy: what else helps than to repair the causes.
    """
    shown = "; ".join(strings.line(f"{key[:_SHOWN_CHARACTERS]} ({cause})") for key, cause in faults[:_SHOWN_FAULTS])
    more = f"; and {len(faults) - _SHOWN_FAULTS:,} more" if len(faults) > _SHOWN_FAULTS else ""
    return Unreadable(
        f"{plural(len(faults), 'file')} could not be read or written in {len(WAITS_S) + 1} passes: {shown}{more}. "
        f"Nothing was published. Repair the causes; what was finished is kept, run the same command again{remedy}",
        tuple(faults),
    )


def _faults(path: str) -> tuple[Fault, ...]:
    try:
        return tuple(Fault(*pair) for pair in read_checked(path)["faults"])
    except ValueError:
        return ()
