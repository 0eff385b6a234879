"""A fork server: a process that imports all modules once, and then forks processes that have these modules.

It has one thread, so a fork is safe and fast. `process_pool` starts it with one end of a socket as its argument. Each
message on the socket contains the socket of a new process and a pipe, to which the fork server writes the exit status
of that process. The fork server ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable

STATUS = struct.Struct("<i")  # exit status as `os.waitpid` returns it
IDLE_S = 60.0  # a process without work ends after this time, to release its memory
_PR_SET_PDEATHSIG = 1  # of prctl(2): sets the signal that a process gets when its parent ends


def run(serve: Callable[[socket.socket], None]) -> None:
    """Forks processes until the parent process closes the socket.

    Args:
      serve: function that a new process calls with its end of its socket.
    """
    # Ctrl-C reaches every process of a terminal; the parent process decides when this one ends.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        _ForkServer(control, serve).run()


class _ForkServer:
    def __init__(self, control: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        self._control = control
        self._serve = serve
        self._pipes: dict[int, int] = {}  # process id -> pipe for the exit status
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)  # as `signal.set_wakeup_fd` requires

    def run(self) -> None:
        signal.set_wakeup_fd(self._wake_writer)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing is written to the pipe
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._wake_reader], [], [], IDLE_S)
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
                self._send_exit_statuses()
            if self._control.fileno() in ready and not self._fork():
                break
            if not ready and not self._pipes:
                break
        for pid in self._pipes:
            os.kill(pid, signal.SIGKILL)  # the process may never end by itself

    def _send_exit_statuses(self) -> None:
        while self._pipes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            pipe = self._pipes.pop(pid)
            with contextlib.suppress(OSError):  # the reader has closed the pipe
                os.write(pipe, STATUS.pack(status))
            os.close(pipe)

    def _fork(self) -> bool:
        """Starts a process for the next message; returns False when the socket is closed."""
        message, (*descriptors,), _, _ = socket.recv_fds(self._control, 1, 2)
        if not message:
            return False
        connection, pipe = descriptors
        pid = os.fork()
        if not pid:
            self._become_child(connection, pipe)
        os.close(connection)
        self._pipes[pid] = pipe
        return True

    def _become_child(self, connection: int, pipe: int) -> None:
        exit_code = 1
        try:
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (pipe, self._wake_reader, self._wake_writer, self._control.detach(), *self._pipes.values()):
                os.close(fd)
            with socket.socket(fileno=connection) as child_socket:
                self._serve(child_socket)
            exit_code = 0
        finally:
            os._exit(exit_code)  # exit handlers and open files belong to the fork server
