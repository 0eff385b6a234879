"""A decoder process: takes images, answers what the functions in `_WORKS` say of them."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import cv2
import psutil
import tensorflow as tf

from beam_jobs.errors import BadImage
from beam_jobs.images import masks, process, thumbnail
from beam_jobs.images.decode import decode_checked
from beam_jobs.images.geometry import Geometry
from beam_jobs.images.header import read
from beam_jobs.images.sandbox.frames import Gone, Silent, receive, send, wait_at_most
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
    encoded, values = masks.normalise_mask(data, plan, limits)
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
    read.gate(data, limits)
    height, width = decode_checked(data).shape[:2]
    return {"height": height, "width": width}, []


_WORKS: dict[str, Callable[[dict[str, Any]], Work]] = {
    "image": _image,
    "mask": _mask,
    "size": _size,
    "thumbnail": _thumbnail,
}
