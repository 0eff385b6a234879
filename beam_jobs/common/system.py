"""The machine, or the container that this is: cores and memory, processes, and what ended ones left behind."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import time

import psutil

_SAME_START_S = 2.0  # the clock of processes is coarser than that of the system


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_bytes(group: str = "/sys/fs/cgroup") -> int:
    """Returns the memory that is free here: of the machine, or of the container, which may have less.

    Args:
      group: directory of the cgroup, version 2, that this process sees as its own.
    """
    free = psutil.virtual_memory().available
    try:
        most, used = (int(_text(group, name)) for name in ("memory.max", "memory.current"))
        # Files in the page cache count as used, and yet give way.
        state = dict(line.split() for line in _text(group, "memory.stat").splitlines())
        cached = sum(int(state.get(name, "0")) for name in ("inactive_file", "active_file"))
        return min(free, max(0, most - used + cached))
    except (OSError, ValueError):  # no such group, or no limit
        return free


def identity() -> str:
    """Returns what tells this machine, since it was started, and this container from others: process numbers are of it.

    Raises:
      OSError: the system has no /proc.
    """
    return f"{_text('/proc/sys/kernel/random', 'boot_id').strip()}/{os.stat('/proc/self/ns/pid').st_ino}"


def lives(process: int, since: float) -> bool:
    """Returns whether a process that ran at a time is still there; one that got its number later is not it.

    Args:
      process: its number on this machine.
      since: seconds since the epoch.
    """
    try:
        there = psutil.Process(process)
        return there.status() != psutil.STATUS_ZOMBIE and there.create_time() <= since + _SAME_START_S
    except psutil.Error:
        return False


def _text(group: str, name: str) -> str:
    with open(os.path.join(group, name), encoding="ascii") as stream:
        return stream.read()


_PREFIX = "feedline-copies-"
_YOUNG_S = 60.0  # a directory may have been made and not yet locked


def temporary_directory() -> str:
    """Returns a new directory, which is removed when this process ends, or by another one if it is killed.

    A process that it forks shares the directory, and does not remove it.

    Raises:
      OSError: there is no place for it.
    """
    _sweep(tempfile.gettempdir())
    directory = tempfile.mkdtemp(prefix=_PREFIX)
    _lock(directory)  # for as long as this process is there: the descriptor is never closed
    atexit.register(_remove, os.getpid(), directory)
    return directory


def _sweep(parent: str) -> None:
    """Removes what processes of this user left behind; what cannot be removed is left alone."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    _remove_if_left(entry)


def _remove_if_left(entry: os.DirEntry[str]) -> None:
    status = entry.stat(follow_symlinks=False)
    if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_S:
        return
    number = _lock(entry.path)
    try:
        shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(number)


def _lock(directory: str) -> int:
    """Returns a descriptor that holds the lock.

    Raises:
      OSError: another process has it, or this is no directory.
    """
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(number)
        raise
    return number


def _remove(process: int, directory: str) -> None:
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)
