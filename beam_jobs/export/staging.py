"""Where an export is built: in a directory beside the one it is for, which it becomes by one rename when it is whole.

For an export to `DIR/NAME` that is `DIR/.NAME.feedline-export`; `DIR/.NAME.feedline-export-lock` keeps others away.
An export that is killed leaves both behind, and nothing at `DIR/NAME`; the next export there begins anew. An object
store renames no directories: the files appear one by one, `export.json` last, and as long as it is not whole,
`NAME/.feedline-export` says so.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from beam_jobs import storage
from beam_jobs.errors import FeedlineError, OptionError
from beam_jobs.storage import disk, lock

EXPORT_NAME = "export.json"
MARK = ".feedline-export"


def check_remote(out: str) -> str:
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
def claimed_remote(url: str) -> Iterator[bytes]:
    """Yields what is in the mark of this export; without one there is nothing there, or a whole export.

    Args:
      url: what `check_remote` returned.

    Raises:
      OptionError: nothing can be written there.
      FeedlineError: it could not be written to the end, or another export began there meanwhile.
    """
    token = uuid.uuid4().hex.encode()
    try:
        _clear_remote(url)
        storage.write_bytes(storage.join(url, MARK), token)
    except OSError as error:
        raise OptionError(f"out is {url!r}, which cannot be written: {error.strerror or error}") from error
    try:
        yield token
        check_ours(url, token)
        storage.remove(storage.join(url, MARK))
    except BaseException as error:
        with contextlib.suppress(OSError):
            if _remote_mark(url) == token:
                _clear_remote(url)
        if isinstance(error, OSError):  # what cannot be read has its own error
            reason = error.strerror or error
            raise FeedlineError(f"{url} cannot be written: {reason}; run the same command again") from error
        raise


def check_ours(url: str, token: bytes) -> None:
    """Raises `FeedlineError` unless the mark is that of this export: a store has no locks."""
    if _remote_mark(url) != token:
        raise FeedlineError(f"another export to {url!r} began meanwhile; wait for its end, or name another directory")


def _remote_mark(url: str) -> bytes:
    try:
        return storage.read_bytes(storage.join(url, MARK))
    except FileNotFoundError:
        return b""


def _clear_remote(url: str) -> None:
    """Removes what an unfinished export wrote; the mark goes last, so that it may be killed here, too."""
    for name in [name for name, _, _ in storage.walk_files(url) if name != MARK]:
        storage.remove(storage.join(url, name))
    storage.remove(storage.join(url, MARK))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where the files of an export are written.

    Attributes:
      path: directory, local or remote.
      token: of a remote one, what tells it from another export to the same place.
    """

    path: str
    token: bytes = b""

    def write_last(self, name: str, data: bytes) -> None:
        """Writes the file that says that the export is whole.

        Raises:
          FeedlineError: another export to the same place began meanwhile.
        """
        if self.token:
            check_ours(self.path, self.token)
        storage.write_bytes(storage.join(self.path, name), data)


def check(out: str) -> str:
    """Returns the absolute path, or the URL, of a directory that an export may become.

    Raises:
      OptionError: it holds something, or cannot be made.
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
    refused = disk.refusal(os.path.dirname(path))
    if refused:
        remedy = refused.repair or "name another directory"
        raise OptionError(f"out is {out!r}, which cannot be written: {refused.reason}; {remedy}")
    return path


@contextlib.contextmanager
def staged(out: str) -> Iterator[Stage]:
    """Yields an empty directory that takes the place of `out` when the block ends well, and goes when it does not.

    Args:
      out: what `check` returned.

    Raises:
      OptionError: another export is being written there, something appeared there meanwhile, or it takes no files.
      FeedlineError: a store takes no more.
    """
    if storage.is_remote(out):
        with claimed_remote(out) as token:
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
        storage.remove_tree(stage)  # of an export that was killed
        os.mkdir(stage)
        try:
            yield Stage(path=stage)
            _publish(stage, out)
        except BaseException:
            storage.remove_tree(stage)
            raise


def _publish(stage: str, out: str) -> None:
    try:
        storage.rename(stage, out)  # takes the place of an empty directory, and of nothing else
    except OSError as error:
        raise OptionError(f"out is {out!r}, which cannot be taken: {error.strerror}; name a new directory") from error
