"""Files that commands write where they are told to."""

from __future__ import annotations

import os

from beam_jobs import storage
from beam_jobs.errors import OptionError


def check_place(option: str, path: str) -> None:
    """Looks whether a file can be written: better now than after a long read. Missing directories will be made.

    Args:
      option: that names the file, such as `--html`.
      path: of it.

    Raises:
      OptionError: it cannot.
    """
    if storage.is_remote(path):
        return
    if os.path.isdir(path) or path.endswith("/"):
        raise OptionError(f"{option} {path} is a directory; name a file")
    folder = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise OptionError(f"{option} {path} cannot be written: {folder} is no directory; name a file in one")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OptionError(f"{option} {path} cannot be written: nothing may be written to {folder}; name another place")


def write(option: str, path: str, data: bytes) -> None:
    """Writes a file, atomically, and the directories it lies in.

    Raises:
      OptionError: it cannot be written.
    """
    try:
        storage.write_bytes(path, data)
    except OSError as error:
        raise OptionError(f"{option} {path} cannot be written: {error.strerror or error}") from error
