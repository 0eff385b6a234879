"""Messages between this process and its children over a socket. A message is a frame: a JSON header and binary bodies.

Nothing is unpickled: a decoder that a hostile image has taken over can only send wrong responses.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from typing import Any

_FRAME_SIZE = struct.Struct("<I")  # size of the header, in bytes
_BODIES = "bodies"  # key of the header: the sizes of the bodies, in bytes
_MAX_BYTES = 1 << 30  # largest header or body; 64 megapixels take a fifth of it
_MAX_PAUSES = 60  # largest number of time-outs in the middle of a frame; the peer may be swapped out or stopped


class PeerClosed(Exception):
    """The peer has ended, or has stopped in the middle of a frame."""


class InvalidFrame(PeerClosed):
    """The peer has sent data that is not a frame, and may still run."""


class ReceiveTimeout(Exception):
    """The peer has sent nothing within the timeout of the socket."""


def set_timeout(connection: socket.socket, seconds: float) -> None:
    """Sets how long `receive` waits for the start of a frame, and `receive` and `send` for progress within a frame."""
    full_seconds = int(seconds)
    # Not `settimeout`, which makes the socket non-blocking: MSG_WAITALL would no longer wait.
    timeval = struct.pack("@ll", full_seconds, max(0 if full_seconds else 1, int((seconds - full_seconds) * 1e6)))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, timeval)


def send(connection: socket.socket, header: dict[str, Any], *bodies: bytes) -> None:
    """Sends a frame.

    Raises:
      PeerClosed: the peer has closed the connection or does not read.
    """
    header_bytes = json.dumps({**header, _BODIES: [len(body) for body in bodies]}).encode()
    parts = [memoryview(part) for part in (_FRAME_SIZE.pack(len(header_bytes)) + header_bytes, *bodies)]
    while parts:  # the parts are not joined, because copying all images would cost as much as sending them
        sent = _send_some(connection, parts)
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if sent:
            parts[0] = parts[0][sent:]


def _send_some(connection: socket.socket, parts: list[memoryview]) -> int:
    """Sends as many bytes as the socket accepts, and returns their number."""
    try:
        for _ in range(_MAX_PAUSES):
            with contextlib.suppress(BlockingIOError):  # raised after the timeout of the socket
                return connection.sendmsg(parts)
    except OSError as error:
        raise PeerClosed(str(error)) from error
    raise PeerClosed("the peer does not read")


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    """Returns the next frame: its header and its bodies.

    Raises:
      ReceiveTimeout: no frame has started within the timeout of the socket.
      InvalidFrame: the data is not a frame.
      PeerClosed: the peer has ended before the frame or in the middle of it.
    """
    (size,) = _FRAME_SIZE.unpack(_receive_exactly(connection, _FRAME_SIZE.size, may_wait=False))
    try:
        header = json.loads(_receive_exactly(connection, size, may_wait=True))
        sizes = [int(size) for size in header.pop(_BODIES)]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidFrame("invalid header") from error
    return header, [_receive_exactly(connection, size, may_wait=True) for size in sizes]


def _receive_exactly(connection: socket.socket, size: int, may_wait: bool) -> bytes:
    """Returns exactly `size` bytes; within a frame, it waits for up to 60 timeouts of the socket."""
    if size > _MAX_BYTES:
        raise InvalidFrame(f"invalid size: {size:,} bytes; {_MAX_BYTES:,} are allowed")
    data = b""
    timeouts = 0
    while len(data) < size:
        try:
            part = connection.recv(size - len(data), socket.MSG_WAITALL)
        except BlockingIOError as error:
            timeouts += 1
            if not data and not may_wait:
                raise ReceiveTimeout from error
            if timeouts > _MAX_PAUSES:
                raise PeerClosed("the frame is truncated") from error
            continue
        except OSError as error:
            raise PeerClosed(str(error)) from error
        if not part:
            raise PeerClosed("the frame is truncated" if data else "the connection is closed")
        data = data + part if data else part  # a single part is not copied
    return data
