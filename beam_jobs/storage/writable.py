"""Files that are written where an option says, and whether a place takes them, found out by trying it."""

from __future__ import annotations

import os
import pwd
import shlex
import tempfile
from dataclasses import dataclass

from beam_jobs import storage
from beam_jobs.errors import OptionError


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
