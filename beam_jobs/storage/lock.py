"""Locks between processes: a locked local file, or an object that its owner creates.

The kernel releases the lock of a local file when the last thread of its owner ends, even by SIGKILL. A store does not,
so the object contains its owner, who renews a second object, the lease. The lock of a process that ended on this
machine is replaced at once, that of another machine when its lease has not been renewed for `LEASE_S`. The time is that
of the waiting process, so clocks that differ do no harm.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

from beam_jobs import storage
from beam_jobs.common import system
from beam_jobs.errors import OptionError

LEASE_S = 30.0  # without a renewal, after which the lock of another machine is free
_RENEW_S = 5.0  # between renewals
_ATTEMPTS = 10  # to create an object, while other processes create and remove it
_ENDING_S = 10.0  # for the last threads of a killed owner, which may wait for a disk
_NAMING_S = 2.0  # for a new owner to write its name
_owned: set[str] = set()  # tokens of the locks of this process; it may lack the right to remove an object


class Locked(Exception):
    """Another process owns the lock; the text is its owner: `process 4711 on host a since 2026-01-31 12:00:00 UTC`.

    Attributes:
      command: that of the owner; empty if it is not known.
    """

    def __init__(self, text: str, command: str = "") -> None:
        super().__init__(text)
        self.command = command


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Owner of a lock.

    Attributes:
      host: name of the host.
      machine: identity of the machine or container, within which process ids are unique; see `system.identity`.
      process: process id.
      since: time of locking, in seconds since the epoch.
      token: unique name of this lock.
      leased: whether the owner renews a lease; that of a file and of an earlier release does not.
      command: what the owner does, for a process that does the same and may wait for it.
    """

    host: str = field(default_factory=socket.gethostname)
    machine: str = field(default_factory=system.identity)
    process: int = field(default_factory=os.getpid)
    since: float = field(default_factory=time.time)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    leased: bool = False
    command: str = ""

    def __str__(self) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        return f"process {self.process} on host {self.host} since {at}"

    def has_ended(self) -> bool:
        """Returns whether the owner is known to have ended; False for a process on another machine."""
        if self.machine != system.identity():
            return False
        released = self.process == os.getpid() and self.token not in _owned
        return released or not system.is_running(self.process, self.since)

    def to_bytes(self) -> bytes:
        """Returns the content of the lock file or object, as JSON."""
        return json.dumps(asdict(self)).encode()


@contextlib.contextmanager
def locked(path: str, report: Callable[[str], object] | None = None, command: str = "") -> Iterator[Callable[[], None]]:
    """Holds a lock while the block runs, and removes it afterwards.

    Args:
      path: path of the lock file or object. The directory of a local file must exist.
      report: takes a line when the lock of another machine is watched, which takes `LEASE_S` at most.
      command: see `Owner`.

    Yields:
      a check that raises `Locked` when another process took the lock over, because this one did not run for `LEASE_S`.

    Raises:
      Locked: another process owns the lock.
      OSError: the lock cannot be created.
    """
    with _lock_object(path, report, command) if storage.is_remote(path) else _lock_file(path, command) as check:
        yield check


class InUse(OptionError):
    """Another process owns the lock; the message is that of `exclusive`.

    Attributes:
      command: see `Locked`.
    """

    command: str = ""


OWNER = "{owner}"


@contextlib.contextmanager
def exclusive(
    path: str, refusal: str, report: Callable[[str], object] | None = None, command: str = ""
) -> Iterator[Callable[[], None]]:
    """Holds a lock as `locked` does, with errors for users.

    Args:
      path: path of the lock file or object.
      refusal: message of the errors, with `OWNER` in the place of the owner.
      report: see `locked`.
      command: see `Owner`.

    Yields:
      the check of `locked`.

    Raises:
      InUse: another process owns the lock.
      OSError: the lock cannot be created.
    """

    def check() -> None:
        try:
            check_lock()
        except Locked as error:
            reason = f"this one stood still for {LEASE_S:g} s, after which its lock is free"
            raise OptionError(f"{refusal.replace(OWNER, str(error))}; {reason}") from None

    with contextlib.ExitStack() as stack:
        try:
            check_lock = stack.enter_context(locked(path, report, command))
        except Locked as error:
            refused = InUse(refusal.replace(OWNER, str(error)))
            refused.command = error.command
            raise refused from None
        yield check


@contextlib.contextmanager
def _lock_file(path: str, command: str) -> Iterator[Callable[[], None]]:
    descriptor = _open_locked(path)
    token = uuid.uuid4().hex
    _owned.add(token)
    try:
        with contextlib.suppress(OSError):  # the disk may be full; the lock works without a name of its owner
            writable = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
            try:
                os.write(writable, Owner(token=token, command=command).to_bytes())
            finally:
                os.close(writable)
        yield lambda: None  # the kernel keeps it, also while the process is stopped
    finally:
        _owned.remove(token)
        with contextlib.suppress(OSError):  # its directory was removed or renamed
            os.remove(path)
        os.close(descriptor)


def _open_locked(path: str, access: int = os.O_RDONLY) -> int:
    """Returns a descriptor of the locked file.

    The file is open for reading, because a file that is open for writing prevents a read-only remount of its disk; for
    writing where locks need that, as on NFS.
    """
    started = time.monotonic()
    while True:
        descriptor = os.open(path, access | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            while not _flock(descriptor):
                content = os.pread(descriptor, 1 << 16, 0)
                owner = _parse_owner(content)
                timeout = _NAMING_S if not owner else _ENDING_S if owner.has_ended() else 0.0
                if time.monotonic() >= started + timeout:
                    raise Locked(_describe_owner(content), owner.command if owner else "")
                time.sleep(0.02)
            # The previous owner may have removed the file after it was opened here.
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EBADF or access == os.O_RDWR:
                os.close(descriptor)
                raise
            access = os.O_RDWR
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _flock(descriptor: int) -> bool:
    """Locks a file, and returns whether it succeeded; it succeeds without a lock on a filesystem without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.EBADF:  # locks need a file that is open for writing
            raise
    return True


@contextlib.contextmanager
def _lock_object(
    path: str, report: Callable[[str], object] | None = None, command: str = ""
) -> Iterator[Callable[[], None]]:
    owner = Owner(machine=system.identity(), leased=True, command=command)
    content = owner.to_bytes()
    for _ in range(_ATTEMPTS):
        if storage.create_exclusive(path, content):
            break
        with contextlib.suppress(FileNotFoundError):  # its owner has removed it
            _remove_ended(path, storage.read_bytes(path), report)
    else:
        raise OSError(f"{path} cannot be locked: other processes created and removed it {_ATTEMPTS} times; try again")
    lease, ended = _lease(path, owner), threading.Event()

    def check() -> None:
        try:
            found = storage.read_bytes(path)
        except FileNotFoundError:
            raise Locked("another process, which removed the lock of this one") from None
        if found != content:
            raise Locked(_describe_owner(found))

    def renew() -> None:
        with contextlib.suppress(OSError):  # the next renewal may succeed
            storage.write_bytes(lease, uuid.uuid4().bytes)
            if ended.is_set():  # the store took longer than the end of the block waits
                storage.remove(lease)

    _owned.add(owner.token)
    try:
        renew()
        with system.repeat(_RENEW_S, renew):
            yield check
    finally:
        _owned.remove(owner.token)
        ended.set()
        with contextlib.suppress(OSError):  # the next owner on this machine replaces it
            if storage.read_bytes(path) == content:
                storage.remove(path)
        with contextlib.suppress(OSError):
            storage.remove(lease)


def _lease(path: str, owner: Owner) -> str:
    return f"{path}-{owner.token}-lease"


def _remove_ended(path: str, content: bytes, report: Callable[[str], object] | None = None) -> None:
    """Removes the lock of a process that has ended, or does not renew its lease.

    Raises:
      Locked: the process runs, or is not known to have ended.
      FileNotFoundError: its owner removed the lock.
    """
    owner = _parse_owner(content)
    if not owner or not (owner.has_ended() or owner.leased):
        raise Locked(f"{_describe_owner(content)}; if that process has ended, delete {path}")
    if not owner.has_ended() and (owner.machine == system.identity() or _is_renewed(path, owner, content, report)):
        raise Locked(str(owner), owner.command)
    # Two processes may see the same ended owner. The slower one must not remove the new lock of the faster one.
    with _lock_object(f"{path}-{owner.token}"):
        if storage.read_bytes(path) == content:
            storage.remove(path)
            storage.remove(_lease(path, owner))


def _is_renewed(path: str, owner: Owner, content: bytes, report: Callable[[str], object] | None) -> bool:
    """Watches a lock for `LEASE_S` at most, and returns whether its owner renews the lease, or another has the lock."""
    if report:
        report(f"waiting   up to {LEASE_S:.0f} s to see whether {owner} still runs")
    lease, end = _lease(path, owner), time.monotonic() + LEASE_S
    first = _read_lease(lease)
    while time.monotonic() < end:
        time.sleep(_RENEW_S)
        if storage.read_bytes(path) != content or _read_lease(lease) != first:
            return True
    return False


def _read_lease(path: str) -> bytes:
    try:
        return storage.read_at_most(path, 1 << 10)
    except FileNotFoundError:
        return b""


def _parse_owner(content: bytes) -> Owner | None:
    try:
        return Owner(**storage.parse_json(content))
    except (ValueError, TypeError):  # a partly written file, or a file of another program
        return None


def _describe_owner(content: bytes) -> str:
    return str(_parse_owner(content) or "an unknown process")
