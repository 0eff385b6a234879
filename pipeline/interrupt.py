"""Whether someone asked this process to stop.

The handler raises KeyboardInterrupt, but where it strikes a callback of the interpreter (a weak reference, a finaliser)
Python prints and drops it. The flag remembers, and whoever comes to a good place to stop asks it.
"""

from __future__ import annotations

import signal
import threading

_requested = threading.Event()


def install() -> None:
    """Takes SIGINT and SIGTERM; SIGINT too, because shells start background jobs with it ignored."""
    _requested.clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _handle)


def check() -> None:
    """Raises KeyboardInterrupt when a signal came and was lost."""
    if _requested.is_set():
        raise KeyboardInterrupt


def _handle(*_: object) -> None:
    _requested.set()
    raise KeyboardInterrupt
