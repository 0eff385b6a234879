"""One process at a time in a place: a locked file, or an object that only its owner creates.

The kernel releases the lock of a local file when the last thread of its owner ends, even by SIGKILL. A store has
nothing like it, so the object names its owner: one that ended on this machine is replaced, and one on another machine
is named to the user.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from beam_jobs import storage
from beam_jobs.common import system

_ATTEMPTS = 10  # to create an object that its owners remove meanwhile
_ENDING_S = 10.0  # for the last threads of an owner that was killed, one of which may wait for a disk
_NAMING_S = 2.0  # for a new owner to write its name
_owned: set[str] = set()  # tokens of the locks that this process owns: it may not have the right to remove an object


class Locked(Exception):
    """Another process owns the lock; the text says which: `process 4711 on host a since 2026-01-31 12:00:00 UTC`."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who owns a lock.

    Attributes:
      host: name of the host.
      machine: which process numbers `process` is one of, see `system.identity`.
      process: number of the process.
      since: seconds since the epoch.
      token: tells this lock from any other of the same process.
    """

    host: str = field(default_factory=socket.gethostname)
    machine: str = field(default_factory=system.identity)
    process: int = field(default_factory=os.getpid)
    since: float = field(default_factory=time.time)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __str__(self) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        return f"process {self.process} on host {self.host} since {at}"

    def has_ended(self) -> bool:
        """Returns whether the process certainly owns it no more; of one on another machine nothing is known."""
        if self.machine != system.identity():
            return False
        released = self.process == os.getpid() and self.token not in _owned
        return released or not system.is_running(self.process, self.since)

    def to_bytes(self) -> bytes:
        """Returns the content of the file or object."""
        return json.dumps(asdict(self)).encode()


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Owns a lock while the block runs; nothing stays of it.

    Args:
      path: of the file or object that is the lock. The directory of a local one exists.

    Raises:
      Locked: another process owns it.
      OSError: it cannot be created.
    """
    with _object(path) if storage.is_remote(path) else _file(path):
        yield


@contextlib.contextmanager
def _file(path: str) -> Iterator[None]:
    number = _open(path)
    token = uuid.uuid4().hex
    _owned.add(token)
    try:
        with contextlib.suppress(OSError):  # a full disk takes no name of an owner
            writing = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
            try:
                os.write(writing, Owner(token=token).to_bytes())
            finally:
                os.close(writing)
        yield
    finally:
        _owned.remove(token)
        with contextlib.suppress(OSError):  # its directory was removed or renamed
            os.remove(path)
        os.close(number)


def _open(path: str, access: int = os.O_RDONLY) -> int:
    """Returns a descriptor of the file that has the lock on it.

    It is open for reading, because a file that is open for writing keeps its disk from being made read-only; where
    that takes no lock, as on NFS, for writing.
    """
    began = time.monotonic()
    while True:
        number = os.open(path, access | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            while not _flock(number):
                content = os.pread(number, 1 << 16, 0)
                owner = _owner(content)
                patience = _NAMING_S if not owner else _ENDING_S if owner.has_ended() else 0.0
                if time.monotonic() >= began + patience:
                    raise Locked(_described(content))
                time.sleep(0.02)
            # The owner before may have removed the file after it was opened here.
            if os.path.samestat(os.fstat(number), os.stat(path)):
                return number
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EBADF or access == os.O_RDWR:
                os.close(number)
                raise
            access = os.O_RDWR
        except BaseException:
            os.close(number)
            raise
        os.close(number)


def _flock(number: int) -> bool:
    """Returns whether the file is locked now; a filesystem without locks is better unguarded than of no use."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.EBADF:  # a lock asks for a file that is open for writing
            raise
    return True


@contextlib.contextmanager
def _object(path: str) -> Iterator[None]:
    ours = Owner()
    owner = ours.to_bytes()
    for _ in range(_ATTEMPTS):
        if storage.create_exclusive(path, owner):
            break
        with contextlib.suppress(FileNotFoundError):  # its owner has removed it
            _replace_ended(path, storage.read_bytes(path))
    else:
        raise OSError(f"{path} is created and removed again and again by other processes")
    _owned.add(ours.token)
    try:
        yield
    finally:
        _owned.remove(ours.token)
        with contextlib.suppress(OSError):  # the next owner on this machine replaces it
            if storage.read_bytes(path) == owner:
                storage.remove(path)


def _replace_ended(path: str, content: bytes) -> None:
    """Removes the lock of a process that has ended.

    Raises:
      Locked: it has not ended, or that cannot be known.
    """
    owner = _owner(content)
    if not owner or not owner.has_ended():
        raise Locked(f"{_described(content)}; if that process has ended, delete {path}")
    # Two processes may see the same ended owner. The slower one must not remove the new lock of the faster one.
    with _object(f"{path}-{owner.token}"):
        if storage.read_bytes(path) == content:
            storage.remove(path)


def _owner(content: bytes) -> Owner | None:
    try:
        return Owner(**storage.parse_json(content))
    except (ValueError, TypeError):  # it is being written, or of another program
        return None


def _described(content: bytes) -> str:
    return str(_owner(content) or "an unknown process")
