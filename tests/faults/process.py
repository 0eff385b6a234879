"""Commands that are run within bounds: one that does not end in time is a hang, and is ended with its children."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
FEEDLINE = str(Path(sys.executable).parent / "feedline")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a command ended.

    Attributes:
      code: exit code, negative the number of the signal that ended it.
      hang: whether it had to be ended because its time was up.
      seconds: from its start, or from the signal that was sent to it, to its end.
      out: standard output.
      err: standard error.
      left: processes of it that outlived it by more than a few seconds; they were ended.
    """

    code: int
    hang: bool
    seconds: float
    out: str
    err: str
    left: int = 0

    @property
    def shows_traceback(self) -> bool:
        """Whether the user was shown a traceback of Python."""
        return "Traceback (most recent call last)" in self.err + self.out


def start(command: Sequence[object], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, **options):
    """Starts a command in a session of its own, not ignoring SIGINT as what a shell starts in the background does."""
    ours = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = {**os.environ, **ours, **(env or {})}
    return subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        cwd=cwd or ROOT,
        start_new_session=True,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no thread runs
        **options,
    )


def finish(process: subprocess.Popen, timeout: float = 240.0, since: float | None = None) -> Outcome:
    """Waits for a started command, and ends it with all of its processes when its time is up."""
    started = time.monotonic() if since is None else since
    hang = False
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        hang = True
        _end(process.pid)
        out, err = process.communicate()
    seconds = time.monotonic() - started
    return Outcome(code=process.returncode, hang=hang, seconds=seconds, out=out, err=err, left=_end(process.pid, 5.0))


def run(command: Sequence[object], timeout: float = 240.0, **options) -> Outcome:
    """Runs a command to its end, or to the end of its time."""
    return finish(start(command, **options), timeout)


def feedline(*arguments: object, timeout: float = 240.0, **options) -> Outcome:
    """Runs the command line of this environment."""
    return run([FEEDLINE, *arguments], timeout, **options)


def wait_for(reached: Callable[[], bool], process: subprocess.Popen, timeout: float = 120.0) -> bool:
    """Waits until something has happened; returns whether it did before the process or the time ended."""
    end = time.monotonic() + timeout
    while time.monotonic() < end and process.poll() is None:
        if reached():
            return True
        time.sleep(0.002)
    return reached()


def session(leader: int) -> list[psutil.Process]:
    """Returns the living processes of the session that a started command leads."""
    return [process for process in psutil.process_iter() if _lives_in(process, leader)]


def _lives_in(process: psutil.Process, leader: int) -> bool:
    try:
        return os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):  # it ended meanwhile
        return False


def _end(leader: int, grace: float = 0.0) -> int:
    """Ends what lives of a session after a time of grace; returns how many processes that were."""
    end = time.monotonic() + grace
    while (alive := session(leader)) and time.monotonic() < end:
        time.sleep(0.1)
    for process in alive:
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            process.send_signal(signal.SIGKILL)
    return len(alive)
