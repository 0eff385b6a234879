"""What the processes of `decoders` say to each other: a header of JSON, then bodies of bytes. Nothing is unpickled.

A decoder that a hostile image has taken over can answer nonsense, and no more than that.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from typing import Any

_SIZE = struct.Struct("<I")  # of the header
_BODIES = "bodies"  # key of the header: the sizes of what comes after it
_MOST_BYTES = 1 << 30  # of one body; 64 megapixels are a fifth of it
_PAUSES = 60  # in the middle of a frame; the other side is swapped out, or stopped


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
    parts = [memoryview(part) for part in (_SIZE.pack(len(text)) + text, *bodies)]
    while parts:  # nothing is joined: a copy of all images would cost as much as sending them
        sent = _send_some(connection, parts)
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if sent:
            parts[0] = parts[0][sent:]


def _send_some(connection: socket.socket, parts: list[memoryview]) -> int:
    """Sends as many bytes as there is room for, and returns how many those were."""
    try:
        for _ in range(_PAUSES):
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
    (size,) = _SIZE.unpack(_exactly(connection, _SIZE.size, may_wait=False))
    try:
        header = json.loads(_exactly(connection, size, may_wait=True))
        sizes = [int(size) for size in header.pop(_BODIES)]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Nonsense("nonsense") from error
    return header, [_exactly(connection, size, may_wait=True) for size in sizes]


def _exactly(connection: socket.socket, size: int, may_wait: bool) -> bytes:
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
            if pauses > _PAUSES:
                raise Gone("broken off") from error
            continue
        except OSError as error:
            raise Gone(str(error)) from error
        if not part:
            raise Gone("broken off" if data else "the end")
        data = data + part if data else part
    return data
