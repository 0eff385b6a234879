"""The seconds in which a process that is asked to end has to be gone, and what it writes down before."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

LEAVE_S = 5.0  # as promised
_AGAIN = 2

Try = TypeVar("Try")


def tried_again(make: Callable[[int], Try], seconds: Callable[[Try], float]) -> list[Try]:
    """Makes a try, and the very same one up to twice more while the process takes too long to leave.

    The promise is of seconds by the clock, and a machine that is busy with other things can take any of them. A process
    that is slow of itself is slow each time.

    Args:
      make: makes the try; takes how often it was made before.
      seconds: tells how long the process took to leave; 0 when that does not matter, or when it never did.

    Returns:
      all that were made; the last one is in time, or none is.
    """
    found = [make(0)]
    while seconds(found[-1]) > LEAVE_S and len(found) <= _AGAIN:
        found.append(make(len(found)))
    return found


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is there with all of its text or not at all, whenever this process ends."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


def seconds_of(one: dict) -> float:
    """Returns `seconds` of a try that knows its exit code, `code`."""
    return 0.0 if one["code"] is None else one["seconds"]


def hangs(attempts: list[dict], name: str) -> bool:
    """Returns whether a try and its repeats never left in time, or one or its rerun, `again`, did not end at all.

    Args:
      attempts: as from `tried_again`.
      name: of the signal; nobody has to answer SIGKILL.
    """
    endless = any(one["code"] is None or one["again"] is None for one in attempts)
    return endless or (name != "SIGKILL" and min(one["seconds"] for one in attempts) > LEAVE_S)


def summary(name: str, tries: list[list[float]]) -> str:
    """Returns a line that says how long processes took to leave; a list of seconds for each try and its repeats."""
    repeated = sum(len(seconds) > 1 for seconds in tries)
    slowest = max(map(min, tries), default=0.0)
    return f"{name}: gone after {slowest:.2f} s at most, of {len(tries)} tries {repeated} repeated\n"
