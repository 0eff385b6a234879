"""Locks between processes: a locked local file, or an object that its owner creates.

The kernel releases the lock of a local file when the last thread of its owner ends, even by SIGKILL. A store does not,
so the object names its owner, which renews a second object, the lease. If the owner ran on this machine and has ended,
its lock is replaced at once; if it runs on another machine, when it has not renewed the lease for `LEASE_S`. The
waiting process measures that time, so the clocks of the machines may differ.
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

LEASE_S = 30.0  # time without a renewal, after which the lock of another machine may be replaced
_RENEW_S = 5.0  # between renewals
_ATTEMPTS = 10  # to create an object, while other processes create and remove it
_ENDING_S = 10.0  # longest wait for the last threads of a killed owner, which may wait for a disk
_NAMING_S = 2.0  # longest wait until a new owner has written its name
_owned: set[str] = set()  # tokens of the current locks of this process; objects of its earlier locks may still exist


class Locked(Exception):
    """Another process owns the lock; the text names it: `process 4711 on host a since 2026-01-31 12:00:00 UTC`.

    Attributes:
      command: command of the owner; empty if it is not known.
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
      leased: whether the owner renews a lease; False for a local file and for an owner of an earlier release.
      command: text that identifies the command of the owner; a process with an equal command may wait for it.
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
        is_released = self.process == os.getpid() and self.token not in _owned
        return is_released or not system.is_running(self.process, self.since)

    def to_bytes(self) -> bytes:
        """Returns the content of the lock file or object, as JSON."""
        return json.dumps(asdict(self)).encode()


@contextlib.contextmanager
def locked(path: str, report: Callable[[str], object] | None = None, command: str = "") -> Iterator[Callable[[], None]]:
    """Locks a file or object while the block runs, and removes it afterwards.

    Args:
      path: path of the lock file or object. The directory of a local file must exist.
      report: called with a line of text before the lock of another machine is watched, which takes `LEASE_S` at most.
      command: see `Owner`.

    Yields:
      a function that raises `Locked` if another process has replaced the lock, because this one stopped for `LEASE_S`.

    Raises:
      Locked: another process owns the lock.
      OSError: the lock cannot be created.
    """
    with _lock_object(path, report, command) if storage.is_remote(path) else _lock_file(path, command) as check:
        yield check


class InUse(OptionError):
    """Another process owns the lock; the message is the `refusal` of `exclusive`.

    Attributes:
      command: see `Locked`.
    """

    command: str = ""


OWNER = "{owner}"


@contextlib.contextmanager
def exclusive(
    path: str, refusal: str, report: Callable[[str], object] | None = None, command: str = ""
) -> Iterator[Callable[[], None]]:
    """Locks a file or object as `locked` does, with errors for users.

    Args:
      path: path of the lock file or object.
      refusal: message of the errors; `OWNER` in it is replaced by the text of the owner.
      report: see `locked`.
      command: see `Owner`.

    Yields:
      the function of `locked`, which raises `OptionError` instead.

    Raises:
      InUse: another process owns the lock.
      OSError: the lock cannot be created.
    """

    def check() -> None:
        try:
            check_lock()
        except Locked as error:
            reason = f"this process was stopped for {LEASE_S:g} s, after which its lock may be replaced"
            raise OptionError(f"{refusal.replace(OWNER, str(error))}; {reason}") from None

    with contextlib.ExitStack() as stack:
        try:
            check_lock = stack.enter_context(locked(path, report, command))
        except Locked as error:
            in_use = InUse(refusal.replace(OWNER, str(error)))
            in_use.command = error.command
            raise in_use from None
        yield check


@contextlib.contextmanager
def _lock_file(path: str, command: str) -> Iterator[Callable[[], None]]:
    descriptor = _open_locked(path)
    token = uuid.uuid4().hex
    _owned.add(token)
    try:
        with contextlib.suppress(OSError):  # the disk may be full; the lock also works without the name of its owner
            writable_descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
            try:
                os.write(writable_descriptor, Owner(token=token, command=command).to_bytes())
            finally:
                os.close(writable_descriptor)
        yield lambda: None  # the kernel keeps the lock, also while the process is suspended
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
    """Locks a file, and returns whether it succeeded; on a filesystem without locks, returns True without locking."""
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
    lease_path, has_block_ended = _lease_path(path, owner), threading.Event()

    def check() -> None:
        try:
            current_content = storage.read_bytes(path)
        except FileNotFoundError:
            raise Locked("another process, which has removed the lock of this process") from None
        if current_content != content:
            raise Locked(_describe_owner(current_content))

    def renew() -> None:
        with contextlib.suppress(OSError):  # the next renewal may succeed
            storage.write_bytes(lease_path, uuid.uuid4().bytes)
            if has_block_ended.is_set():  # the block has ended without waiting any longer for this slow write
                storage.remove(lease_path)

    _owned.add(owner.token)
    try:
        renew()
        with system.repeat(_RENEW_S, renew):
            yield check
    finally:
        _owned.remove(owner.token)
        has_block_ended.set()
        with contextlib.suppress(OSError):  # the next owner on this machine replaces it
            if storage.read_bytes(path) == content:
                storage.remove(path)
        with contextlib.suppress(OSError):
            storage.remove(lease_path)


def _lease_path(path: str, owner: Owner) -> str:
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
            storage.remove(_lease_path(path, owner))


def _is_renewed(path: str, owner: Owner, content: bytes, report: Callable[[str], object] | None) -> bool:
    """Watches a lock for `LEASE_S` at most; returns whether its owner renews the lease or has been replaced."""
    if report:
        report(f"waiting   up to {LEASE_S:.0f} s to see whether {owner} still runs")
    lease_path, deadline = _lease_path(path, owner), time.monotonic() + LEASE_S
    initial_lease = _read_lease(lease_path)
    while time.monotonic() < deadline:
        time.sleep(_RENEW_S)
        if storage.read_bytes(path) != content or _read_lease(lease_path) != initial_lease:
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
