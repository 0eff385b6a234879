"""Passes of a stage over its units of work: what could not be read is tried again, and what remains is named.

A worker leaves a note of a unit that it could not finish and goes on with others: an exception would end the job, on
most runners with all that is under way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from beam_jobs import storage
from beam_jobs.common import strings
from beam_jobs.common.strings import plural
from beam_jobs.errors import Fault, Unreadable
from beam_jobs.storage import checksummed_json

# Before the second pass and the third. Within each, the clients of stores try again for up to two minutes.
WAITS_S = (2.0, 15.0)
# Of one unit, after which it is given up: every read from a store that is down may take the two minutes.
MOST_FAULTS = 100

_SHOWN = 10
_SHOWN_CHARACTERS = 300  # of a key; a cell of a table may hold a megabyte
_SUFFIX = ".json"

Unit = TypeVar("Unit")


def note(directory: str, unit: str, faults: Iterable[Fault]) -> None:
    """Leaves a note of what keeps a unit of work from its end. Idempotent."""
    checksummed_json.write(storage.join(directory, unit + _SUFFIX), {"faults": [list(fault) for fault in faults]})


def noted(directory: str) -> dict[str, tuple[Fault, ...]]:
    """Returns unit -> faults of the notes in a directory; none of a damaged note."""
    return {
        name.removesuffix(_SUFFIX): _faults(storage.join(directory, name)) for name in storage.list_files(directory)
    }


def run(
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
    shown = "; ".join(strings.line(f"{key[:_SHOWN_CHARACTERS]} ({cause})") for key, cause in faults[:_SHOWN])
    more = f"; and {len(faults) - _SHOWN:,} more" if len(faults) > _SHOWN else ""
    return Unreadable(
        f"{plural(len(faults), 'file')} could not be read or written in {len(WAITS_S) + 1} passes: {shown}{more}. "
        f"Nothing was published. Repair the causes; what was finished is kept, run the same command again{remedy}",
        tuple(faults),
    )


def _faults(path: str) -> tuple[Fault, ...]:
    try:
        return tuple(Fault(*pair) for pair in checksummed_json.read(path)["faults"])
    except ValueError:
        return ()
