"""A request to stop is heard at once and obeyed between two steps, when there is something worth keeping."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Remembers the first signal. A second one takes effect at once: its sender does not want to wait."""

    def __init__(self) -> None:
        self._number = 0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return bool(self._number)

    def take(self) -> None:
        """Takes over the signals that are not ignored."""
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)

    def release(self) -> None:
        """Gives the signals back to who had them."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def deliver(self) -> None:
        """Lets the signal do what it would have done.

        Raises:
          KeyboardInterrupt: the handler of the signal did not end the process.
        """
        self.release()
        signal.raise_signal(self._number)
        raise KeyboardInterrupt

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._number:
            self._number = number
            self.deliver()
        self._number = number


@contextmanager
def deferred_signals() -> Iterator[Interruption]:
    """Defers signals while its block runs; in a thread other than the main one, which gets none, it does nothing."""
    interruption = Interruption()
    if threading.current_thread() is threading.main_thread():
        interruption.take()
    try:
        yield interruption
    finally:
        interruption.release()
