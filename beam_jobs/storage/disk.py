"""Local disks that take no more: whether there is room, and one line about an error instead of a traceback."""

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
from beam_jobs.errors import DiskError, FeedlineError, OptionError, chain

FULL = (errno.ENOSPC, errno.EDQUOT)

_KEPT = ": what is finished is kept"
_AGAIN = f"then run the same command again{_KEPT}"
# What helps.
_HELP = {
    errno.ENOSPC: f"make room, {_AGAIN}",
    errno.EDQUOT: f"raise the quota or remove what counts against it, {_AGAIN}",
    errno.EFBIG: f"raise the limit, see `ulimit -f`, {_AGAIN}",
    errno.EROFS: f"mount it for writing, {_AGAIN}",
    errno.EACCES: f"grant it, {_AGAIN}",
    errno.EPERM: f"permit it, {_AGAIN}",
    errno.ENOENT: "leave what a run makes alone while it runs, and run the same command again",
    errno.EIO: f"check the disk, {_AGAIN}",
    errno.ESTALE: f"mount it again, {_AGAIN}",
}
# Reading a source ends with these too, so they count only with the name of a file that is ours.
_OF_A_FILE = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.EIO, errno.ESTALE)
_QUOTED = re.compile(r"\[Errno (\d+)\][^:]*(?:: '([^']*)')?")  # in what Beam makes of an error that it cannot copy
# Libraries in C++ have errors of their own, with the words of the system in them.
_WORDS = {os.strerror(number): number for number in (*FULL, errno.EFBIG, errno.EROFS)}
_WORDS["database or disk is full"] = errno.ENOSPC
# What SQLite says of any other error of the system; which it was, the next write tells.
_UNSAID = ("unable to open database file", "disk I/O error")
_PROBE = bytes(1 << 16)


def free_bytes(path: str) -> int | None:
    """Returns how many bytes this process may still write below a local path, which need not exist; None: unknown."""
    path = os.path.abspath(path)
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def used_bytes(path: str) -> int:
    """Returns the bytes of all files below a local directory; 0 when it does not exist."""
    found = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):  # it is just being removed
                found += os.lstat(os.path.join(folder, name)).st_size
    return found


def check_room(path: str, needed: int, what: str, *, kept: bool = True) -> None:
    """Checks that so many bytes can be written below a path; remote ones are taken for endless.

    Args:
      path: directory, or one that will be made.
      needed: bytes.
      what: that is to be written, in a few words.
      kept: whether the next try finds what this one has finished.

    Raises:
      DiskError: they cannot.
    """
    free = None if storage.is_remote(path) else free_bytes(path)
    if free is not None and needed > free:
        raise DiskError(
            f"{path}: the disk has not enough room for {what}, about {size(needed)} are needed and "
            f"{size(free)} are free; {_help(errno.ENOSPC, kept)}"
        )


@contextlib.contextmanager
def explained(doing: str, *places: str, needed: Callable[[], int] = lambda: 0, kept: bool = True) -> Iterator[None]:
    """Turns what a local disk says while its block runs into one line; other errors pass.

    Args:
      doing: what the block does, such as `writing`.
      places: directories that are written to.
      needed: returns about how many bytes it writes; 0 when it is unknown.
      kept: whether the next try finds what this one has finished.

    Raises:
      DiskError: instead of an error that comes from the disk.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, FeedlineError) and type(error) is not FeedlineError:
            raise  # it is explained already
        if line := explanation(error, doing, *places, needed=needed(), kept=kept):
            raise DiskError(line) from error
        raise


def explanation(error: BaseException, doing: str, *places: str, needed: int = 0, kept: bool = True) -> str:
    """Returns one line about an error that a local disk is the cause of; empty for any other; see `explained`."""
    places = tuple(os.path.abspath(place) for place in places if not storage.is_remote(place))
    number, name = _cause(error)
    if not number and places and _unsaid(error):
        number = _refusal(places[0])
    ours = not name or any(_inside(name, place) for place in places)
    if not places or number not in _HELP or not ours or (number in _OF_A_FILE and not name):
        return ""
    # A quota leaves less than the disk has free, and no call that every file system answers says how much.
    free = free_bytes(places[0]) if number != errno.EDQUOT else None
    room = [f"about {size(needed)} are needed"] if needed else []
    room += [f"{size(free)} are free"] if free is not None else []
    note = f" ({', '.join(room)})" if number in (*FULL, errno.EFBIG) and room else f" ({name})" if name else ""
    return f"{places[0]}: {os.strerror(number)} while {doing}{note}; {_help(number, kept)}"


def _help(number: int, kept: bool) -> str:
    return _HELP[number] if kept else _HELP[number].removesuffix(_KEPT)


def _inside(name: str, place: str) -> bool:
    name = os.path.abspath(name)
    return name == place or name.startswith(place + os.sep) or place.startswith(name + os.sep)


def _cause(error: BaseException | None) -> tuple[int, str]:
    """Returns number and file of the innermost error of the system; 0 for none."""
    found = (0, "")
    for one in chain(error):
        found = _number(one) or found
    return found


def _unsaid(error: BaseException | None) -> bool:
    """Returns whether a library says that something is wrong with the disk, and not what."""
    return any(words in str(one) for one in chain(error) for words in _UNSAID)


def _refusal(place: str) -> int:
    """Returns the number of the error with which a directory refuses a small file; 0 when it takes it."""
    try:
        with tempfile.TemporaryFile(dir=place) as stream:
            stream.write(_PROBE)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        return error.errno or 0
    return 0


def _number(error: BaseException) -> tuple[int, str] | None:
    if isinstance(error, OSError) and error.errno:
        return error.errno, os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
    text = str(error)
    if quoted := _QUOTED.search(text):
        return int(quoted[1]), quoted[2] or ""
    return next(((number, "") for words, number in _WORDS.items() if words in text), None)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a directory takes no files.

    Attributes:
      reason: one line: the place, who cannot write there, and what the system says.
      repair: the command that brings the right to write; empty where only another place helps.
    """

    reason: str
    repair: str


def nearest(directory: str) -> str:
    """Returns the absolute path of a local directory, or of the nearest thing above it that is there."""
    there = os.path.abspath(directory)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    return there


def refusal(directory: str) -> Refusal | None:
    """Returns why a local directory takes no files, None when it does.

    Args:
      directory: it need not exist; then the nearest one above it counts. Nothing stays of the file that is tried.
    """
    there = nearest(directory)
    if not os.path.isdir(there):
        return Refusal(reason=f"{there} is a file", repair="")
    try:
        # Rights alone do not tell: root has all of them, on a file system that is read-only too.
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        reason = f"{there} cannot be written by {_user()}: {error.strerror or error}"
        repair = _repair(directory, there) if isinstance(error, PermissionError) else ""
        return Refusal(reason=reason, repair=repair)
    return None


def check_file(name: str, path: str) -> None:
    """Checks that a local file can be made, or replaced, before the work that fills it. A remote one is not asked for.

    Args:
      name: of the option that names it.
      path: of the file; its directory need not exist.

    Raises:
      OptionError: it cannot be written; the message says by whom, and what to do.
    """
    if storage.is_remote(path):
        return
    if os.path.isdir(path) or path.endswith("/"):
        raise OptionError(f"{name} {path} is a directory; name a file in it")
    refused = refusal(os.path.dirname(os.path.abspath(path)))
    if refused:
        remedy = refused.repair or "name a file in another directory"
        raise OptionError(f"{name} {path} cannot be written: {refused.reason}; {remedy}")


def write_file(name: str, path: str, data: bytes) -> None:
    """Writes a file, atomically, and the directories it lies in.

    Args:
      name: of the option that names it.
      path: of the file, local or remote.
      data: what it will hold.

    Raises:
      OptionError: it cannot be written.
    """
    try:
        storage.write_bytes(path, data)
    except OSError as error:
        raise OptionError(f"{name} {path} cannot be written: {error.strerror or error}") from error


def _repair(directory: str, there: str) -> str:
    if os.geteuid() == 0:  # who has every right already
        return ""
    place = os.path.abspath(directory)
    if os.stat(there).st_uid == os.geteuid():
        return f"chmod u+rwx {shlex.quote(there)}"
    if there == place:
        return f"sudo chown {_user()} {shlex.quote(place)}"
    return f"sudo install -d -o {_user()} {shlex.quote(place)}"


def _user() -> str:
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # as in a container that was started with a number
        return str(number)
