"""What the machine, or the container that this is, has left for this process."""

from __future__ import annotations

import os

import psutil


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


def _text(group: str, name: str) -> str:
    with open(os.path.join(group, name), encoding="ascii") as stream:
        return stream.read()
