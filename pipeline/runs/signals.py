"""Handling of SIGINT and SIGTERM.

The handler raises KeyboardInterrupt. Python drops an exception that is raised in a callback of the interpreter, such as
a finaliser, so the signal is sent again. A flag records it, too; the program checks the flag where it can stop.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import gc
import os
import signal
import sys
import time

TYPE_CHECKING = False  # not imported: `typing` takes a third of the time until `hold` is called
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # exit codes, as in shells
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_RESEND_S = 0.01

_received = 0  # number of the first signal; 0 before
_stop_functions: list[Callable[[], None]] = []  # `child_python.stop_functions`
_exit_code: int | None = None  # if set, the process ends at once after the exit functions


def hold() -> None:
    """Records SIGINT and SIGTERM until `install`, because the program cannot handle them yet."""
    for number in _SIGNALS:
        signal.signal(number, _record)


def install() -> None:
    """Handles SIGINT and SIGTERM; SIGINT too, because shells start background jobs that ignore SIGINT."""
    global _received, _stop_functions  # noqa: PLW0603 - signals are global to the process
    from beam_jobs.common import child_python

    _stop_functions = child_python.stop_functions
    if signal.getsignal(signal.SIGTERM) is not _record:  # `hold` was not called: forget signals of earlier commands
        _received = 0
    sys.unraisablehook, sys.excepthook = _unraisable_hook, _exception_hook
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    if _received:
        _resend()


def requested() -> bool:
    """Whether a signal was received."""
    return bool(_received)


def code() -> int:
    """Returns the exit code after a signal: `INTERRUPTED` or `TERMINATED`."""
    return TERMINATED if _received == signal.SIGTERM else INTERRUPTED


def check() -> None:
    """Raises KeyboardInterrupt when a signal was received."""
    if _received:
        raise KeyboardInterrupt


def ignore() -> None:
    """Ignores further signals."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end(code: int) -> None:
    """Flushes the output and ends the process; after a signal, without waiting for threads.

    The next run repeats the work of the threads, and a download may hang.

    Args:
      code: exit code.

    Raises:
      SystemExit: always.
    """
    global _exit_code  # noqa: PLW0603
    ignore()  # a further signal would only add a traceback
    if _received:
        _exit_code = code
        signal.signal(signal.SIGALRM, _end_thread_wait)
        signal.setitimer(signal.ITIMER_REAL, _RESEND_S, _RESEND_S)
    sys.exit(code)


def _end_thread_wait(_: int, frame: FrameType | None) -> None:
    """Ends the wait of the interpreter for threads, which precedes the exit functions that remove temporary files.

    An exception in a handler ends the wait without an error, as for Ctrl-C. During the wait, the outermost frame is of
    `threading`, because the program has ended.
    """
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    if frame is not None and frame.f_globals.get("__name__") == "threading":
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise SystemExit


@atexit.register  # registered first, so that it is called last
def _exit_at_once() -> None:
    """Ends the process before the interpreter shuts down, which would crash running threads."""
    if _exit_code is None:
        gc.freeze()  # otherwise all objects of all modules would be searched for garbage, for half a second
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader has closed the pipe
            stream.flush()
    os._exit(_exit_code)


def _record(number: int, _: FrameType | None) -> None:
    global _received  # noqa: PLW0603
    _received = _received or number


def _interrupt(number: int, frame: FrameType | None) -> None:
    _record(number, frame)
    for stop_function in _stop_functions:
        # `threading` takes locks that the interrupted code may hold.
        _thread.start_new_thread(stop_function, ())
    raise KeyboardInterrupt


def _unraisable_hook(unraisable: sys.UnraisableHookArgs) -> None:
    """Handles exceptions that no code can catch: sends the signal of an interruption again instead of printing it."""
    if _received and issubclass(unraisable.exc_type, KeyboardInterrupt):
        _resend()
    # Ignores errors in finalisers of incomplete objects after an interruption. TensorFlow frees functions after its
    # modules are deleted. The name is a literal, because variables of this module may be deleted, too.
    elif not _received and getattr(unraisable.object, "__qualname__", "") != "AtomicFunction.__del__":
        sys.__unraisablehook__(unraisable)


def _exception_hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Handles exceptions that the interpreter prints and drops, as in some imports."""
    if _received and issubclass(kind, KeyboardInterrupt):
        _resend()
    else:
        sys.__excepthook__(kind, error, trace)


def _resend() -> None:
    """Sends the signal again after a short time, when the main thread runs other code."""

    def send() -> None:
        time.sleep(_RESEND_S)
        os.kill(os.getpid(), _received)

    _thread.start_new_thread(send, ())
