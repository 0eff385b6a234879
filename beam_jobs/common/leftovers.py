"""Temporary directories that do not outlive a process for long, not even one that was killed.

A process that ends in an orderly way removes its own. One that is killed cannot, so the next one to ask for a directory
removes those whose owners are gone: an owner holds a lock on its directory, and the kernel lets go of it when it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import time

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
