"""One run at a time in a root."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import IO

from beam_jobs.errors import OptionError

LOCK_NAME = ".lock"


@contextlib.contextmanager
def locked(root: str) -> Iterator[None]:
    """Holds a root while the block runs.

    Raises:
      OptionError: another run holds it, or it cannot be written.
    """
    with _open(root, "a+") as stream:
        _take(stream, root)
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield


def check_free(root: str) -> None:
    """Raises `OptionError` when another run holds a root. It may be taken a moment later; `locked` tells for sure."""
    if os.path.isfile(os.path.join(root, LOCK_NAME)):
        with _open(root, "r") as stream:
            _take(stream, root)


def _open(root: str, mode: str) -> IO[str]:
    try:
        return open(os.path.join(root, LOCK_NAME), mode, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"root {root} cannot be written: {error.strerror}; choose another --root") from error


def _take(stream: IO[str], root: str) -> None:
    try:
        # The system lets go of it when the process dies, however it dies.
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.seek(0)
        holder = stream.read().strip() or "unknown"
        raise OptionError(
            f"root {root} is in use by another run (process {holder}); wait for it, or choose another root"
        ) from None
    except OSError:  # a filesystem without locks: better unguarded than not at all
        return
