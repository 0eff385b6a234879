"""Whether someone asked this process to stop.

The handler raises KeyboardInterrupt, but where it strikes a callback of the interpreter (a weak reference, a finaliser)
Python drops it. So it is sent once more; and the flag remembers it for whoever comes to a good place to stop.
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
    from types import FrameType, TracebackType

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # exit codes, as shells have them
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S = 0.01

_number = 0  # of the signal that came; 0 before


def hold() -> None:
    """Takes SIGINT and SIGTERM, and keeps one that comes until `install`, for whoever cannot answer it yet."""
    for number in _SIGNALS:
        signal.signal(number, _keep)


def install() -> None:
    """Takes SIGINT and SIGTERM; SIGINT too, because shells start background jobs with it ignored."""
    global _number  # noqa: PLW0603 - signals are of the process
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
      SystemExit: no signal came, so everything may end in its own time.
    """
    ignore()  # all is done or said; one more signal would only add a traceback
    if not _number:
        sys.exit(code)
    atexit._run_exitfuncs()  # temporary files go; unlike the end of the interpreter it waits for no thread
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def _keep(number: int, _: FrameType | None) -> None:
    global _number  # noqa: PLW0603
    _number = _number or number


def _handle(number: int, frame: FrameType | None) -> None:
    _keep(number, frame)
    # An image that takes long must not hold up the exit. Only where images are decoded, for the import takes a while;
    # and in a thread without a lock of Python's own, for whoever was struck may hold the same one.
    if decoders := sys.modules.get("beam_jobs.decoders"):
        with contextlib.suppress(AttributeError):  # it is just being imported
            _thread.start_new_thread(decoders.stop, ())
    raise KeyboardInterrupt


def _dropped(found: sys.UnraisableHookArgs) -> None:
    """Takes what was raised where nobody can catch it: an interruption comes again instead of being printed."""
    if _number and issubclass(found.exc_type, KeyboardInterrupt):
        _send_again()
    # What an interruption left half made cannot be freed, which is of no interest any more. TensorFlow frees functions
    # when its modules are gone already. A literal, for the names of this module may be, too.
    elif not _number and getattr(found.object, "__qualname__", "") != "AtomicFunction.__del__":
        sys.__unraisablehook__(found)


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
