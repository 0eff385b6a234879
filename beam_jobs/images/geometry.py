"""Where the pixels of a source image end up in the stored one: a resize, then a crop. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from beam_jobs.options import PixelOptions


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """A resize followed by a crop; masks and boxes go through the same one as the image.

    Attributes:
      source: height and width of the upright source image, in pixels.
      resized: height and width after the resize.
      top: rows cut off above, after the resize.
      left: columns cut off on the left, after the resize.
      stored: height and width of the stored image.
    """

    source: tuple[int, int]
    resized: tuple[int, int]
    top: int
    left: int
    stored: tuple[int, int]

    @property
    def is_identity(self) -> bool:
        """Whether every pixel stays where it is."""
        return self.source == self.resized == self.stored


def geometry(pixels: PixelOptions, height: int, width: int) -> Geometry:
    """Returns what the policy does to an upright image of a size.

    `resize` never enlarges; `raw` does, because its images have one size: it resizes the short side to `side_px` and
    keeps the centre.

    Args:
      pixels: the policy.
      height: rows of the upright image, in pixels, at least 1.
      width: columns of it, at least 1.
    """
    source = (height, width)
    if pixels.policy == "raw":
        side = pixels.side_px
        resized = _scaled(source, side / min(source))
        top, left = (resized[0] - side) // 2, (resized[1] - side) // 2
        return Geometry(source=source, resized=resized, top=top, left=left, stored=(side, side))
    resized = source
    if pixels.policy == "resize":
        ruling = min(source) if pixels.fit == "short" else max(source)
        resized = _scaled(source, min(1.0, pixels.side_px / ruling))
    return Geometry(source=source, resized=resized, top=0, left=0, stored=resized)


def _scaled(size: tuple[int, int], factor: float) -> tuple[int, int]:
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))
