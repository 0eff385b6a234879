"""Whether someone asked this process to stop.

The handler raises KeyboardInterrupt, but where it strikes a callback of the interpreter (a weak reference, a finaliser)
Python drops it. So it is sent once more; and the flag remembers it until the program comes to a good place to stop.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # exit codes, as shells have them
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S = 0.01

_number = 0  # of the signal that came; 0 before
_stops: list[Callable[[], None]] = []  # `child_python.stops`
_exit_code: int | None = None  # with which to end at once, after the exit functions


def hold() -> None:
    """Takes SIGINT and SIGTERM, and keeps one that comes before `install`, while the program cannot answer it yet."""
    for number in _SIGNALS:
        signal.signal(number, _keep)


def install() -> None:
    """Takes SIGINT and SIGTERM; SIGINT too, because shells start background jobs with it ignored."""
    global _number, _stops  # noqa: PLW0603 - signals are of the process
    from beam_jobs.common import child_python

    _stops = child_python.stops
    if signal.getsignal(signal.SIGTERM) is not _keep:
        _number = 0
    sys.unraisablehook, sys.excepthook = _dropped, _printed
    for number in _SIGNALS:
        signal.signal(number, _handle)
    if _number:
        _send_again()


def requested() -> bool:
    """Returns whether a signal came."""
    return bool(_number)


def code() -> int:
    """Returns the exit code of a process that was stopped: `INTERRUPTED` or `TERMINATED`."""
    return TERMINATED if _number == signal.SIGTERM else INTERRUPTED


def check() -> None:
    """Raises KeyboardInterrupt when a signal came and was lost."""
    if _number:
        raise KeyboardInterrupt


def ignore() -> None:
    """Hears no further signal."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end(code: int) -> None:
    """Ends the process, its output flushed; after a signal without waiting for threads that still read or compute.

    Whatever they do is done again by the next run. A download that hangs must not hold up who wants to stop.

    Args:
      code: exit code.

    Raises:
      SystemExit: always; without a signal, everything ends in its own time.
    """
    global _exit_code  # noqa: PLW0603
    ignore()  # all is done or reported; one more signal would only add a traceback
    if _number:
        _exit_code = code
        signal.signal(signal.SIGALRM, _end_wait)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
    sys.exit(code)


def _end_wait(_: int, frame: FrameType | None) -> None:
    """Ends the wait of the interpreter for threads, which comes before the exit functions that remove temporary files.

    As with Ctrl-C, what a handler raises ends the wait and is no error. The wait is what `threading` does when nothing
    has called it, for the program has ended.
    """
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    if frame is not None and frame.f_globals.get("__name__") == "threading":
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise SystemExit


@atexit.register  # the first to be registered is the last to be called
def _leave() -> None:
    """Ends the process before the interpreter is taken down, which threads that go on would not survive."""
    if _exit_code is None:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader is gone
            stream.flush()
    os._exit(_exit_code)


def _keep(number: int, _: FrameType | None) -> None:
    global _number  # noqa: PLW0603
    _number = _number or number


def _handle(number: int, frame: FrameType | None) -> None:
    _keep(number, frame)
    for stop in _stops:
        # A thread without a lock of Python's own, for the code that was struck may hold the same one.
        _thread.start_new_thread(stop, ())
    raise KeyboardInterrupt


def _dropped(unraisable: sys.UnraisableHookArgs) -> None:
    """Takes what was raised where no code can catch it: an interruption comes again instead of being printed."""
    if _number and issubclass(unraisable.exc_type, KeyboardInterrupt):
        _send_again()
    # What an interruption left half made cannot be freed, which is of no interest any more. TensorFlow frees functions
    # when its modules are gone already. A literal, for the names of this module may be, too.
    elif not _number and getattr(unraisable.object, "__qualname__", "") != "AtomicFunction.__del__":
        sys.__unraisablehook__(unraisable)


def _printed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Takes what is printed and then forgotten, as the interpreter does in places of an import."""
    if _number and issubclass(kind, KeyboardInterrupt):
        _send_again()
    else:
        sys.__excepthook__(kind, error, trace)


def _send_again() -> None:
    """Has the signal come a little later, when the main thread is elsewhere."""

    def send() -> None:
        time.sleep(_AGAIN_S)
        os.kill(os.getpid(), _number)

    _thread.start_new_thread(send, ())
