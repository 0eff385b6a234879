"""A look at a rejected file, as far as that is safe: what the ingest refuses may still be shown to a person.

The file must be a regular one inside the source, its header is judged before anything is decoded, and what the decoder
makes of the rest is taken as it comes, cut off or grey.
"""

from __future__ import annotations

import os
import stat

from PIL import Image, ImageFile

from beam_jobs import headers, storage
from beam_jobs.errors import BadImage
from beam_jobs.options import ImageLimits

# Looser than the ingest where that costs nothing, tighter where it costs memory: 24 Mpx decode to 72 MB.
_LIMITS = ImageLimits(max_bytes=20 << 20, max_pixels=24_000_000, min_side_px=1, max_aspect=100.0)


def look(source: str, uri: str, side_px: int) -> Image.Image | None:
    """Returns what can be seen of a file, in RGB; None when it cannot or must not be opened.

    Args:
      source: directory that the file must lie in, links followed.
      uri: of the file, absolute or relative to it.
      side_px: long side that is enough.
    """
    data = _read(source, uri)
    if data is None:
        return None
    try:
        header = headers.gate(data, _LIMITS)
    except BadImage:
        return None
    return _decode(data, header.format, side_px)


def _read(source: str, uri: str) -> bytes | None:
    if storage.is_remote(source) or storage.is_remote(uri):
        return None
    try:
        root = os.path.realpath(source)
        path = os.path.realpath(os.path.join(root, uri))
        if os.path.commonpath([root, path]) != root:
            return None
        # Without waiting: a pipe of this name would never open otherwise.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LIMITS.max_bytes:
            return None
        with open(number, "rb", closefd=False) as stream:
            return stream.read(_LIMITS.max_bytes)
    except OSError:
        return None
    finally:
        os.close(number)


def _decode(data: bytes, name: str, side_px: int) -> Image.Image | None:
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        with headers.open_image(data, name) as image:
            image.draft("RGB", (side_px, side_px))
            seen = image.convert("RGB")
    # The file is known to be broken; Pillow's parsers raise whatever their arithmetic runs into.
    except Exception:  # noqa: BLE001
        return None
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before
    # One colour all over is what is left when nothing could be decoded.
    return seen if seen.getcolors(1) is None else None
