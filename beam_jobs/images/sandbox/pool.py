"""The decoders of this process: started when they are needed, replaced when they die, ended when they hang.

They and this process send each other a header of JSON, then bodies of bytes. Nothing is unpickled: a decoder that a
hostile image has taken over can answer nonsense, and no more than that.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil

from beam_jobs.common import child_python
from beam_jobs.errors import FeedlineError

_FRAME_SIZE = struct.Struct("<I")  # of the header
_BODIES = "bodies"  # key of the header: the sizes of what comes after it
_MOST_BYTES = 1 << 30  # of one body; 64 megapixels are a fifth of it
_SEND_PAUSES = 60  # in the middle of a frame; the other side is swapped out, or stopped


class Gone(Exception):
    """The other side has ended, or has broken off in the middle of a frame."""


class Nonsense(Gone):
    """The other side has sent what is no frame, and may still be there."""


class Silent(Exception):
    """The other side has sent nothing for as long as the socket waits."""


def wait_at_most(connection: socket.socket, seconds: float) -> None:
    """Sets how long `receive` waits for a frame to begin, and `receive` and `send` for each part of one to go on."""
    whole = int(seconds)
    # Not `settimeout`, which makes the socket non-blocking: MSG_WAITALL would not wait any more.
    timeval = struct.pack("@ll", whole, max(0 if whole else 1, int((seconds - whole) * 1e6)))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, timeval)


def send(connection: socket.socket, header: dict[str, Any], *bodies: bytes) -> None:
    """Sends a frame.

    Raises:
      Gone: the other side has closed the connection, or has stopped and taken nothing for long.
    """
    text = json.dumps({**header, _BODIES: [len(body) for body in bodies]}).encode()
    parts = [memoryview(part) for part in (_FRAME_SIZE.pack(len(text)) + text, *bodies)]
    while parts:  # nothing is joined: a copy of all images would cost as much as sending them
        sent = _send_some(connection, parts)
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if sent:
            parts[0] = parts[0][sent:]


def _send_some(connection: socket.socket, parts: list[memoryview]) -> int:
    """Sends as many bytes as there is room for, and returns how many those were."""
    try:
        for _ in range(_SEND_PAUSES):
            with contextlib.suppress(BlockingIOError):  # the time that the socket waits is over
                return connection.sendmsg(parts)
    except OSError as error:
        raise Gone(str(error)) from error
    raise Gone("it takes nothing")


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    """Returns the next frame: its header and its bodies.

    Raises:
      Silent: none has begun in time.
      Nonsense: what has come is none.
      Gone: there will be none, or not all of it.
    """
    (size,) = _FRAME_SIZE.unpack(_receive_exactly(connection, _FRAME_SIZE.size, may_wait=False))
    try:
        header = json.loads(_receive_exactly(connection, size, may_wait=True))
        sizes = [int(size) for size in header.pop(_BODIES)]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Nonsense("nonsense") from error
    return header, [_receive_exactly(connection, size, may_wait=True) for size in sizes]


def _receive_exactly(connection: socket.socket, size: int, may_wait: bool) -> bytes:
    """Returns so many bytes; inside a frame, the time the socket waits is given again and again."""
    if size > _MOST_BYTES:
        raise Nonsense(f"nonsense: {size:,} bytes")
    data = b""
    pauses = 0
    while len(data) < size:
        try:
            part = connection.recv(size - len(data), socket.MSG_WAITALL)
        except BlockingIOError as error:
            pauses += 1
            if not data and not may_wait:
                raise Silent from error
            if pauses > _SEND_PAUSES:
                raise Gone("broken off") from error
            continue
        except OSError as error:
            raise Gone(str(error)) from error
        if not part:
            raise Gone("broken off" if data else "the end")
        data = data + part if data else part
    return data


_STARTING_S = 300.0  # importing TensorFlow, on a machine that is busy with other things
_LOOK_S = 1.0
_PATIENCE = 10  # times the limit, by the clock: a machine that swaps or is busy is not the fault of the image
_ENDING_S = 10.0  # from the end of a decoder to the word of the nursery
_STATUS_BYTES = 4  # `nursery.STATUS`, which is not imported: this process needs no TensorFlow
_ENDED = "it was ended"
_IDLE = "exit code 0"
_BLAMELESS = (_ENDED, _IDLE, "SIGKILL", "SIGTERM")
# What TensorFlow and Keras import when they find it takes half of the time of a start, and no decoder needs it.
NOT_IMPORTED = ("keras", "jax", "matplotlib", "sklearn")
_MAIN = f"sys.modules.update(dict.fromkeys({NOT_IMPORTED})); from beam_jobs.images.sandbox.worker import main; main()"


class Died(Exception):
    """The decoder has ended; the message says of what.

    Attributes:
      blameless: whether what it worked on need not be the reason: it was ended from outside, which the kernel does too
        when memory runs out, or it ended by itself because there had been no work for long.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.blameless = cause in _BLAMELESS


class TooSlow(Exception):
    """The decoder took more than its time; the message says which, and its limit."""


class Closed(FeedlineError):
    """The pool was closed and gives no more answers."""


class Decoder:
    """One decoder process."""

    def __init__(self, connection: socket.socket, status: int, pid: int) -> None:
        self._connection = connection
        self._status = status
        self._ended = b""  # what the nursery says of its end
        self.pid = pid
        wait_at_most(connection, _LOOK_S)

    @property
    def is_there(self) -> bool:
        """Whether it still is; one that had no work for long has ended."""
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True  # it has nothing to say
        except OSError:
            return False

    def ask(self, header: dict[str, Any], files: Sequence[bytes]) -> None:
        """Sends it work.

        Raises:
          Died: it is not there any more.
        """
        try:
            send(self._connection, header, *files)
        except Gone as error:
            raise Died(self._cause()) from error

    def answer(self, seconds: float) -> tuple[dict[str, Any], list[bytes]]:
        """Returns its next answer.

        Args:
          seconds: of computing time that it may take; by the clock it may take ten times as many.

        Raises:
          Died: it has ended without one.
          TooSlow: its time is up.
        """
        started, computed = time.monotonic(), self._computed()
        while (answer := self._next()) is None:
            if self._computed() - computed >= seconds:
                raise TooSlow(f"it took more than {seconds:g} s; max_seconds is {seconds:g}")
            if time.monotonic() - started > _PATIENCE * seconds:
                waited = f"it gave no answer for {_PATIENCE * seconds:g} s of the clock"
                raise TooSlow(f"{waited}; max_seconds is {seconds:g} s of computing time")
        return answer

    def kill(self) -> None:
        """Ends it, whatever it does."""
        if self._has_ended():  # its number may belong to another process by now
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Ends it, and gives back what it has here."""
        self._connection.close()
        self.kill()
        os.close(self._status)

    def _next(self) -> tuple[dict[str, Any], list[bytes]] | None:
        try:
            return receive(self._connection)
        except Nonsense as error:
            raise Died("it answered nonsense") from error
        except Gone as error:
            raise Died(self._cause()) from error
        except Silent:
            return None

    def _computed(self) -> float:
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:  # it has ended, and the next look will see it
            return 0.0
        return times.user + times.system

    def _has_ended(self, seconds: float = 0.0) -> bool:
        """Whether the nursery says, within so many seconds, how it ended."""
        look = select.poll()
        look.register(self._status, select.POLLIN)
        if not self._ended and look.poll(seconds * 1000):
            self._ended = os.read(self._status, _STATUS_BYTES)
        return len(self._ended) == _STATUS_BYTES

    def _cause(self) -> str:
        """Returns what it died of; the nursery knows, unless it died too, or one of them is stopped."""
        if not self._has_ended(_ENDING_S):
            return _ENDED
        status = int.from_bytes(self._ended, "little", signed=True)
        if os.WIFSIGNALED(status):
            return signal.Signals(os.WTERMSIG(status)).name
        return f"exit code {os.waitstatus_to_exitcode(status)}"


class Pool:
    """Decoders by the number; threads that find none idle wait for one."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._idle: list[Decoder] = []
        self._busy: set[Decoder] = set()
        self._taken = 0
        self._closed = False
        self._nursery: _Nursery | None = None

    @contextlib.contextmanager
    def decoder(self, most: int) -> Iterator[Decoder]:
        """Lends a decoder; one that died or was too slow, or whose answers were not all taken, is ended.

        Args:
          most: how many may work at a time.
        """
        one = self._take(most)
        whole = False
        try:
            yield one
            whole = True
        finally:
            self._give_back(one, whole)

    def close(self) -> None:
        """Ends all of them, also those that work; threads that wait for answers get `Closed`."""
        with self._change:
            self._closed = True
            for one in (*self._idle, *self._busy):
                one.kill()
            if self._nursery:
                self._nursery.close()
            self._change.notify_all()

    def _take(self, most: int) -> Decoder:
        with self._change:
            self._change.wait_for(lambda: self._closed or self._taken < most)
            self._check_open()
            self._taken += 1
            while self._idle:
                one = self._idle.pop()
                if one.is_there:
                    self._busy.add(one)
                    return one
                one.end()
        try:
            one = self._start()
        except BaseException:
            with self._change:
                self._taken -= 1
                self._change.notify()
            raise
        with self._change:
            self._busy.add(one)
        return one

    def _give_back(self, one: Decoder, whole: bool) -> None:
        with self._change:
            self._taken -= 1
            self._busy.discard(one)
            if whole and not self._closed:
                self._idle.append(one)
            else:
                one.end()
            self._change.notify()
            self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the ingest was stopped")

    def _start(self) -> Decoder:
        for _ in range(2):  # a nursery that had no work for long has ended, so the first time may fail
            with self._change:
                self._check_open()
                if self._nursery is None:
                    self._nursery = _Nursery()
                nursery = self._nursery
            with contextlib.suppress(Gone):
                return nursery.start()
            with self._change:
                if self._nursery is nursery:
                    self._nursery = None
            trouble = nursery.trouble()
            nursery.close()
        raise FeedlineError(f"the processes that decode images do not start: {trouble}")


class _Nursery:
    """The process of `nursery`, seen from here."""

    def __init__(self) -> None:
        self._control, theirs = _connected()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - read when it ends without a word
        self._sending = threading.Lock()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            self._process = subprocess.Popen(  # noqa: S603 - this very Python, on this very code
                child_python.command(_MAIN, str(theirs.fileno()), flags=("-W", "ignore"), working_directory=False),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=[theirs.fileno()],
                env={
                    **child_python.environment(working_directory=False),
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                    "CUDA_VISIBLE_DEVICES": "",
                },
            )

    def start(self) -> Decoder:
        """Returns a new decoder.

        Raises:
          Gone: the nursery has ended.
        """
        ours, theirs = _connected()
        status, write_end = os.pipe()
        try:
            with theirs, self._sending:
                socket.send_fds(self._control, [b"1"], [theirs.fileno(), write_end])
        except OSError as error:
            os.close(status)
            ours.close()
            raise Gone(str(error)) from error
        finally:
            os.close(write_end)
        wait_at_most(ours, _STARTING_S)
        try:
            pid = receive(ours)[0]["pid"]
        except (Gone, Silent) as error:
            os.close(status)
            ours.close()
            raise Gone(str(error)) from error
        return Decoder(ours, status, pid)

    def trouble(self) -> str:
        """Returns the last line that it wrote to standard error before it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"exit code {self._process.returncode}"

    def close(self) -> None:
        """Ends it, and with it the decoders."""
        self._control.close()
        self._process.kill()
        self._process.wait()


def _connected() -> tuple[socket.socket, socket.socket]:
    """Returns two sockets that wait, whatever `socket.setdefaulttimeout` says; the client of Google's stores calls it.

    With a time-out a socket does not block, and that it does not is passed on to the process that gets it.
    """
    pair = socket.socketpair()
    for one in pair:
        one.setblocking(True)
    return pair
