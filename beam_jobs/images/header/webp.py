"""The canvas of an extended WebP, read before Pillow does. WebP Container Specification, section Extended File Format.

To open an animation, Pillow asks for two canvases of four bytes a pixel, whatever size the file claims.
"""

from __future__ import annotations

from beam_jobs.errors import BadImage, RejectReason

_CHUNK, _WIDTH, _HEIGHT, _END = 12, 24, 27, 30


def check(data: bytes, max_pixels: int) -> None:
    """Checks the size of the canvas.

    Raises:
      BadImage: it has more pixels than any limit allows.
    """
    if data[_CHUNK : _CHUNK + 4] != b"VP8X" or len(data) < _END:
        return
    width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (_WIDTH, _HEIGHT))
    if width * height > max_pixels:
        raise BadImage(RejectReason.TOO_LARGE, f"{width}x{height} pixels; {max_pixels} is the most there can be")
