"""Full, read-only and failing local disks: checks of the free space, and errors of the system as one line."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from beam_jobs import storage
from beam_jobs.common.strings import size
from beam_jobs.errors import DiskError, FeedlineError, OptionError, chain, os_errors_as

FULL = (errno.ENOSPC, errno.EDQUOT)

_RESUMABLE = ": finished work is kept"
_RUN_AGAIN = f"then run the same command again{_RESUMABLE}"
# Error number -> remedy in the message.
_REMEDIES = {
    errno.ENOSPC: f"make room, {_RUN_AGAIN}",
    errno.EDQUOT: f"raise the quota or remove files that count against it, {_RUN_AGAIN}",
    errno.EFBIG: f"raise the limit, see `ulimit -f`, {_RUN_AGAIN}",
    errno.EROFS: f"mount the disk for writing, {_RUN_AGAIN}",
    errno.EACCES: f"grant the permission, {_RUN_AGAIN}",
    errno.EPERM: f"permit the operation, {_RUN_AGAIN}",
    errno.ENOENT: "do not change files of a run while it runs, and run the same command again",
    errno.EIO: f"check the disk, {_RUN_AGAIN}",
    errno.ESTALE: f"mount the disk again, {_RUN_AGAIN}",
}
# Reading a source raises these errors too, so they are explained only for files below the directories that are written.
_FILE_ERRORS = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.EIO, errno.ESTALE)
_QUOTED = re.compile(r"\[Errno (\d+)\][^:]*(?:: '([^']*)')?")  # in the text of an error that Beam wraps
# Message of the system, which errors of C++ libraries contain -> error number.
_ERROR_NUMBERS = {os.strerror(number): number for number in (*FULL, errno.EFBIG, errno.EROFS)}
_ERROR_NUMBERS["database or disk is full"] = errno.ENOSPC
# Messages of SQLite for any other error of the system; a test write then finds the error.
_VAGUE_MESSAGES = ("unable to open database file", "disk I/O error")
_PROBE = bytes(1 << 16)  # content of the test write


def free_bytes(path: str) -> int | None:
    """Returns the free bytes for this process below a local path, which need not exist; None if unknown."""
    path = os.path.abspath(path)
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def used_bytes(path: str) -> int:
    """Returns the total size of all files below a local directory in bytes; 0 when it does not exist."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):  # another process has removed the file
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def check_room(path: str, needed: int, contents: str, *, resumable: bool = True) -> None:
    """Checks the free space below a path; remote paths are not checked.

    Args:
      path: directory, which need not exist.
      needed: required space in bytes.
      contents: name of the data in the message, such as `the shards`.
      resumable: whether another run continues after the finished work.

    Raises:
      DiskError: the disk has less free space.
    """
    free = None if storage.is_remote(path) else free_bytes(path)
    if free is not None and needed > free:
        raise DiskError(
            f"{path}: the disk has not enough room for {contents}, about {size(needed)} are needed and "
            f"{size(free)} are free; {_remedy(errno.ENOSPC, resumable)}"
        )


@contextlib.contextmanager
def explain_errors(
    activity: str, *paths: str, needed: Callable[[], int] = lambda: 0, resumable: bool = True
) -> Iterator[None]:
    """Raises errors of a local disk in the block as `DiskError` with one line; other errors are not changed.

    Args:
      activity: activity of the block, for the message, such as `writing`.
      paths: directories that the block writes to.
      needed: returns the estimated number of bytes that the block writes; 0 if unknown.
      resumable: whether another run continues after the finished work.

    Raises:
      DiskError: the disk is full, read-only or failing.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, FeedlineError) and type(error) is not FeedlineError:
            raise  # it has an explanation already
        if line := describe_error(error, activity, *paths, needed=needed(), resumable=resumable):
            raise DiskError(line) from error
        raise


def describe_error(error: BaseException, activity: str, *paths: str, needed: int = 0, resumable: bool = True) -> str:
    """Returns one line about an error of a local disk; empty for other errors; see `explain_errors`."""
    local_paths = tuple(os.path.abspath(path) for path in paths if not storage.is_remote(path))
    error_number, file_name = _cause(error)
    if not error_number and local_paths and _is_vague(error):
        error_number = _probe_error(local_paths[0])
    is_related = not file_name or any(_is_related(file_name, path) for path in local_paths)
    is_unnamed_file_error = error_number in _FILE_ERRORS and not file_name
    if not local_paths or error_number not in _REMEDIES or not is_related or is_unnamed_file_error:
        return ""
    # The free space of the disk is not that of the quota, which no portable call returns.
    free = free_bytes(local_paths[0]) if error_number != errno.EDQUOT else None
    sizes = [f"about {size(needed)} are needed"] if needed else []
    sizes += [f"{size(free)} are free"] if free is not None else []
    details = ", ".join(sizes) if error_number in (*FULL, errno.EFBIG) and sizes else file_name
    note = f" ({details})" if details else ""
    return f"{local_paths[0]}: {os.strerror(error_number)} while {activity}{note}; {_remedy(error_number, resumable)}"


def _remedy(number: int, resumable: bool) -> str:
    return _REMEDIES[number] if resumable else _REMEDIES[number].removesuffix(_RESUMABLE)


def _is_related(path: str, directory: str) -> bool:
    path = os.path.abspath(path)
    return path == directory or path.startswith(directory + os.sep) or directory.startswith(path + os.sep)


def _cause(error: BaseException | None) -> tuple[int, str]:
    """Returns number and file name of the innermost error of the system; 0 and "" without such an error."""
    cause = (0, "")
    for linked_error in chain(error):
        cause = _number_and_file(linked_error) or cause
    return cause


def _is_vague(error: BaseException | None) -> bool:
    """Returns whether a library reports an error of the disk without its number."""
    return any(words in str(linked_error) for linked_error in chain(error) for words in _VAGUE_MESSAGES)


def _probe_error(directory: str) -> int:
    """Returns the error number of writing a small file into a directory; 0 when it succeeds."""
    try:
        with tempfile.TemporaryFile(dir=directory) as stream:
            stream.write(_PROBE)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        return error.errno or 0
    return 0


def _number_and_file(error: BaseException) -> tuple[int, str] | None:
    if isinstance(error, OSError) and error.errno:
        return error.errno, os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
    text = str(error)
    if quoted := _QUOTED.search(text):
        return int(quoted[1]), quoted[2] or ""
    return next(((number, "") for words, number in _ERROR_NUMBERS.items() if words in text), None)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The reason why a directory is not writable.

    Attributes:
      reason: one line: directory, user and message of the system.
      repair: command that grants the right to write; empty when only another directory helps.
    """

    reason: str
    repair: str


def nearest_existing(directory: str) -> str:
    """Returns the absolute path of a local directory, or of its nearest parent that exists."""
    path = os.path.abspath(directory)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def refusal(directory: str) -> Refusal | None:
    """Returns the reason why a local directory is not writable, None when it is.

    Args:
      directory: directory to check; if it does not exist, its nearest existing parent is checked instead.
    """
    parent = nearest_existing(directory)
    if not os.path.isdir(parent):
        return Refusal(reason=f"{parent} is a file", repair="")
    try:
        # Writes a temporary file, because root has all permissions on a read-only file system too.
        tempfile.TemporaryFile(dir=parent).close()
    except OSError as error:
        reason = f"{parent} cannot be written by {_user()}: {error.strerror or error}"
        repair = _repair_command(directory, parent) if isinstance(error, PermissionError) else ""
        return Refusal(reason=reason, repair=repair)
    return None


def check_file(name: str, path: str) -> None:
    """Checks that a local file can be created or replaced. Remote files are not checked.

    Args:
      name: name of the option with the path.
      path: path of the file; its directory need not exist.

    Raises:
      OptionError: the file cannot be written; the message names the user and a remedy.
    """
    if storage.is_remote(path):
        return
    if os.path.isdir(path) or path.endswith("/"):
        raise OptionError(f"{name} {path} is a directory; name a file in it")
    if problem := refusal(os.path.dirname(os.path.abspath(path))):
        remedy = problem.repair or "name a file in another directory"
        raise OptionError(f"{name} {path} cannot be written: {problem.reason}; {remedy}")


def write_file(name: str, path: str, data: bytes) -> None:
    """Writes a file atomically and creates its directory.

    Args:
      name: name of the option with the path.
      path: path of the file, local or remote.
      data: content of the file.

    Raises:
      OptionError: the file cannot be written.
    """
    with os_errors_as(OptionError, f"{name} {path} cannot be written"):
        storage.write_bytes(path, data)


def _repair_command(directory: str, parent: str) -> str:
    if os.geteuid() == 0:  # root has every permission
        return ""
    path = os.path.abspath(directory)
    if os.stat(parent).st_uid == os.geteuid():
        return f"chmod u+rwx {shlex.quote(parent)}"
    if parent == path:
        return f"sudo chown {_user()} {shlex.quote(path)}"
    return f"sudo install -d -o {_user()} {shlex.quote(path)}"


def _user() -> str:
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # such as in a container that runs with a numeric user id
        return str(number)
