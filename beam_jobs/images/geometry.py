"""The mapping from a source image to the stored image: a resize, then a crop. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from beam_jobs.options import PixelOptions


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """A resize followed by a crop; masks and boxes go through the same one as the image.

    Attributes:
      source: height and width of the upright source image, in pixels.
      resized: height and width after the resize.
      top: number of rows cut off at the top, after the resize.
      left: number of columns cut off on the left, after the resize.
      stored: height and width of the stored image.
    """

    source: tuple[int, int]
    resized: tuple[int, int]
    top: int
    left: int
    stored: tuple[int, int]

    @property
    def is_identity(self) -> bool:
        """Whether the stored image has the pixels of the source image, unchanged."""
        return self.source == self.resized == self.stored


def geometry(pixels: PixelOptions, height: int, width: int) -> Geometry:
    """Returns the geometry that a policy gives an upright image.

    `resize` never enlarges. `raw` stores all images in the same size and may enlarge: it resizes the short side to
    `side_px` and crops to the centre.

    Args:
      pixels: the policy.
      height: rows of the upright image, in pixels, at least 1.
      width: columns of the upright image, in pixels, at least 1.
    """
    source = (height, width)
    if pixels.policy == "raw":
        side = pixels.side_px
        resized = _scale(source, side / min(source))
        top, left = (resized[0] - side) // 2, (resized[1] - side) // 2
        return Geometry(source=source, resized=resized, top=top, left=left, stored=(side, side))
    resized = source
    if pixels.policy == "resize":
        fitted_side = min(source) if pixels.fit == "short" else max(source)
        resized = _scale(source, min(1.0, pixels.side_px / fitted_side))
    return Geometry(source=source, resized=resized, top=0, left=0, stored=resized)


def _scale(size: tuple[int, int], factor: float) -> tuple[int, int]:
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))
