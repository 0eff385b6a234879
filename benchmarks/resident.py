"""Resident memory of this process, and of this process with its descendants."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from types import TracebackType

INTERVAL_S = 0.05  # between two measurements; longer-lived decoders are always measured


def peak_bytes() -> int:
    """Returns the peak resident memory of this process, in bytes.

    Not `ru_maxrss`: on Linux a process inherits the value of its parent.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))) * 1024


def family_bytes() -> int:
    """Returns the resident memory of this process and its descendants in bytes; shared memory is counted once (PSS)."""
    import psutil

    own, total = psutil.Process(), 0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            total += process.memory_full_info().pss
    return total


class FamilyPeak:
    """Measures `family_bytes` periodically within a `with` block.

    Attributes:
      peak: maximum in bytes.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> FamilyPeak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _measure(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self.peak = max(self.peak, family_bytes())
