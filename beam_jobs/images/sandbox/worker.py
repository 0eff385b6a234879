"""A decoder process, which answers requests with the functions of `_HANDLERS`."""

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

from beam_jobs.common import fork_server
from beam_jobs.common.messages import PeerClosed, ReceiveTimeout, receive, send, set_timeout
from beam_jobs.errors import BadImage, Unreadable
from beam_jobs.images import header_check, process, thumbnail
from beam_jobs.images.annotations import normalise_mask
from beam_jobs.images.decode import decode_checked
from beam_jobs.images.normalise import Geometry
from beam_jobs.images.sandbox import pack_facts
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.sources.image_reader import Reader

MEMORY_BYTES = 2 << 30  # in addition to the memory at the start; 64 megapixels of 4 x 8 bits take an eighth of it
REQUEST_BYTES = 64 << 20  # largest sum of the files of a request except the last; the scan found at most 4 MiB
BATCH_S = 0.05  # how long a response waits for further responses, which are sent with it
# An image that is too large for the memory raises one of these, in Python or TensorFlow.
_MEMORY_ERRORS = (MemoryError, tf.errors.ResourceExhaustedError)

Response = tuple[dict[str, Any], list[bytes]]  # JSON values and binary results
Handler = Callable[[bytes], Response]


def serve(connection: socket.socket) -> None:
    """Answers requests until the peer ends or sends none for a minute."""
    _limit_resources()
    set_timeout(connection, fork_server.IDLE_S)
    try:
        send(connection, {"pid": os.getpid()})
        while True:
            header, files = receive(connection)  # all files first: otherwise both sides could block in `send`
            if "reader" in header:
                files = _read_files(header)
                send(connection, {})  # from now on, the time limit of an image applies
            _answer_all(connection, _HANDLERS[header["do"]](header), files)
    except (PeerClosed, ReceiveTimeout):
        return


def _read_files(header: dict[str, Any]) -> list[Any]:
    """Returns the bytes of each file, or the response for a file that cannot be read.

    Raises:
      MemoryError: the files are much larger than during the scan. The error ends this process, and the files are
        requested again one by one, so that large files do not take the memory for decoding other files.
    """
    base, max_bytes, work = header["reader"]
    reader = Reader(base=base, max_bytes=max_bytes, work=work)
    files, remaining_bytes = [], REQUEST_BYTES
    for uri_and_slice in header["places"]:
        files.append(_call_handler(lambda image: reader.read(*image), uri_and_slice))
        remaining_bytes -= len(files[-1]) if isinstance(files[-1], bytes) else 0
        if remaining_bytes < 0 and uri_and_slice is not header["places"][-1]:
            raise MemoryError
    return files


def _answer_all(connection: socket.socket, handler: Handler, files: list[Any]) -> None:
    """Sends a response for each file; responses share a message, because one costs as much as decoding a small file."""
    responses: list[dict[str, Any]] = []
    bodies: list[bytes] = []
    deadline = time.monotonic() + BATCH_S
    for count, data in enumerate(files, 1):
        response, new_bytes = _call_handler(handler, data) if isinstance(data, bytes) else data
        responses.append({**response, "bodies": len(new_bytes)})
        bodies += new_bytes
        if count == len(files) or time.monotonic() > deadline:
            send(connection, {"answers": responses}, *bodies)
            responses, bodies, deadline = [], [], time.monotonic() + BATCH_S


def _limit_resources() -> None:
    """Limits this process to one thread, because each thread of the job has a decoder, and limits its memory."""
    cv2.setNumThreads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    memory_bytes = psutil.Process().memory_info().vms + MEMORY_BYTES
    if soft_limit == resource.RLIM_INFINITY or memory_bytes < soft_limit:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, hard_limit))


def _call_handler(handler: Callable[[Any], Any], data: Any) -> Any:
    """Returns the result of a handler, or a response with the error that the handler raises."""
    try:
        return handler(data)
    except BadImage as bad:
        return {"bad": [bad.reason.value, bad.detail, len(data) if isinstance(data, bytes) else 0]}, []
    except Unreadable as fault:
        return {"unreadable": str(fault)}, []
    except _MEMORY_ERRORS:
        return {"crash": f"it took more than {MEMORY_BYTES >> 20:,} MiB of memory"}, []
    except Exception as error:  # noqa: BLE001 - a bug in a decoder or in this code may reject an image, not end the job
        return {"crash": f"{type(error).__name__}: {error}"[:200]}, []


def _image_handler(header: dict[str, Any]) -> Handler:
    limits, pixels = ImageLimits(**header["limits"]), PixelOptions(**header["pixels"])
    return partial(_examine, limits=limits, pixels=pixels, facts=header["facts"])


def _examine(data: bytes, limits: ImageLimits, pixels: PixelOptions, facts: str) -> Response:
    encoded, image_facts = process.examine(data, limits, pixels, facts)
    row = pack_facts(image_facts)
    return {}, [row] if encoded is data else [row, encoded]


def _mask_handler(header: dict[str, Any]) -> Handler:
    values = header["geometry"]
    sizes = {name: tuple(values[name]) for name in ("source", "resized", "stored")}  # JSON has no tuples
    geometry = Geometry(**{**values, **sizes})
    return partial(_normalise_mask, geometry=geometry, limits=ImageLimits(**header["limits"]))


def _normalise_mask(data: bytes, geometry: Geometry, limits: ImageLimits) -> Response:
    encoded, values = normalise_mask(data, geometry, limits)
    return {"values": values}, [] if encoded is data else [encoded]


def _thumbnail_handler(header: dict[str, Any]) -> Handler:
    options = thumbnail.ThumbnailOptions(**header["options"])
    return partial(_render, limits=ImageLimits(**header["limits"]), options=options)


def _render(data: bytes, limits: ImageLimits, options: thumbnail.ThumbnailOptions) -> Response:
    picture = thumbnail.render(data, limits, options)
    return {"width": picture.width, "height": picture.height}, [picture.encoded]


def _size_handler(header: dict[str, Any]) -> Handler:
    return partial(_decode_size, limits=ImageLimits(**header["limits"]))


def _decode_size(data: bytes, limits: ImageLimits) -> Response:
    height, width = decode_checked(data, header=header_check.check_header(data, limits)).shape[:2]
    return {"height": height, "width": width}, []


_HANDLERS: dict[str, Callable[[dict[str, Any]], Handler]] = {
    "image": _image_handler,
    "mask": _mask_handler,
    "size": _size_handler,
    "thumbnail": _thumbnail_handler,
}


def main() -> None:
    """Forks decoders until the parent process closes the socket."""
    fork_server.run(serve)
