"""Child processes that do a kind of work: started when needed, replaced when they die, ended when they hang."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil

from beam_jobs.common import child_python
from beam_jobs.common.fork_server import STATUS
from beam_jobs.common.messages import InvalidFrame, PeerClosed, ReceiveTimeout, receive, send, set_timeout
from beam_jobs.errors import FeedlineError

_STARTING_S = 300.0  # for the import of TensorFlow, on a busy machine
_POLL_S = 1.0
_CLOCK_FACTOR = 10  # clock time per computing time: a machine that swaps or is busy is not the fault of the image
_ENDING_S = 10.0  # from the end of a child to the status that the fork server sends
_ENDED = "it was ended"
_IDLE = "exit code 0"
_INTERRUPTIONS = (_ENDED, _IDLE, "SIGKILL", "SIGTERM")
# Packages that TensorFlow and Keras import if installed: they take half of the start time, and no child needs them.
NOT_IMPORTED = ("keras", "jax", "matplotlib", "sklearn")
# Freed pixels stay with the process. Without it, images of some megapixels cost a page fault for every 4 KiB of them.
_REUSE_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}  # bytes, of glibc
_MAIN = f"""
sys.modules.update(dict.fromkeys({NOT_IMPORTED}))
from beam_jobs.common.process_pool import ends_with_peer
from beam_jobs.common.system import slow_imports
with ends_with_peer(int(sys.argv[1])), slow_imports():
    from %s import main
main()
"""
_WATCH_S = 0.2


@contextlib.contextmanager
def ends_with_peer(descriptor: int) -> Iterator[None]:
    """Ends this process within the block when the peer of a socket has ended; so does the watching thread."""
    done = threading.Event()
    poll = select.poll()
    poll.register(descriptor, 0)  # a hang-up is always reported

    def watch() -> None:
        while not poll.poll(0):
            if done.wait(_WATCH_S):
                return
        os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class ChildDied(Exception):
    """The child has ended; the message is the cause.

    Attributes:
      interrupted: whether its work need not be the cause: the child was ended from outside, as the kernel does when
        memory runs out, or ended by itself after a time without work.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.interrupted = cause in _INTERRUPTIONS


class TooSlow(Exception):
    """The child exceeded a time limit; the message holds the time and the limit."""


class PoolClosed(FeedlineError):
    """The pool is closed and returns no more answers."""


class Child:
    """One child process."""

    def __init__(self, connection: socket.socket, status: int, pid: int) -> None:
        self._connection = connection
        self._status = status
        self._exit_status = b""  # as the fork server sends it
        self.pid = pid
        set_timeout(connection, _POLL_S)

    @property
    def is_running(self) -> bool:
        """Whether the child still runs; it exits after an idle timeout."""
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True  # the connection is open and has no data
        except OSError:
            return False

    def ask(self, header: dict[str, Any], files: Sequence[bytes]) -> None:
        """Sends a request.

        Raises:
          ChildDied: the child has ended.
        """
        try:
            send(self._connection, header, *files)
        except PeerClosed as error:
            raise ChildDied(self._cause()) from error

    def answer(self, seconds: float, may_wait: bool = False) -> tuple[dict[str, Any], list[bytes]]:
        """Returns the next answer.

        Args:
          seconds: limit of computing time; the limit of clock time is ten times as long.
          may_wait: whether the limit of clock time counts only for a stopped process, because a disk may take longer.

        Raises:
          ChildDied: the child has ended without an answer.
          TooSlow: the child exceeds a limit.
        """
        start, start_cpu_s = time.monotonic(), self._cpu_seconds()
        while (answer := self._receive()) is None:
            if self._cpu_seconds() - start_cpu_s >= seconds:
                raise TooSlow(f"it took more than {seconds:g} s; max_seconds is {seconds:g}")
            if time.monotonic() - start > _CLOCK_FACTOR * seconds and (self._is_stopped() or not may_wait):
                cause = f"it gave no answer for {_CLOCK_FACTOR * seconds:g} s of the clock"
                raise TooSlow(f"{cause}; max_seconds is {seconds:g} s of computing time")
        return answer

    def kill(self) -> None:
        """Kills the process, also while it works."""
        if self._has_ended():  # its process id may belong to another process by now
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kills the process and closes its descriptors in this process."""
        self._connection.close()
        self.kill()
        os.close(self._status)

    def _receive(self) -> tuple[dict[str, Any], list[bytes]] | None:
        try:
            return receive(self._connection)
        except InvalidFrame as error:
            raise ChildDied("it sent an invalid answer") from error
        except PeerClosed as error:
            raise ChildDied(self._cause()) from error
        except ReceiveTimeout:
            return None

    def _cpu_seconds(self) -> float:
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:  # it has ended, as the next call of `_receive` will detect
            return 0.0
        return times.user + times.system

    def _is_stopped(self) -> bool:
        with contextlib.suppress(psutil.Error):  # it has ended, as the next call of `_receive` will detect
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        return False

    def _has_ended(self, seconds: float = 0.0) -> bool:
        """Returns whether the fork server sends the exit status within some seconds."""
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        if not self._exit_status and poll.poll(seconds * 1000):
            self._exit_status = os.read(self._status, STATUS.size)
        return len(self._exit_status) == STATUS.size

    def _cause(self) -> str:
        """Returns the cause of the end; unknown if the fork server has died too, or one of them is stopped."""
        if not self._has_ended(_ENDING_S):
            return _ENDED
        status = int.from_bytes(self._exit_status, "little", signed=True)
        if os.WIFSIGNALED(status):
            return signal.Signals(os.WTERMSIG(status)).name
        return f"exit code {os.waitstatus_to_exitcode(status)}"


class Pool:
    """A pool of children; threads wait while all are busy."""

    def __init__(self, module: str, no_start: str) -> None:
        """Stores what the children are; none is started.

        Args:
          module: name of the module whose `main` runs their fork server.
          no_start: message when they do not start, with `{}` for the cause.
        """
        self._module, self._no_start = module, no_start
        self._change = threading.Condition()
        self._idle: list[Child] = []
        self._busy: set[Child] = set()
        self._in_use = 0
        self._closed = False
        self._fork_server: _ForkServer | None = None

    @contextlib.contextmanager
    def child(self, limit: int) -> Iterator[Child]:
        """Provides a child; it is ended if the caller leaves the context with an exception.

        Args:
          limit: maximum number of children in use.
        """
        self._reserve(1, limit)
        with self._reserved() as child:
            yield child

    @contextlib.contextmanager
    def children(self, count: int) -> Iterator[list[Child]]:
        """Provides several children, as `child` does one, when no other call has any.

        Args:
          count: number of children.
        """
        self._reserve(count, count)
        with contextlib.ExitStack() as stack:
            children: list[Child] = []
            try:
                while len(children) < count:
                    children.append(stack.enter_context(self._reserved()))
            except BaseException:
                self._leave(count - len(children) - 1)  # `_reserved` has left its own place
                raise
            yield children

    def start(self) -> None:
        """Starts the fork server, which imports what all children need, and does not wait for it."""
        with self._change:
            if not (self._closed or self._fork_server):
                self._fork_server = _ForkServer(self._module)

    def close(self) -> None:
        """Ends all children, also busy ones; threads that wait for answers get `PoolClosed`."""
        with self._change:
            self._closed = True
            for child in (*self._idle, *self._busy):
                child.kill()
            if self._fork_server:
                self._fork_server.close()
            self._change.notify_all()

    @contextlib.contextmanager
    def _reserved(self) -> Iterator[Child]:
        """Provides one of the children that `_reserve` has counted."""
        try:
            child = self._take()
        except BaseException:
            self._leave(1)
            raise
        succeeded = False
        try:
            yield child
            succeeded = True
        finally:
            self._release(child, succeeded)

    def _reserve(self, count: int, limit: int) -> None:
        with self._change:
            self._change.wait_for(lambda: self._closed or self._in_use + count <= limit)
            self._check_open()
            self._in_use += count

    def _leave(self, count: int) -> None:
        with self._change:
            self._in_use -= count
            self._change.notify_all()

    def _take(self) -> Child:
        with self._change:
            self._check_open()
            while self._idle:
                child = self._idle.pop()
                if child.is_running:
                    self._busy.add(child)
                    return child
                child.end()
        child = self._start()
        with self._change:
            self._busy.add(child)
        return child

    def _release(self, child: Child, succeeded: bool) -> None:
        with self._change:
            self._in_use -= 1
            self._busy.discard(child)
            if succeeded and not self._closed:
                self._idle.append(child)
            else:
                child.end()
            self._change.notify_all()
            self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise PoolClosed("the ingest was stopped")

    def _start(self) -> Child:
        for _ in range(2):  # the first attempt may fail: a fork server ends by itself after a time without work
            with self._change:
                self._check_open()
                if self._fork_server is None:
                    self._fork_server = _ForkServer(self._module)
                fork_server = self._fork_server
            with contextlib.suppress(PeerClosed):
                return fork_server.start()
            with self._change:
                if self._fork_server is fork_server:
                    self._fork_server = None
            cause = fork_server.last_error()
            fork_server.close()
        raise FeedlineError(self._no_start.format(cause))


class OwnPool:
    """The pool of this process: another one after `close`, and in a forked process.

    A forked process must not talk to the children of its parent, and children must not delay the end of this process.

    Attributes:
      pool: the pool.
    """

    def __init__(self, module: str, no_start: str) -> None:
        """Makes a pool; for the arguments see `Pool`."""
        self._make = functools.partial(Pool, module, no_start)
        self._renew()
        os.register_at_fork(after_in_child=self._renew)
        child_python.stops.append(self.stop)

    def stop(self) -> None:
        """Ends all children, also busy ones; a call that waits for one, and each later call, raises `PoolClosed`."""
        self.pool.close()

    def close(self) -> None:
        """Ends all children, also busy ones; later calls start new ones."""
        old = self.pool
        self._renew()
        old.close()

    def _renew(self) -> None:
        self.pool = self._make()


class _ForkServer:
    """A fork server: a process from which the children are forked."""

    def __init__(self, module: str) -> None:
        self._control, theirs = _socket_pair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process fails
        self._sending = threading.Lock()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            code, end = _MAIN % module, str(theirs.fileno())
            self._process = subprocess.Popen(  # noqa: S603 - this very Python, on this very code
                child_python.command(code, end, flags=("-W", "ignore"), working_directory=False),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=[theirs.fileno()],
                env={
                    **child_python.environment(working_directory=False),
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                    "CUDA_VISIBLE_DEVICES": "",
                    **_REUSE_MEMORY,
                },
            )

    def start(self) -> Child:
        """Returns a new child.

        Raises:
          PeerClosed: the fork server has ended.
        """
        ours, theirs = _socket_pair()
        status, write_end = os.pipe()
        try:
            with theirs, self._sending:
                socket.send_fds(self._control, [b"1"], [theirs.fileno(), write_end])
        except OSError as error:
            os.close(status)
            ours.close()
            raise PeerClosed(str(error)) from error
        finally:
            os.close(write_end)
        set_timeout(ours, _STARTING_S)
        try:
            pid = receive(ours)[0]["pid"]
        except (PeerClosed, ReceiveTimeout) as error:
            os.close(status)
            ours.close()
            raise PeerClosed(str(error)) from error
        return Child(ours, status, pid)

    def last_error(self) -> str:
        """Returns the last line of standard error after the end of the process."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"exit code {self._process.returncode}"

    def close(self) -> None:
        """Ends the process and its children."""
        self._control.close()
        self._process.kill()
        self._process.wait()


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Returns two blocking sockets; the client of Google Cloud Storage calls `socket.setdefaulttimeout`.

    A socket with a timeout is non-blocking, also in the process that inherits it.
    """
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(True)
    return pair
