"""Staging of an export: it is built in a directory beside the output and renamed to the output when it is complete.

An export to `DIR/NAME` is built in `DIR/.NAME.feedline-export`, locked by `DIR/.NAME.feedline-export-lock`. A killed
export leaves both behind, and nothing at `DIR/NAME`; the next export to it starts again. Object stores cannot rename
directories: files appear one by one, `export.json` last, and the mark `NAME/.feedline-export` exists while the export
is incomplete.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from beam_jobs import storage
from beam_jobs.errors import FeedlineError, OptionError, os_errors_as
from beam_jobs.storage import disk, lock

EXPORT_NAME = "export.json"
MARK = ".feedline-export"


def check_remote(out: str) -> str:
    """Returns the URL of a remote output without a final slash.

    Raises:
      OptionError: the output has files that do not belong to an unfinished export, or cannot be listed.
    """
    url = out.rstrip("/")
    with os_errors_as(OptionError, f"out is {out!r}, which cannot be listed"):
        first_object = next(storage.list_objects(url), None)
        is_unfinished = storage.exists(storage.join(url, MARK)) and not storage.exists(storage.join(url, EXPORT_NAME))
    if first_object and not is_unfinished:
        raise OptionError(f"out is {out!r}, which holds files; name a new or empty directory")
    return url


@contextlib.contextmanager
def mark_remote(url: str) -> Iterator[bytes]:
    """Writes the mark of a remote export, yields its content, and removes the mark after a complete export.

    Args:
      url: URL of the output, as `check_remote` returns it.

    Raises:
      OptionError: the output cannot be written.
      FeedlineError: the export could not be completed, or another export to the same output has started.
    """
    token = uuid.uuid4().hex.encode()
    with os_errors_as(OptionError, f"out is {url!r}, which cannot be written"):
        _clear_remote(url)
        storage.write_bytes(storage.join(url, MARK), token)
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
    """Removes the files of an unfinished export, its mark last, so that the next export can repeat the removal."""
    for name in [name for name, *_ in storage.list_objects(url) if name != MARK]:
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
    if refusal := disk.refusal(os.path.dirname(path)):
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
    os.makedirs(folder, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.locked(f"{stage}-lock"))
        except lock.Locked as error:
            remedy = "wait for its end, or name another directory"
            raise OptionError(f"another export to {out!r} is running, {error}; {remedy}") from None
        storage.remove_tree(stage)  # files of a killed export
        os.mkdir(stage)
        try:
            yield Stage(path=stage)
            _publish(stage, out)
        except BaseException:
            storage.remove_tree(stage)
            raise


def _publish(stage: str, out: str) -> None:
    try:
        storage.rename(stage, out)  # replaces only an empty directory
    except OSError as error:
        raise OptionError(
            f"out is {out!r}, which cannot be replaced: {error.strerror}; name a new directory"
        ) from error
