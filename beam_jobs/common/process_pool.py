"""Pools of child processes, which are started when needed, replaced when they die, and ended when they hang."""

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

_STARTING_S = 300.0  # longest import of TensorFlow, on a busy machine
_POLL_S = 1.0
_CLOCK_FACTOR = 10  # limit of elapsed time per computing time: a busy or swapping machine must not reject an image
_ENDING_S = 10.0  # longest time from the end of a child until the fork server sends its status
_ENDED = "it was ended"  # cause if the exit status is unknown
_IDLE = "exit code 0"  # cause of a child that ended itself after a time without work
_INTERRUPTIONS = (_ENDED, _IDLE, "SIGKILL", "SIGTERM")
# Packages that TensorFlow and Keras import if installed: they take half of the start time, and no child needs them.
NOT_IMPORTED = ("keras", "jax", "matplotlib", "sklearn")
# Freed memory of pixels stays with the process. Otherwise each image costs a page fault for every 4 KiB of its pixels.
_REUSE_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}  # bytes, of glibc
_MAIN = f"""
sys.modules.update(dict.fromkeys({NOT_IMPORTED}))
from beam_jobs.common.process_pool import ends_with_peer
from beam_jobs.common.system import slow_imports
with ends_with_peer(int(sys.argv[1])), slow_imports():
    from %s import main
main()
"""
_WATCH_S = 0.2  # between checks whether the peer has ended


@contextlib.contextmanager
def ends_with_peer(descriptor: int) -> Iterator[None]:
    """Ends this process if the peer of a socket ends while the block runs."""
    is_done = threading.Event()
    poll = select.poll()
    poll.register(descriptor, 0)  # a hang-up is always reported

    def watch() -> None:
        while not poll.poll(0):
            if is_done.wait(_WATCH_S):
                return
        os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


class ChildDied(Exception):
    """The child has ended; the message is the cause.

    Attributes:
      interrupted: whether the cause may be unrelated to the work of the child: another process or the kernel ended it,
        for example because memory ran out, or it ended itself after a time without work.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.interrupted = cause in _INTERRUPTIONS


class TooSlow(Exception):
    """The child exceeded a time limit; the message gives the time and the limit."""


class PoolClosed(FeedlineError):
    """The pool is closed and accepts no more requests."""


class Child:
    """One child process."""

    def __init__(self, connection: socket.socket, status_pipe: int, pid: int) -> None:
        self._connection = connection
        self._status_pipe = status_pipe
        self._exit_status = b""  # packed as `STATUS`; empty before the fork server has sent it
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
        """Returns the next response: its header and its bodies.

        Args:
          seconds: limit of computing time; the limit of elapsed time is ten times as long.
          may_wait: whether the limit of elapsed time applies only to a stopped process, because a disk may be slow.

        Raises:
          ChildDied: the child has ended without an answer.
          TooSlow: the child exceeds a limit.
        """
        start, start_cpu_s = time.monotonic(), self._cpu_seconds()
        while (response := self._receive()) is None:
            if self._cpu_seconds() - start_cpu_s >= seconds:
                raise TooSlow(f"it took more than {seconds:g} s; max_seconds is {seconds:g}")
            if time.monotonic() - start > _CLOCK_FACTOR * seconds and (self._is_stopped() or not may_wait):
                cause = f"it did not answer within {_CLOCK_FACTOR * seconds:g} s of elapsed time"
                raise TooSlow(f"{cause}; max_seconds is {seconds:g} s of computing time")
        return response

    def kill(self) -> None:
        """Kills the process, even if it is busy."""
        if self._has_ended():  # its process id may belong to another process by now
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kills the process and closes its descriptors in this process."""
        self._connection.close()
        self.kill()
        os.close(self._status_pipe)

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
        """Returns whether the fork server has sent the exit status, or sends it within `seconds`."""
        poll = select.poll()
        poll.register(self._status_pipe, select.POLLIN)
        if not self._exit_status and poll.poll(seconds * 1000):
            self._exit_status = os.read(self._status_pipe, STATUS.size)
        return len(self._exit_status) == STATUS.size

    def _cause(self) -> str:
        """Returns why the child ended; `_ENDED` if the fork server has died too, or either process is stopped."""
        if not self._has_ended(_ENDING_S):
            return _ENDED
        status = int.from_bytes(self._exit_status, "little", signed=True)
        if os.WIFSIGNALED(status):
            return signal.Signals(os.WTERMSIG(status)).name
        return f"exit code {os.waitstatus_to_exitcode(status)}"


class Pool:
    """A pool of child processes; a thread that needs one waits while all of them are busy."""

    def __init__(self, module: str, start_error: str) -> None:
        """Creates a pool without starting a process.

        Args:
          module: name of the module whose `main` runs the fork server of the children.
          start_error: message of the error if the children do not start, with `{}` for the cause.
        """
        self._module, self._start_error = module, start_error
        self._changed = threading.Condition()  # guards all attributes below
        self._idle: list[Child] = []
        self._busy: set[Child] = set()
        self._in_use = 0  # number of reserved children, also of those that are still starting
        self._closed = False
        self._fork_server: _ForkServer | None = None

    @contextlib.contextmanager
    def child(self, limit: int) -> Iterator[Child]:
        """Yields a child, which is ended if the block raises an exception.

        Args:
          limit: maximum number of children in use at a time; the call waits until one more may be used.
        """
        self._reserve(1, limit)
        with self._reserved() as child:
            yield child

    @contextlib.contextmanager
    def children(self, count: int) -> Iterator[list[Child]]:
        """Yields several children, as `child` yields one; waits until no other call uses a child.

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
                self._unreserve(count - len(children) - 1)  # `_reserved` has cancelled its own reservation
                raise
            yield children

    def start(self) -> None:
        """Starts the fork server, which imports the modules of the children, and does not wait for it."""
        with self._changed:
            if not (self._closed or self._fork_server):
                self._fork_server = _ForkServer(self._module)

    def close(self) -> None:
        """Ends all children, also busy ones; threads that wait for answers raise `PoolClosed`."""
        with self._changed:
            self._closed = True
            for child in (*self._idle, *self._busy):
                child.kill()
            if self._fork_server:
                self._fork_server.close()
            self._changed.notify_all()

    @contextlib.contextmanager
    def _reserved(self) -> Iterator[Child]:
        """Yields a child for one reservation by `_reserve`."""
        try:
            child = self._idle_or_new_child()
        except BaseException:
            self._unreserve(1)
            raise
        is_reusable = False
        try:
            yield child
            is_reusable = True
        finally:
            self._release(child, is_reusable)

    def _reserve(self, count: int, limit: int) -> None:
        """Reserves `count` children; waits until at most `limit` children are then reserved."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._in_use + count <= limit)
            self._check_open()
            self._in_use += count

    def _unreserve(self, count: int) -> None:
        with self._changed:
            self._in_use -= count
            self._changed.notify_all()

    def _idle_or_new_child(self) -> Child:
        with self._changed:
            self._check_open()
            while self._idle:
                child = self._idle.pop()
                if child.is_running:
                    self._busy.add(child)
                    return child
                child.end()
        child = self._start()
        with self._changed:
            self._busy.add(child)
        return child

    def _release(self, child: Child, is_reusable: bool) -> None:
        with self._changed:
            self._in_use -= 1
            self._busy.discard(child)
            if is_reusable and not self._closed:
                self._idle.append(child)
            else:
                child.end()
            self._changed.notify_all()
            self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise PoolClosed("the ingest was stopped")

    def _start(self) -> Child:
        for _ in range(2):  # the first attempt may fail: a fork server ends by itself after a time without work
            with self._changed:
                self._check_open()
                if self._fork_server is None:
                    self._fork_server = _ForkServer(self._module)
                fork_server = self._fork_server
            with contextlib.suppress(PeerClosed):
                return fork_server.start()
            with self._changed:
                if self._fork_server is fork_server:
                    self._fork_server = None
            cause = fork_server.last_error()
            fork_server.close()
        raise FeedlineError(self._start_error.format(cause))


class OwnPool:
    """The pool of this process, which is replaced by a new pool after `close` and in a forked process.

    A forked process must not use the children of its parent, and children must not delay the end of this process.

    Attributes:
      pool: the current pool.
    """

    def __init__(self, module: str, start_error: str) -> None:
        """Creates the first pool; for the arguments see `Pool`."""
        self._make_pool = functools.partial(Pool, module, start_error)
        self._renew()
        os.register_at_fork(after_in_child=self._renew)
        child_python.stop_functions.append(self.stop)

    def stop(self) -> None:
        """Ends all children, also busy ones; calls that wait for a child, and all later calls, raise `PoolClosed`."""
        self.pool.close()

    def close(self) -> None:
        """Ends all children, also busy ones; later calls start new ones."""
        old_pool = self.pool
        self._renew()
        old_pool.close()

    def _renew(self) -> None:
        self.pool = self._make_pool()


class _ForkServer:
    """A fork server: a process from which the children are forked."""

    def __init__(self, module: str) -> None:
        self._control, server_end = _socket_pair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process fails
        self._send_lock = threading.Lock()
        with server_end:
            os.set_inheritable(server_end.fileno(), True)
            code, descriptor = _MAIN % module, str(server_end.fileno())
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, with the code above
                child_python.command(code, descriptor, flags=("-W", "ignore"), working_directory=False),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=[server_end.fileno()],
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
        own_end, child_end = _socket_pair()
        status_pipe, write_end = os.pipe()
        try:
            with child_end, self._send_lock:
                socket.send_fds(self._control, [b"1"], [child_end.fileno(), write_end])
        except OSError as error:
            os.close(status_pipe)
            own_end.close()
            raise PeerClosed(str(error)) from error
        finally:
            os.close(write_end)
        set_timeout(own_end, _STARTING_S)
        try:
            pid = receive(own_end)[0]["pid"]
        except (PeerClosed, ReceiveTimeout) as error:
            os.close(status_pipe)
            own_end.close()
            raise PeerClosed(str(error)) from error
        return Child(own_end, status_pipe, pid)

    def last_error(self) -> str:
        """Waits for the end of the process; returns the last line of its standard error, or else its exit code."""
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
    """Returns two connected sockets without a timeout; the client of Google Cloud Storage sets one for all sockets.

    A socket with a timeout is non-blocking, also in the process that inherits it.
    """
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(True)
    return pair
