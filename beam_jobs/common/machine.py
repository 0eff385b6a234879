"""What the machine, or the container that this is, has left for this process, and which processes live on it."""

from __future__ import annotations

import os

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
