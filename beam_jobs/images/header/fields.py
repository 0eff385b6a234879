"""What the first bytes of an image promise."""

from __future__ import annotations

from dataclasses import dataclass

from beam_jobs.errors import BadImage, RejectReason

UPRIGHT = 1


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the first bytes of an image promise.

    Attributes:
      format: one of `jpeg png gif bmp tiff webp`, from the magic bytes.
      height: rows, in pixels, as stored (before EXIF rotation).
      width: columns, in pixels.
      mode: Pillow mode, such as `RGB`, `CMYK` or `P`.
      orientation: EXIF orientation, 1-8; 1 is upright.
      frames: 1 unless animated; 2 where nothing short of a walk through the file would tell how many more.
      has_alpha: whether some pixels may be transparent.
      bit_depth: bits a channel.
      progressive: whether a JPEG is progressive, or coded in another way that needs less than two bits a block.
      scans: passes over the pixels of a JPEG.
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
