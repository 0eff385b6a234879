"""An export to an object store, which renames no directories: its files appear one by one, `export.json` last.

As long as it is not whole, `NAME/.feedline-export` says so. An export that is killed leaves that mark behind, and what
was written so far; the next export there removes both and begins anew.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

from beam_jobs import storage
from beam_jobs.errors import FeedlineError, OptionError

EXPORT_NAME = "export.json"
MARK = ".feedline-export"


def check(out: str) -> str:
    """Returns the URL of a place that an export may go to, without a slash at its end.

    Raises:
      OptionError: it holds something that no unfinished export left, or cannot be listed.
    """
    url = out.rstrip("/")
    try:
        first = next(storage.walk_files(url), None)
        unfinished = storage.exists(storage.join(url, MARK)) and not storage.exists(storage.join(url, EXPORT_NAME))
    except OSError as error:
        raise OptionError(f"out is {out!r}, which cannot be listed: {error.strerror or error}") from error
    if first and not unfinished:
        raise OptionError(f"out is {out!r}, which holds files; name a new or empty directory")
    return url


@contextlib.contextmanager
def claimed(url: str) -> Iterator[bytes]:
    """Yields what is in the mark of this export; without one there is nothing there, or a whole export.

    Args:
      url: what `check` returned.

    Raises:
      OptionError: nothing can be written there.
      FeedlineError: it could not be written to the end, or another export began there meanwhile.
    """
    token = uuid.uuid4().hex.encode()
    try:
        _clear(url)
        storage.write_bytes(storage.join(url, MARK), token)
    except OSError as error:
        raise OptionError(f"out is {url!r}, which cannot be written: {error.strerror or error}") from error
    try:
        yield token
        check_ours(url, token)
        storage.remove(storage.join(url, MARK))
    except BaseException as error:
        with contextlib.suppress(OSError):
            if _mark(url) == token:
                _clear(url)
        if isinstance(error, OSError):  # what cannot be read has its own error
            reason = error.strerror or error
            raise FeedlineError(f"{url} cannot be written: {reason}; run the same command again") from error
        raise


def check_ours(url: str, token: bytes) -> None:
    """Raises `FeedlineError` unless the mark is that of this export: a store has no locks."""
    if _mark(url) != token:
        raise FeedlineError(f"another export to {url!r} began meanwhile; wait for its end, or name another directory")


def _mark(url: str) -> bytes:
    try:
        return storage.read_bytes(storage.join(url, MARK))
    except FileNotFoundError:
        return b""


def _clear(url: str) -> None:
    """Removes what an unfinished export wrote; the mark goes last, so that it may be killed here, too."""
    for name in [name for name, _, _ in storage.walk_files(url) if name != MARK]:
        storage.remove(storage.join(url, name))
    storage.remove(storage.join(url, MARK))
