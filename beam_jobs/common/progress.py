"""How far the work of this process has come: counted where the work is done, read by whoever draws it.

Beam's metrics say the same for remote workers, but an in-process runner only hands them over when all is done.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """What was done since the last reset.

    Attributes:
      images: examined or written, rejects included.
      bytes: read of them.
      rejects: images rejected.
    """

    images: int = 0
    bytes: int = 0
    rejects: int = 0

    def __add__(self, other: Progress) -> Progress:
        """Returns both together."""
        return Progress(self.images + other.images, self.bytes + other.bytes, self.rejects + other.rejects)


class _Meter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress = Progress()

    def add(self, done: Progress) -> None:
        """Counts finished work; from any thread."""
        with self._lock:
            self._progress += done

    def read(self) -> Progress:
        """Returns what was done since the last reset."""
        return self._progress

    def reset(self) -> None:
        """Starts again at nothing."""
        with self._lock:
            self._progress = Progress()


local = _Meter()
