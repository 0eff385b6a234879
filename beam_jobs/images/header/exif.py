"""The one thing in EXIF that changes pixels: which way up the camera was."""

from __future__ import annotations

import struct

from beam_jobs.images.header.fields import UPRIGHT

PREFIX = b"Exif\x00\x00"
TAG = 0x0112
SHORT = 3
_BYTE_ORDERS = {b"II*\x00": "<", b"MM\x00*": ">"}


def orientation(block: bytes) -> int:
    """Returns the orientation, 1-8, that an EXIF block holds; 1 when it holds none or is broken.

    Only the first directory is looked at, and no value in it but this one.

    Args:
      block: the block, from its byte order mark on.
    """
    order = _BYTE_ORDERS.get(block[:4])
    if order is None:
        return UPRIGHT
    try:
        (start,) = struct.unpack_from(order + "I", block, 4)
        (count,) = struct.unpack_from(order + "H", block, start)
        for position in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", block, position)
            if tag == TAG:
                return value if kind == SHORT and 1 <= value <= 8 else UPRIGHT
    except struct.error:  # it ends too early; a broken EXIF block does not make a broken image
        pass
    return UPRIGHT
