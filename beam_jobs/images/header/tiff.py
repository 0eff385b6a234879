"""The directories of a TIFF, walked before Pillow does. TIFF 6.0.

Pillow reads the value of every tag, whether it needs it or not: a thousand tags that each claim the whole file fill the
memory a thousand times. Fractions it makes one by one, 80,000 a second. libtiff makes room for a whole tile before it
reads one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from beam_jobs.images.header.fields import UPRIGHT, bad_header

_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}  # TIFF type -> bytes
_SHORT = 3
_FRACTIONS = (5, 10)
_MAX_FRACTIONS = 4096  # all tags that hold some, GPS included, need a few dozen
_ENTRY = 12  # bytes; the last 4 hold the value, or where it is when it is longer
_DIRECTORIES = frozenset({34665, 34853, 40965})  # EXIF, GPS, interoperability: Pillow reads them as well
_TILE_SIDES = frozenset({322, 323})
_MAX_TILE_SIDE = 4096  # tiles are a few hundred pixels wide; one of this size is 64 MB at four channels


def check(data: bytes) -> None:
    """Walks the first directory and those that it names.

    Raises:
      BadImage: its tags claim more bytes than the file has or more fractions than it needs, or its tiles are larger
        than anybody writes them.
    """
    order = "<" if data.startswith(b"II") else ">"
    room, fractions = len(data), _MAX_FRACTIONS
    waiting = [int.from_bytes(data[4:8], "little" if order == "<" else "big")]
    while waiting:
        for tag, kind, count, value in _entries(data, waiting.pop(), order):
            size = _SIZES.get(kind, 0) * count
            room -= _ENTRY + (size if size > 4 else 0)
            fractions -= count if kind in _FRACTIONS else 0
            if room < 0:
                raise bad_header("tiff", f"its tags claim more than the {len(data)} bytes that it has")
            if fractions < 0:
                raise bad_header("tiff", f"its tags hold over {_MAX_FRACTIONS} fractions")
            if tag in _TILE_SIDES and value > _MAX_TILE_SIDE:
                raise bad_header("tiff", f"tiles with a side of {value} pixels; up to {_MAX_TILE_SIDE} are decoded")
            if tag in _DIRECTORIES:
                waiting.append(value)


def _entries(data: bytes, start: int, order: str) -> Iterator[tuple[int, int, int, int]]:
    """Yields tag, type, how many values, and the value when it is a single number, of a directory."""
    count = struct.unpack_from(order + "H", data, start)[0] if start + 2 <= len(data) else 0
    for position in range(start + 2, min(start + 2 + _ENTRY * count, len(data) - _ENTRY + 1), _ENTRY):
        tag, kind, values = struct.unpack_from(order + "HHI", data, position)
        (value,) = struct.unpack_from(order + ("H" if kind == _SHORT else "I"), data, position + 8)
        yield tag, kind, values, value


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
