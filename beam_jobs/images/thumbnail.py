"""Thumbnails of images for HTML pages. A decoder process renders them; see `sandbox.thumbnail`."""

from __future__ import annotations

import io
from dataclasses import dataclass

from PIL import Image, ImageFile

from beam_jobs.errors import BadImage
from beam_jobs.images import header_check
from beam_jobs.options import ImageLimits
from beam_jobs.rejects import RejectReason

TINY_PX = 64  # sides up to this are stored without loss, and enlarged without blur
_QUALITY = 78


@dataclass(frozen=True, kw_only=True)
class ThumbnailOptions:
    """Options of a thumbnail.

    Attributes:
      side_px: maximum of the long side, in pixels; smaller images keep their size.
      raw_size: height and width when the data is raw pixels, uint8[height, width, 3]; None for a file.
      damaged: whether the file may be damaged and have any format that the ingest reads; pixels that cannot be decoded
        then keep the colour that the decoder gives them. Otherwise the file is an intact JPEG or PNG file.
    """

    side_px: int
    raw_size: tuple[int, int] | None = None
    damaged: bool = False


@dataclass(frozen=True, kw_only=True)
class Thumbnail:
    """A small picture.

    Attributes:
      encoded: a PNG file when both sides are at most `TINY_PX`, else a JPEG file.
      width: columns, in pixels.
      height: rows, in pixels.
    """

    encoded: bytes
    width: int
    height: int


def render(data: bytes, limits: ImageLimits, options: ThumbnailOptions) -> Thumbnail:
    """Renders a thumbnail in RGB.

    Raises:
      BadImage: the image is over a limit or cannot be decoded.
    """
    picture = _read_raw(data, limits, options.raw_size) if options.raw_size else _read_file(data, limits, options)
    picture.thumbnail((options.side_px, options.side_px))
    out = io.BytesIO()
    if max(picture.size) <= TINY_PX:
        picture.save(out, "PNG", optimize=True)
    else:
        picture.save(out, "JPEG", quality=_QUALITY)
    return Thumbnail(encoded=out.getvalue(), width=picture.width, height=picture.height)


def _read_raw(data: bytes, limits: ImageLimits, size: tuple[int, int]) -> Image.Image:
    height, width = size
    if height < 1 or width < 1 or height * width * 3 != len(data):
        detail = f"{len(data)} bytes of pixels; its record declares {width}x{height} pixels of 3 bytes"
        raise BadImage(RejectReason.FORGED_SIZE, detail)
    if height * width > limits.max_pixels:
        raise BadImage(RejectReason.TOO_LARGE, f"{width}x{height} pixels; max_pixels is {limits.max_pixels}")
    return Image.frombytes("RGB", (width, height), data)


def _read_file(data: bytes, limits: ImageLimits, options: ThumbnailOptions) -> Image.Image:
    header = header_check.check_header(data, limits)
    ImageFile.LOAD_TRUNCATED_IMAGES = options.damaged
    try:
        with header_check.open_image(data, header.format) as image:
            image.draft("RGB", (options.side_px, options.side_px))
            pixels = image.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:  # Pillow's parsers raise exceptions of any type
        raise BadImage(RejectReason.UNDECODABLE, f"{header.format}: {error}") from error
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False
    # A single colour means that no pixel could be decoded.
    if options.damaged and pixels.getcolors(1) is not None:
        raise BadImage(RejectReason.UNDECODABLE, f"{header.format}: no pixel can be decoded")
    return pixels
