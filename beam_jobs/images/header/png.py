"""The header of a PNG: its chunks, from the first to the last. PNG specification, third edition."""

from __future__ import annotations

import contextlib
import struct
import zlib
from dataclasses import dataclass, field

from beam_jobs.images.header import tiff
from beam_jobs.images.header.fields import UPRIGHT, Header, bad_header

_START = 8  # magic bytes
_FRAME = 12  # bytes of a chunk around its data: length, type, checksum
_MAX_CHUNKS = 65_536  # 50 MB in chunks of 800 bytes; encoders write them by the 8192
# Colour type -> Pillow mode of 8 bits, and depths allowed.
_KINDS = {
    0: ("L", (1, 2, 4, 8, 16)),
    2: ("RGB", (8, 16)),
    3: ("P", (1, 2, 4, 8)),
    4: ("LA", (8, 16)),
    6: ("RGBA", (8, 16)),
}
_DEEP_GREYS = {1: "1", 16: "I;16"}
_DEFLATED = (b"zTXt", b"iTXt", b"iCCP")
_MAX_INFLATED = 8 << 20  # bytes that a decoder inflates although no pixel depends on them
_CERTAINLY_LESS = _MAX_INFLATED // 1032  # deflated; the most that deflate can save, see the zlib technical notes


@dataclass
class _Seen:
    """What a walk through the chunks has met."""

    frames: int = 1
    transparent: bool = False
    orientation: int = UPRIGHT
    deflated: list[bytes] = field(default_factory=list)

    def note(self, kind: bytes, data: bytes, start: int, length: int) -> None:
        if kind == b"tRNS":
            self.transparent = True
        elif kind == b"acTL":
            self.frames = max(1, int.from_bytes(data[start : start + 4], "big"))
        elif kind == b"eXIf":
            self.orientation = tiff.orientation(data[start : start + length])
        elif kind in _DEFLATED:
            self.deflated.append(_deflated(kind, data[start : start + length]))


def read(data: bytes) -> Header:
    """Reads the chunks of a PNG.

    Raises:
      BadImage: the first one is no image header, there are too many of them, or they inflate to too much.
    """
    height, width, depth, mode = _image_header(data)
    seen = _walk(data)
    _check_inflated(seen.deflated)
    return Header(
        format="png",
        height=height,
        width=width,
        mode=mode,
        orientation=seen.orientation,
        frames=seen.frames,
        has_alpha=seen.transparent or mode in ("LA", "RGBA"),
        bit_depth=depth,
    )


def _image_header(data: bytes) -> tuple[int, int, int, str]:
    """Returns height, width, bits a sample and mode."""
    if len(data) < _START + _FRAME + 13:
        raise bad_header("png", f"it ends at {len(data)} bytes, within its header")
    length, kind, width, height, depth, colour = struct.unpack_from(">I4sIIBB", data, _START)
    if (length, kind) != (13, b"IHDR"):
        raise bad_header("png", f"it starts with {length} bytes of {kind!r}, not with 13 of IHDR")
    mode, depths = _KINDS.get(colour, ("", ()))
    if depth not in depths:
        raise bad_header("png", f"colour type {colour} with {depth} bits a sample")
    if not height or not width:
        raise bad_header("png", f"{width}x{height} pixels")
    return height, width, depth, _DEEP_GREYS.get(depth, mode) if mode == "L" else mode


def _walk(data: bytes) -> _Seen:
    seen = _Seen()
    position = _START
    for _ in range(_MAX_CHUNKS):
        if position + 8 > len(data):
            return seen  # without its last chunk; whether it can be decoded is for the decoder to say
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"IEND":
            return seen
        if kind != b"IDAT":
            if position + _FRAME + length > len(data):  # the decoder would make room for it before it looks
                raise bad_header("png", f"a chunk of {length} bytes at byte {position}, of {len(data)}")
            seen.note(kind, data, position + 8, length)
        position += _FRAME + length
    raise bad_header("png", f"over {_MAX_CHUNKS} chunks")


def _deflated(kind: bytes, chunk: bytes) -> bytes:
    """Returns what is compressed of a text or a profile: what follows its name and other words."""
    rest = chunk.partition(b"\x00")[2]
    if kind == b"iTXt":
        return rest[2:].split(b"\x00", 2)[-1] if rest[:1] == b"\x01" else b""
    return rest[1:]


def _check_inflated(deflated: list[bytes]) -> None:
    if sum(map(len, deflated)) <= _CERTAINLY_LESS:
        return
    room = _MAX_INFLATED
    for part in deflated:
        with contextlib.suppress(zlib.error):  # nor can the decoder inflate it; it passes over such a chunk
            room -= len(zlib.decompressobj().decompress(part, room + 1))
        if room < 0:
            raise bad_header("png", f"its texts and profiles inflate to over {_MAX_INFLATED} bytes")
