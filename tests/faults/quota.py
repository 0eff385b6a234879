"""Directories with a quota: subvolumes of a small btrfs file system in a file, which need no support by the disk below.

Memory disks and most other file systems know quotas of users alone, and only where the kernel was built for them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SIZE = 512 << 20  # of the file system; the file has holes where nothing is written


def missing() -> str:
    """Returns why there can be no quota here; empty when there can."""
    if os.geteuid() != 0:
        return "only root may mount a file system with quotas"
    if not shutil.which("mkfs.btrfs") or not shutil.which("btrfs"):
        return "mkfs.btrfs is not here; Debian has it in btrfs-progs"
    if shutil.which("modprobe"):
        subprocess.run(["modprobe", "btrfs"], capture_output=True, check=False)  # it may be a module, or built in
    known = "\tbtrfs\n" in Path("/proc/filesystems").read_text(encoding="utf-8")
    return "" if known else "the kernel does not know btrfs"


class Quotas:
    """The directories of one file system; each has a limit of its own."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def directory(self, name: str, limit: int | None) -> Path:
        """Makes a directory that takes so many bytes, names of files included; None for no limit."""
        found = self._place / name
        _run("btrfs", "subvolume", "create", found)
        self.limit(found, limit)
        return found

    def limit(self, directory: Path, limit: int | None) -> None:
        """Changes the limit of a directory, or takes it away."""
        _run("btrfs", "qgroup", "limit", "none" if limit is None else limit, directory)


@contextmanager
def mounted(folder: Path) -> Iterator[Quotas]:
    """Yields a file system with quotas, and removes it.

    Args:
      folder: holds the file, and where it is mounted.
    """
    image, place = folder / "quota.img", folder / "quota"
    place.mkdir()
    with image.open("wb") as stream:
        stream.truncate(_SIZE)
    _run("mkfs.btrfs", "--quiet", image)
    _run("mount", "-o", "loop", image, place)
    try:
        _run("btrfs", "quota", "enable", place)
        yield Quotas(place)
    finally:
        _run("umount", "--lazy", place)
        image.unlink()


def _run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
