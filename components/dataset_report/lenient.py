"""A look at a rejected file, as far as that is safe: what the ingest refuses may still be shown to a person.

The file must be a regular one inside the source, its header is judged before anything is decoded, and a decoder process
with bounded time and memory makes of the rest what it can, cut off or grey.
"""

from __future__ import annotations

import os
import stat

from beam_jobs import storage
from beam_jobs.errors import BadImage
from beam_jobs.images.thumbnail import ThumbnailOptions
from beam_jobs.options import ImageLimits
from components.dataset_report.pictures import Picture, draw_file, placeholder

# Looser than the ingest where that costs nothing, tighter where it costs memory or time: 24 Mpx decode to 72 MB.
_LIMITS = ImageLimits(max_bytes=20 << 20, max_pixels=24_000_000, min_side_px=1, max_aspect=100.0, max_seconds=10.0)


def look(source: str, uri: str, side_px: int) -> Picture | None:
    """Returns what can be seen of a file, a placeholder with the reason when that is nothing.

    Args:
      source: directory that the file must lie in, links followed.
      uri: of the file, absolute or relative to it.
      side_px: long side of the picture at most.

    Returns:
      the picture; None when the file must not be opened.
    """
    data = _read(source, uri)
    if data is None:
        return None
    try:
        return draw_file(data, _LIMITS, ThumbnailOptions(side_px=side_px, damaged=True))
    except BadImage as bad:
        return placeholder(bad)


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
