"""A decoder process: takes images, answers what the functions in `_WORKS` say of them. And what it is forked from.

The nursery has imported everything and done nothing, so a fork is safe and fast. It is started by `pool`, with one end
of a socket as its argument. Each message on it brings the socket of a new decoder and a pipe, on which the nursery says
how that decoder has ended. It ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import cv2
import psutil
import tensorflow as tf

from beam_jobs.errors import BadImage
from beam_jobs.images import headers, process, thumbnail
from beam_jobs.images.annotations import normalise_mask
from beam_jobs.images.decode import decode_checked
from beam_jobs.images.geometry import Geometry
from beam_jobs.images.sandbox.pool import Gone, Silent, receive, send, wait_at_most
from beam_jobs.options import ImageLimits, PixelOptions

MEMORY_BYTES = 2 << 30  # more than a decoder starts with: 64 megapixels of 4 x 8 bits take an eighth of it
TOGETHER_S = 0.05  # so long answers wait for more of them
IDLE_S = 60.0  # without work it ends, and gives back its memory
# What an image that is too large for the memory raises, here or inside of TensorFlow.
_TOO_MUCH = (MemoryError, tf.errors.ResourceExhaustedError)

Answer = tuple[dict[str, Any], list[bytes]]  # the bytes when they are other than those that came
Work = Callable[[bytes], Answer]


def serve(connection: socket.socket) -> None:
    """Answers until the other side ends, or asks nothing for a minute."""
    _alone()
    wait_at_most(connection, IDLE_S)
    try:
        send(connection, {"pid": os.getpid()})
        while True:
            asked, files = receive(connection)  # all of them, or both sides could wait to be read
            _work_through(connection, _WORKS[asked["do"]](asked), files)
    except (Gone, Silent):
        return


def _work_through(connection: socket.socket, work: Work, files: list[bytes]) -> None:
    """Answers for each file; small ones together, for a message and its two wakings cost as much as decoding one."""
    answers: list[dict[str, Any]] = []
    bodies: list[bytes] = []
    due = time.monotonic() + TOGETHER_S
    for place, data in enumerate(files, 1):
        answer, changed = _answer(work, data)
        answers.append({**answer, "changed": bool(changed)})
        bodies += changed
        if place == len(files) or time.monotonic() > due:
            send(connection, {"answers": answers}, *bodies)
            answers, bodies, due = [], [], time.monotonic() + TOGETHER_S


def _alone() -> None:
    """Takes one thread, for there are as many decoders as threads wanted, and a bounded part of the memory."""
    cv2.setNumThreads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    most, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = psutil.Process().memory_info().vms + MEMORY_BYTES
    if most == resource.RLIM_INFINITY or wanted < most:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


def _answer(work: Work, data: bytes) -> Answer:
    try:
        return work(data)
    except BadImage as bad:
        return {"bad": [bad.reason.value, bad.detail]}, []
    except _TOO_MUCH:
        return {"crash": f"it took more than {MEMORY_BYTES >> 20:,} MiB of memory"}, []
    except Exception as error:  # noqa: BLE001 - a bug in a decoder, or in ours, costs an image and not the job
        return {"crash": f"{type(error).__name__}: {error}"[:200]}, []


def _image(asked: dict[str, Any]) -> Work:
    limits, pixels = ImageLimits(**asked["limits"]), PixelOptions(**asked["pixels"])
    return partial(_examined, limits=limits, pixels=pixels, facts=asked["facts"])


def _examined(data: bytes, limits: ImageLimits, pixels: PixelOptions, facts: str) -> Answer:
    encoded, known = process.examine(data, limits, pixels, facts)
    return {"facts": vars(known)}, [] if encoded is data else [encoded]


def _mask(asked: dict[str, Any]) -> Work:
    values = asked["geometry"]
    sizes = {name: tuple(values[name]) for name in ("source", "resized", "stored")}  # JSON has no tuples
    plan = Geometry(**{**values, **sizes})
    return partial(_masked, plan=plan, limits=ImageLimits(**asked["limits"]))


def _masked(data: bytes, plan: Geometry, limits: ImageLimits) -> Answer:
    encoded, values = normalise_mask(data, plan, limits)
    return {"values": values}, [] if encoded is data else [encoded]


def _thumbnail(asked: dict[str, Any]) -> Work:
    options = thumbnail.ThumbnailOptions(**asked["options"])
    return partial(_drawn, limits=ImageLimits(**asked["limits"]), options=options)


def _drawn(data: bytes, limits: ImageLimits, options: thumbnail.ThumbnailOptions) -> Answer:
    found = thumbnail.draw(data, limits, options)
    return {"width": found.width, "height": found.height}, [found.encoded]


def _size(asked: dict[str, Any]) -> Work:
    return partial(_decoded, limits=ImageLimits(**asked["limits"]))


def _decoded(data: bytes, limits: ImageLimits) -> Answer:
    headers.gate(data, limits)
    height, width = decode_checked(data).shape[:2]
    return {"height": height, "width": width}, []


_WORKS: dict[str, Callable[[dict[str, Any]], Work]] = {
    "image": _image,
    "mask": _mask,
    "size": _size,
    "thumbnail": _thumbnail,
}


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
