"""Small pictures of images, as a page shows them. They are drawn in a decoder process; see `decoders.thumbnail`."""

from __future__ import annotations

import io
from dataclasses import dataclass

from PIL import Image, ImageFile

from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.images import headers
from beam_jobs.options import ImageLimits

TINY_PX = 64  # up to here the pixels themselves are shown: enlarged without blur, stored without loss
_QUALITY = 78


@dataclass(frozen=True, kw_only=True)
class ThumbnailOptions:
    """How an image is drawn.

    Attributes:
      side_px: its long side at most; smaller images keep their size.
      raw_size: height and width when the data is raw pixels, uint8[height, width, 3]; None for a file.
      damaged: whether the file is known to be damaged: it may be of any format the ingest reads, and what the decoder
        makes of the rest is taken as it comes, cut off or grey. Otherwise it is a sound JPEG or PNG file.
    """

    side_px: int
    raw_size: tuple[int, int] | None = None
    damaged: bool = False


@dataclass(frozen=True, kw_only=True)
class Thumbnail:
    """A small picture.

    Attributes:
      encoded: a PNG file when it is tiny, else a JPEG file.
      width: columns, in pixels.
      height: rows.
    """

    encoded: bytes
    width: int
    height: int


def draw(data: bytes, limits: ImageLimits, options: ThumbnailOptions) -> Thumbnail:
    """Draws an image in RGB.

    Raises:
      BadImage: it is over a limit, it cannot be decoded, or nothing of it can be seen.
    """
    small = _raw(data, limits, options.raw_size) if options.raw_size else _opened(data, limits, options)
    small.thumbnail((options.side_px, options.side_px))
    out = io.BytesIO()
    if max(small.size) <= TINY_PX:
        small.save(out, "PNG", optimize=True)
    else:
        small.save(out, "JPEG", quality=_QUALITY)
    return Thumbnail(encoded=out.getvalue(), width=small.width, height=small.height)


def _raw(data: bytes, limits: ImageLimits, size: tuple[int, int]) -> Image.Image:
    height, width = size
    if height < 1 or width < 1 or height * width * 3 != len(data):
        detail = f"{len(data)} bytes of pixels, its record says {width}x{height} of three each"
        raise BadImage(RejectReason.FORGED_SIZE, detail)
    if height * width > limits.max_pixels:
        raise BadImage(RejectReason.TOO_LARGE, f"{width}x{height} pixels; {limits.max_pixels} are drawn")
    return Image.frombytes("RGB", (width, height), data)


def _opened(data: bytes, limits: ImageLimits, options: ThumbnailOptions) -> Image.Image:
    header = headers.gate(data, limits)
    ImageFile.LOAD_TRUNCATED_IMAGES = options.damaged
    try:
        with headers.open_image(data, header.format) as image:
            image.draft("RGB", (options.side_px, options.side_px))
            seen = image.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:  # Pillow's parsers raise whatever their arithmetic runs into
        raise BadImage(RejectReason.UNDECODABLE, f"{header.format}: {error}") from error
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False
    # One colour all over is what is left when nothing could be decoded.
    if options.damaged and seen.getcolors(1) is not None:
        raise BadImage(RejectReason.UNDECODABLE, f"{header.format}: no pixel can be decoded")
    return seen
