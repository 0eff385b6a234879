"""A directory that this process must not write to, also where the tests run as root, who may write everywhere."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

_NOBODY = 65534


@dataclass(frozen=True, kw_only=True)
class Locked:
    """The directory, who this process is while it cannot write there, and the command that lets it."""

    path: str
    user: str
    repair: str


@contextlib.contextmanager
def locked_directory(below: str) -> Iterator[Locked]:
    """Yields the directory; root is nobody for as long, who has other rights and the same files open.

    Args:
      below: directory in it that the command is to make.
    """
    path, before = tempfile.mkdtemp(prefix="feedline-locked-"), os.geteuid()
    os.chmod(path, 0o755 if before == 0 else 0o500)
    try:
        if before == 0:
            os.seteuid(_NOBODY)
        user = pwd.getpwuid(os.geteuid()).pw_name
        repair = f"sudo install -d -o {user} {path}/{below}" if before == 0 else f"chmod u+rwx {path}"
        yield Locked(path=path, user=user, repair=repair)
    finally:
        os.seteuid(before)
        os.chmod(path, 0o755)
        shutil.rmtree(path)
