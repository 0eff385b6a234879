"""Readers of the headers of image files, in time and memory bounded by the file size. Nothing is decoded here.

Libraries read every tag, chunk and comment of a file, some of them in quadratic time. So only this module reads the
structure of JPEG (ITU T.81, annex B) and PNG (third edition); it checks the structure of TIFF (6.0), GIF (89a) and
extended WebP (Container Specification) before Pillow opens them.

Pillow reads the value of every tag of a TIFF: a thousand tags that each claim the complete file take a thousand times
its memory. It parses only 80,000 fractions per second. libtiff allocates a complete tile before it reads it. Pillow
takes one step for each of up to 25 million sub-blocks of a GIF, and joins the sub-blocks of a comment in quadratic
time. To open an animated WebP, it allocates two canvases of four bytes per pixel, of any size that the file declares.
"""

from __future__ import annotations

import contextlib
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from beam_jobs.errors import BadImage
from beam_jobs.rejects import RejectReason

UPRIGHT = 1


@dataclass(frozen=True, kw_only=True)
class Header:
    """The properties of an image that its header declares.

    Attributes:
      format: one of `jpeg png gif bmp tiff webp`, from the magic bytes.
      height: rows, in pixels, as stored (before EXIF rotation).
      width: columns, in pixels, as stored.
      mode: Pillow mode, such as `RGB`, `CMYK` or `P`.
      orientation: EXIF orientation, 1-8; 1 is upright.
      frames: number of frames; 2 when there are several and counting them would mean reading the complete file.
      has_alpha: whether some pixels may be transparent.
      bit_depth: bits per channel.
      progressive: whether a JPEG is progressive, or has another coding that needs less than two bits per block.
      scans: number of scans of a JPEG.
    """

    format: str
    height: int
    width: int
    mode: str
    orientation: int = UPRIGHT
    frames: int = 1
    has_alpha: bool = False
    bit_depth: int = 8
    progressive: bool = False
    scans: int = 1


def bad_header(name: str, detail: str) -> BadImage:
    """Returns the error of a header that cannot be parsed."""
    return BadImage(RejectReason.BAD_HEADER, f"{name}: {detail}")


# TIFF type -> bytes of a value.
_TIFF_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
_TIFF_SHORT = 3
_FRACTIONS = (5, 10)
_MAX_FRACTIONS = 4096  # all standard tags of fractions, GPS included, need a few dozen
_TIFF_ENTRY = 12  # bytes; the last 4 hold the value, or its offset when it is longer
_TIFF_DIRECTORIES = frozenset({34665, 34853, 40965})  # EXIF, GPS, interoperability: Pillow reads them as well
_TILE_SIDES = frozenset({322, 323})
_MAX_TILE_SIDE = 4096  # tiles are a few hundred pixels wide; one of this size is 64 MB at four channels


def check_tiff(data: bytes) -> None:
    """Checks the first directory of a TIFF and its subdirectories.

    Raises:
      BadImage: the tags claim more bytes than the file has, or more than 4096 fractions, or a tile is too large.
    """
    byte_order = "<" if data.startswith(b"II") else ">"
    remaining_bytes, remaining_fractions = len(data), _MAX_FRACTIONS
    offsets = [int.from_bytes(data[4:8], "little" if byte_order == "<" else "big")]
    while offsets:
        for tag, kind, count, value in _tiff_entries(data, offsets.pop(), byte_order):
            size = _TIFF_SIZES.get(kind, 0) * count
            remaining_bytes -= _TIFF_ENTRY + (size if size > 4 else 0)
            remaining_fractions -= count if kind in _FRACTIONS else 0
            if remaining_bytes < 0:
                raise bad_header("tiff", f"its tags claim more than the {len(data)} bytes of the file")
            if remaining_fractions < 0:
                raise bad_header("tiff", f"its tags hold more than {_MAX_FRACTIONS} fractions")
            if tag in _TILE_SIDES and value > _MAX_TILE_SIDE:
                raise bad_header("tiff", f"tiles with a side of {value} pixels; up to {_MAX_TILE_SIDE} are decoded")
            if tag in _TIFF_DIRECTORIES:
                offsets.append(value)


def _tiff_entries(data: bytes, start: int, byte_order: str) -> Iterator[tuple[int, int, int, int]]:
    """Yields the entries of a directory: tag, type, number of values, and the value when it is a single number."""
    count = struct.unpack_from(byte_order + "H", data, start)[0] if start + 2 <= len(data) else 0
    for position in range(start + 2, min(start + 2 + _TIFF_ENTRY * count, len(data) - _TIFF_ENTRY + 1), _TIFF_ENTRY):
        tag, kind, values = struct.unpack_from(byte_order + "HHI", data, position)
        (value,) = struct.unpack_from(byte_order + ("H" if kind == _TIFF_SHORT else "I"), data, position + 8)
        yield tag, kind, values, value


EXIF_PREFIX = b"Exif\x00\x00"
ORIENTATION_TAG = 0x0112
EXIF_SHORT = 3
_EXIF_BYTE_ORDERS = {b"II*\x00": "<", b"MM\x00*": ">"}


def exif_orientation(block: bytes) -> int:
    """Returns the orientation, 1-8, of an EXIF block; 1 when it contains none or is broken.

    Only this value of the first directory is read.

    Args:
      block: the EXIF block, starting with its byte order mark.
    """
    byte_order = _EXIF_BYTE_ORDERS.get(block[:4])
    if byte_order is None:
        return UPRIGHT
    with contextlib.suppress(struct.error):  # the block is truncated; a broken EXIF block does not make a broken image
        (start,) = struct.unpack_from(byte_order + "I", block, 4)
        (count,) = struct.unpack_from(byte_order + "H", block, start)
        for position in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, _, value = struct.unpack_from(byte_order + "HHIH", block, position)
            if tag == ORIENTATION_TAG:
                return value if kind == EXIF_SHORT and 1 <= value <= 8 else UPRIGHT
    return UPRIGHT


# A 50 MB file whose profile fills complete segments has 800 segments; a hostile file has nearly one per byte.
_MAX_SEGMENTS = 4096
_JPEG_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # SOF0 to SOF15, without DHT, JPG and DAC
_JPEG_SEQUENTIAL = frozenset({0xC0, 0xC1})  # with Huffman codes
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # TEM, RSTn, SOI: markers without a length
_EOI, _SOS, _APP1 = 0xD9, 0xDA, 0xE1
_JPEG_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_JPEG_COMPONENTS = {mode: count for count, mode in _JPEG_MODES.items()}
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xff]")
_MARKER_AFTER_SCAN = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")  # a scan may have stuffed bytes and restart markers


def read_jpeg(data: bytes) -> Header:
    """Returns the header of a JPEG, from the segments up to its first scan and the number of its scans.

    Raises:
      BadImage: the header is missing or broken, or does not declare 8 bits per sample and 1, 3 or 4 components.
    """
    frame: Header | None = None
    orientation = UPRIGHT
    has_exif = False
    position = 2
    for _ in range(_MAX_SEGMENTS):
        marker, position, end = _jpeg_segment(data, position)
        if marker in _JPEG_FRAMES:
            frame = _jpeg_frame(data[position:end], marker)
        elif marker == _APP1 and not has_exif and data.startswith(EXIF_PREFIX, position):
            orientation, has_exif = exif_orientation(data[position + len(EXIF_PREFIX) : end]), True
        elif marker == _SOS:
            if frame is None:
                raise bad_header("jpeg", "its first scan precedes the frame header")
            lacks_components = data[position] < _JPEG_COMPONENTS[frame.mode]  # more scans contain the others
            scans = _jpeg_scans(data, position) if frame.progressive or lacks_components else 1
            return replace(frame, orientation=orientation, scans=scans)
        position = end
    raise bad_header("jpeg", f"more than {_MAX_SEGMENTS} segments before the first scan")


def _jpeg_segment(data: bytes, position: int) -> tuple[int, int, int]:
    """Returns the next marker, and start and end of its payload; skips bytes before the marker, as decoders do."""
    match = _JPEG_MARKER.search(data, position)
    if match is None or match.end() + 2 > len(data):
        raise bad_header("jpeg", f"it ends at {len(data)} bytes, before its first scan")
    start = match.end()
    marker = data[start - 1]
    if marker in _JPEG_BARE:
        return marker, start, start
    length = data[start] << 8 | data[start + 1]
    end = start + length
    min_length = 3 if marker == _SOS else 2  # the length includes its own two bytes; a scan header is never empty
    if marker == _EOI or length < min_length or end > len(data):
        raise bad_header("jpeg", f"the segment at byte {start - 2} is truncated or misplaced")
    return marker, start + 2, end


def _jpeg_frame(payload: bytes, marker: int) -> Header:
    if len(payload) < 6:
        raise bad_header("jpeg", f"its frame header has only {len(payload)} bytes")
    precision, components = payload[0], payload[5]
    height, width = payload[1] << 8 | payload[2], payload[3] << 8 | payload[4]
    if precision != 8:
        raise bad_header("jpeg", f"{precision} bits per sample; 8 can be decoded")
    if components not in _JPEG_MODES:
        raise bad_header("jpeg", f"{components} components; 1, 3 and 4 can be decoded")
    if not height or not width:
        raise bad_header("jpeg", f"{width}x{height} pixels")
    return Header(
        format="jpeg",
        height=height,
        width=width,
        mode=_JPEG_MODES[components],
        progressive=marker not in _JPEG_SEQUENTIAL,
    )


def _jpeg_scans(data: bytes, position: int) -> int:
    """Returns the number of scans of a frame; the payload of the first one is at `position`."""
    scans = 1
    for _ in range(_MAX_SEGMENTS):
        match = _MARKER_AFTER_SCAN.search(data, position)
        # Data after the end of the image, such as other images or a video, does not count.
        if match is None or data[match.end() - 1] == _EOI:
            return scans
        scans += data[match.end() - 1] == _SOS
        position = match.end() + int.from_bytes(data[match.end() : match.end() + 2], "big")
    raise bad_header("jpeg", f"more than {_MAX_SEGMENTS} segments between its scans")


_PNG_START = 8  # magic bytes
_PNG_FRAME = 12  # bytes of a chunk around its data: length, type, checksum
_MAX_CHUNKS = 65_536  # 50 MB in chunks of 800 bytes; encoders write chunks of 8192
# Colour type -> Pillow mode of 8 bits, and the allowed bit depths.
_PNG_KINDS = {
    0: ("L", (1, 2, 4, 8, 16)),
    2: ("RGB", (8, 16)),
    3: ("P", (1, 2, 4, 8)),
    4: ("LA", (8, 16)),
    6: ("RGBA", (8, 16)),
}
_PNG_DEEP_GREYS = {1: "1", 16: "I;16"}
_DEFLATED = (b"zTXt", b"iTXt", b"iCCP")
_MAX_INFLATED = 8 << 20  # bytes that a decoder inflates although no pixel depends on them
_ALWAYS_ALLOWED = _MAX_INFLATED // 1032  # deflated bytes; 1032 is the largest ratio, see the zlib technical notes


@dataclass
class _PngChunks:
    """The properties that the chunks between the header and the pixels of a PNG declare."""

    frames: int = 1
    is_transparent: bool = False
    orientation: int = UPRIGHT
    deflated: list[bytes] = field(default_factory=list)

    def add(self, kind: bytes, data: bytes, start: int, length: int) -> None:
        if kind == b"tRNS":
            self.is_transparent = True
        elif kind == b"acTL":
            self.frames = max(1, int.from_bytes(data[start : start + 4], "big"))
        elif kind == b"eXIf":
            self.orientation = exif_orientation(data[start : start + length])
        elif kind in _DEFLATED:
            self.deflated.append(_deflated_part(kind, data[start : start + length]))


def read_png(data: bytes) -> Header:
    """Returns the header of a PNG, from its chunks.

    Raises:
      BadImage: the first chunk is not an image header, there are too many chunks, or they inflate to too many bytes.
    """
    height, width, depth, mode = _png_header(data)
    chunks = _read_png_chunks(data)
    _check_inflated(chunks.deflated)
    return Header(
        format="png",
        height=height,
        width=width,
        mode=mode,
        orientation=chunks.orientation,
        frames=chunks.frames,
        has_alpha=chunks.is_transparent or mode in ("LA", "RGBA"),
        bit_depth=depth,
    )


def _png_header(data: bytes) -> tuple[int, int, int, str]:
    """Returns height, width, bits per sample and mode."""
    if len(data) < _PNG_START + _PNG_FRAME + 13:
        raise bad_header("png", f"it ends at {len(data)} bytes, within its header")
    length, kind, width, height, depth, colour_type = struct.unpack_from(">I4sIIBB", data, _PNG_START)
    if (length, kind) != (13, b"IHDR"):
        raise bad_header("png", f"its first chunk is {kind!r} of {length} bytes, expected IHDR of 13 bytes")
    mode, depths = _PNG_KINDS.get(colour_type, ("", ()))
    if depth not in depths:
        raise bad_header("png", f"colour type {colour_type} does not allow {depth} bits per sample")
    if not height or not width:
        raise bad_header("png", f"{width}x{height} pixels")
    return height, width, depth, _PNG_DEEP_GREYS.get(depth, mode) if mode == "L" else mode


def _read_png_chunks(data: bytes) -> _PngChunks:
    chunks = _PngChunks()
    position = _PNG_START
    for _ in range(_MAX_CHUNKS):
        if position + 8 > len(data):
            return chunks  # the last chunk is missing; the decoder decides whether the image can be decoded
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"IEND":
            return chunks
        if kind != b"IDAT":
            if position + _PNG_FRAME + length > len(data):  # a decoder would allocate the chunk before it checks this
                raise bad_header("png", f"a chunk of {length} bytes at byte {position} of {len(data)} bytes")
            chunks.add(kind, data, position + 8, length)
        position += _PNG_FRAME + length
    raise bad_header("png", f"more than {_MAX_CHUNKS} chunks")


def _deflated_part(kind: bytes, chunk: bytes) -> bytes:
    """Returns the compressed part of a text or a profile, which follows its name and flags."""
    content = chunk.partition(b"\x00")[2]
    if kind == b"iTXt":
        return content[2:].split(b"\x00", 2)[-1] if content[:1] == b"\x01" else b""  # 1: compressed
    return content[1:]


def _check_inflated(deflated: list[bytes]) -> None:
    if sum(map(len, deflated)) <= _ALWAYS_ALLOWED:
        return
    remaining_bytes = _MAX_INFLATED
    for part in deflated:
        with contextlib.suppress(zlib.error):  # the decoder cannot inflate it either and skips the chunk
            remaining_bytes -= len(zlib.decompressobj().decompress(part, remaining_bytes + 1))
        if remaining_bytes < 0:
            raise bad_header("png", f"its texts and profiles inflate to more than {_MAX_INFLATED} bytes")


_GIF_SCREEN = 13  # magic bytes and logical screen descriptor
_GIF_IMAGE, _GIF_EXTENSION, _GIF_END = 0x2C, 0x21, 0x3B
_MAX_GIF_STEPS = 4096  # blocks between two images: 1 MB of comments and profiles
_MAX_GIF_IMAGE_STEPS = 250_000  # blocks in an image: 50 MB in full sub-blocks are 206,000


def is_animated_gif(data: bytes) -> bool:
    """Returns whether a second image follows the first; False when the file ends before the second image.

    Raises:
      BadImage: there are more blocks than allowed.
    """
    reader = _GifReader(data)
    reader.skip_colours(_GIF_SCREEN - 3, _GIF_SCREEN)  # the third last byte of the screen descriptor has the flags
    if reader.next_image():
        reader.skip_colours(reader.position + 8, reader.position + 9)
        reader.skip_blocks(reader.position + 1, _MAX_GIF_IMAGE_STEPS)  # 1: the byte of the initial code size
        return reader.next_image()
    return False


class _GifReader:
    """A reader of the blocks of a GIF, whose position only moves forward, in a limited number of steps."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._steps = 0
        self.position = 0

    def skip_colours(self, flags: int, position: int) -> None:
        """Moves past the colour table at `position`, if the byte at offset `flags` declares one."""
        packed = self._data[flags] if flags < len(self._data) else 0
        self.position = position + (3 << (packed & 7) + 1 if packed & 0x80 else 0)

    def next_image(self) -> bool:
        """Moves past the separator of the next image; returns whether there is a next image."""
        self._steps = 0
        while self.position < len(self._data) and self._data[self.position] != _GIF_END:
            kind = self._data[self.position]
            self.position += 1
            if kind == _GIF_IMAGE:
                return True
            if kind == _GIF_EXTENSION:
                self.skip_blocks(self.position + 1, _MAX_GIF_STEPS)
            self._step(_MAX_GIF_STEPS)
        return False

    def skip_blocks(self, position: int, limit: int) -> None:
        """Moves past the sub-blocks that start at `position`."""
        size = -1
        while size and position < len(self._data):
            size = self._data[position]
            position += 1 + size
            self._step(limit)
        self.position = position

    def _step(self, limit: int) -> None:
        self._steps += 1
        if self._steps > limit:
            raise bad_header("gif", f"more than {limit} blocks before the next image")


_WEBP_CHUNK, _WEBP_WIDTH, _WEBP_HEIGHT, _WEBP_END = 12, 24, 27, 30


def check_webp(data: bytes, max_pixels: int) -> None:
    """Checks the canvas size of an extended WebP.

    Raises:
      BadImage: the canvas has more than `max_pixels` pixels.
    """
    if data[_WEBP_CHUNK : _WEBP_CHUNK + 4] != b"VP8X" or len(data) < _WEBP_END:
        return
    width, height = (1 + int.from_bytes(data[offset : offset + 3], "little") for offset in (_WEBP_WIDTH, _WEBP_HEIGHT))
    if width * height > max_pixels:
        raise BadImage(RejectReason.TOO_LARGE, f"{width}x{height} pixels; at most {max_pixels} are allowed")
