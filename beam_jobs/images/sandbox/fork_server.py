"""The process that decoders are forked from: it has imported everything and done nothing, so a fork is safe and fast.

It is started by `pool`, with one end of a socket as its argument. Each message on it brings the socket of a new decoder
and a pipe, on which the nursery says how that decoder has ended. It ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import struct
import sys

from beam_jobs.images.sandbox.worker import IDLE_S, serve

STATUS = struct.Struct("<i")  # as `os.waitpid` gives it
_PR_SET_PDEATHSIG = 1  # of prctl(2)


def main() -> None:
    """Forks decoders until the parent process closes the socket."""
    # Ctrl-C reaches every process of a terminal; the process that started this one decides when it ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()  # a collection in a decoder would copy the pages that all of them share
    with socket.socket(fileno=int(sys.argv[1])) as control:
        _Nursery(control).run()


class _Nursery:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pipes: dict[int, int] = {}  # process id -> where to say how it ended
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)  # as `signal.set_wakeup_fd` asks

    def run(self) -> None:
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # or nothing is written to the pipe
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._woken], [], [], IDLE_S)
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            if self._control.fileno() in ready and not self._fork():
                break
            if not ready and not self._pipes:
                break
        for pid in self._pipes:
            os.kill(pid, signal.SIGKILL)  # it may be in the middle of an image that never ends

    def _reap(self) -> None:
        while self._pipes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            pipe = self._pipes.pop(pid)
            with contextlib.suppress(OSError):  # the reader has closed the pipe
                os.write(pipe, STATUS.pack(status))
            os.close(pipe)

    def _fork(self) -> bool:
        """Starts the decoder that the next message asks for; returns whether there was one."""
        message, (*descriptors,), _, _ = socket.recv_fds(self._control, 1, 2)
        if not message:
            return False
        connection, pipe = descriptors
        pid = os.fork()
        if not pid:
            self._become_decoder(connection, pipe)
        os.close(connection)
        self._pipes[pid] = pipe
        return True

    def _become_decoder(self, connection: int, pipe: int) -> None:
        code = 1
        try:
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (pipe, self._woken, self._wake, self._control.detach(), *self._pipes.values()):
                os.close(descriptor)
            with socket.socket(fileno=connection) as opened:
                serve(opened)
            code = 0
        finally:
            os._exit(code)  # whatever would be tidied up belongs to the nursery
