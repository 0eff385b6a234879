"""Memory of this process, and of it with all that it started."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from types import TracebackType

INTERVAL_S = 0.05  # between two looks; a decoder lives as long as the ingest


def peak_bytes() -> int:
    """Returns the largest resident memory of this process so far.

    Not `ru_maxrss`: on Linux a process starts with that of the one that started it.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))) * 1024


def family_bytes() -> int:
    """Returns the resident memory of this process and all that it started; what they share counts once (PSS)."""
    import psutil

    own, total = psutil.Process(), 0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
            total += process.memory_full_info().pss
    return total


class FamilyPeak:
    """Looks at `family_bytes` again and again while it is entered.

    Attributes:
      most: bytes at most so far.
    """

    def __init__(self) -> None:
        self.most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> FamilyPeak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self.most = max(self.most, family_bytes())
