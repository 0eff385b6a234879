"""Staging of an export: it is built in a directory beside the output and renamed to the output when it is complete.

An export to `DIR/NAME` is built in `DIR/.NAME.feedline-export`. A killed export leaves that directory behind, and
nothing at `DIR/NAME`; the next export to it starts again. Object stores cannot rename directories: files appear one by
one, `export.json` last, and the mark `NAME/.feedline-export` exists while the export is incomplete.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from beam_jobs import storage
from beam_jobs.errors import FeedlineError, OptionError
from beam_jobs.storage import disk

EXPORT_NAME = "export.json"
MARK = ".feedline-export"


def check_remote(out: str) -> str:
    """Returns the URL of a remote output without a final slash.

    Raises:
      OptionError: the output holds files that are not of an unfinished export, or cannot be listed.
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
def mark_remote(url: str) -> Iterator[bytes]:
    """Writes the mark of a remote export, removes it after a complete export, and yields its content.

    Args:
      url: URL of the output, as `check_remote` returns it.

    Raises:
      OptionError: the output cannot be written.
      FeedlineError: the export could not be completed, or another export to the same output has started.
    """
    token = uuid.uuid4().hex.encode()
    try:
        _clear_remote(url)
        storage.write_bytes(storage.join(url, MARK), token)
    except OSError as error:
        raise OptionError(f"out is {url!r}, which cannot be written: {error.strerror or error}") from error
    try:
        yield token
        check_mark(url, token)
        storage.remove(storage.join(url, MARK))
    except BaseException as error:
        with contextlib.suppress(OSError):
            if _read_mark(url) == token:
                _clear_remote(url)
        if isinstance(error, OSError):  # an error of writing: reading the dataset raises other types
            reason = error.strerror or error
            raise FeedlineError(f"{url} cannot be written: {reason}; run the same command again") from error
        raise


def check_mark(url: str, token: bytes) -> None:
    """Raises `FeedlineError` if another export has written the mark; object stores have no locks."""
    if _read_mark(url) != token:
        raise FeedlineError(f"another export to {url!r} has started; wait for its end, or name another directory")


def _read_mark(url: str) -> bytes:
    try:
        return storage.read_bytes(storage.join(url, MARK))
    except FileNotFoundError:
        return b""


def _clear_remote(url: str) -> None:
    """Removes the files of an unfinished export; the mark last, so that this may be interrupted, too."""
    for name in [name for name, _, _ in storage.walk_files(url) if name != MARK]:
        storage.remove(storage.join(url, name))
    storage.remove(storage.join(url, MARK))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The directory in which an export is built.

    Attributes:
      path: path of the directory, local or remote.
      token: identifier of a remote export, the content of its mark; empty for a local one.
    """

    path: str
    token: bytes = b""

    def write_last(self, name: str, data: bytes) -> None:
        """Writes the file that marks the export as complete.

        Raises:
          FeedlineError: another export to the same output has started.
        """
        if self.token:
            check_mark(self.path, self.token)
        storage.write_bytes(storage.join(self.path, name), data)


def check(out: str) -> str:
    """Returns the absolute path, or the URL, of the output of an export.

    Raises:
      OptionError: the output is not a new or empty directory, or cannot be written.
    """
    if storage.is_remote(out):
        return check_remote(out)
    path = os.path.realpath(out)
    if os.path.lexists(path) and not os.path.isdir(path):
        raise OptionError(f"out is {out!r}, which is a file; name a new or empty directory")
    if os.path.isdir(path) and os.listdir(path):
        raise OptionError(f"out is {out!r}, which holds files; name a new or empty directory")
    if os.path.ismount(path):
        raise OptionError(f"out is {out!r}, where a disk is mounted; name a directory on it")
    refusal = disk.refusal(os.path.dirname(path))
    if refusal:
        advice = refusal.repair or "name another directory"
        raise OptionError(f"out is {out!r}, which cannot be written: {refusal.reason}; {advice}")
    return path


@contextlib.contextmanager
def staged(out: str) -> Iterator[Stage]:
    """Yields an empty directory that is renamed to `out` when the block succeeds, and removed when it fails.

    Args:
      out: path or URL of the output, as `check` returns it.

    Raises:
      OptionError: another export to `out` is running, `out` has been created meanwhile, or cannot be written.
      FeedlineError: an object store cannot be written.
    """
    if storage.is_remote(out):
        with mark_remote(out) as token:
            yield Stage(path=out, token=token)
        return
    folder, name = os.path.split(out)
    stage = os.path.join(folder, f".{name}.feedline-export")
    os.makedirs(stage, exist_ok=True)
    handle = os.open(stage, os.O_RDONLY)
    try:
        _lock(handle, stage, out)
        _clear(stage)
        try:
            yield Stage(path=stage)
            _publish(stage, out)
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            raise
    finally:
        os.close(handle)


def _lock(handle: int, stage: str, out: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The export that had the lock may have renamed the directory since it was opened here.
        is_locked = os.path.samestat(os.fstat(handle), os.stat(stage))
    except (BlockingIOError, FileNotFoundError):
        is_locked = False
    if not is_locked:
        raise OptionError(f"another export to {out!r} is running; wait for its end, or name another directory")


def _clear(stage: str) -> None:
    """Removes the files of a killed export."""
    for entry in list(os.scandir(stage)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.remove(entry.path)


def _publish(stage: str, out: str) -> None:
    try:
        os.rename(stage, out)  # replaces only an empty directory
    except OSError as error:
        raise OptionError(
            f"out is {out!r}, which cannot be replaced: {error.strerror}; name a new directory"
        ) from error
    parent = os.open(os.path.dirname(out), os.O_RDONLY)
    try:
        os.fsync(parent)  # the rename itself must survive a power cut
    finally:
        os.close(parent)
