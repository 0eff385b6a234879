"""Small memory disks, which only root may mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(place: Path) -> Iterator[Callable[[int], Path]]:
    """Yields what makes a disk of so many bytes at a place, or changes the one there is."""
    place.mkdir()

    def make(size: int) -> Path:
        again = ["-o", f"remount,size={size}"] if os.path.ismount(place) else ["-t", "tmpfs", "-o", f"size={size}"]
        subprocess.run(["mount", *again, "feedline-test", place], check=True)
        return place

    try:
        yield make
    finally:
        if os.path.ismount(place):
            subprocess.run(["umount", "--lazy", place], check=True)
