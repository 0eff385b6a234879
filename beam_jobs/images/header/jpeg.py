"""The header of a JPEG: its segments up to the first scan. ITU T.81, annex B."""

from __future__ import annotations

import re
from dataclasses import replace

from beam_jobs.images.header import tiff
from beam_jobs.images.header.fields import UPRIGHT, Header, bad_header

# A 50 MB file whose profile fills whole segments has 800; hostile ones have as many as bytes.
_MAX_SEGMENTS = 4096
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_SEQUENTIAL = frozenset({0xC0, 0xC1})  # with Huffman codes
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # TEM, RSTn, SOI: no length follows
_EOI, _SOS, _APP1 = 0xD9, 0xDA, 0xE1
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_COMPONENTS = {mode: count for count, mode in _MODES.items()}
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_MARKER_AFTER_SCAN = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")  # a scan may hold stuffed bytes and restarts


def read(data: bytes) -> Header:
    """Reads the segments of a JPEG up to its first scan, and counts its scans.

    Raises:
      BadImage: there is no such header, or it has other than 8 bits a sample or 1, 3 or 4 components.
    """
    frame: Header | None = None
    orientation = UPRIGHT
    seen_exif = False
    position = 2
    for _ in range(_MAX_SEGMENTS):
        marker, position, end = _segment(data, position)
        if marker in _FRAMES:
            frame = _frame(data[position:end], marker)
        elif marker == _APP1 and not seen_exif and data.startswith(tiff.PREFIX, position):
            orientation, seen_exif = tiff.orientation(data[position + len(tiff.PREFIX) : end]), True
        elif marker == _SOS:
            if frame is None:
                raise bad_header("jpeg", "the scan comes before the frame header")
            scans = _scans(data, position) if frame.progressive or data[position] < _COMPONENTS[frame.mode] else 1
            return replace(frame, orientation=orientation, scans=scans)
        position = end
    raise bad_header("jpeg", f"over {_MAX_SEGMENTS} segments before the first scan")


def _segment(data: bytes, position: int) -> tuple[int, int, int]:
    """Returns the next marker and where its payload starts and ends; bytes before it are skipped, as decoders do."""
    found = _MARKER.search(data, position)
    if found is None or found.end() + 2 > len(data):
        raise bad_header("jpeg", f"it ends at {len(data)} bytes, before its first scan")
    start = found.end()
    marker = data[start - 1]
    if marker in _BARE:
        return marker, start, start
    length = data[start] << 8 | data[start + 1]
    end = start + length
    if marker == _EOI or length <= 2 - (marker != _SOS) or end > len(data):
        raise bad_header("jpeg", f"the segment at byte {start - 2} is cut off or out of place")
    return marker, start + 2, end


def _frame(payload: bytes, marker: int) -> Header:
    if len(payload) < 6:
        raise bad_header("jpeg", f"a frame header of {len(payload)} bytes")
    precision, components = payload[0], payload[5]
    height, width = payload[1] << 8 | payload[2], payload[3] << 8 | payload[4]
    if precision != 8:
        raise bad_header("jpeg", f"{precision} bits a sample; 8 can be decoded")
    if components not in _MODES:
        raise bad_header("jpeg", f"{components} components; 1, 3 and 4 can be decoded")
    if not height or not width:
        raise bad_header("jpeg", f"{width}x{height} pixels")
    return Header(
        format="jpeg", height=height, width=width, mode=_MODES[components], progressive=marker not in _SEQUENTIAL
    )


def _scans(data: bytes, position: int) -> int:
    """Returns how many scans a frame has, from the first one on, whose payload is at `position`."""
    scans = 1
    for _ in range(_MAX_SEGMENTS):
        found = _MARKER_AFTER_SCAN.search(data, position)
        # What comes after the end, other pictures or a film, does not count.
        if found is None or data[found.end() - 1] == _EOI:
            return scans
        scans += data[found.end() - 1] == _SOS
        position = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")
    raise bad_header("jpeg", f"over {_MAX_SEGMENTS} segments between its scans")
