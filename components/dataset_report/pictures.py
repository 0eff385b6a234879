"""Small pictures of stored images, each a `data:` URL, within a bound on what all of them may weigh."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

from beam_jobs import record
from beam_jobs.inspect.lookup import record_of
from beam_jobs.manifest import Manifest

_TINY_PX = 64  # up to here the pixels themselves are shown: enlarged without blur, stored without loss
_QUALITY = 78


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One small picture.

    Attributes:
      url: `data:` URL of a JPEG or PNG file.
      width: columns, in pixels.
      height: rows.
    """

    url: str
    width: int
    height: int

    @property
    def is_tiny(self) -> bool:
        """Whether its pixels should stay visible when it is enlarged."""
        return max(self.width, self.height) <= _TINY_PX


class Room:
    """Bytes that one section of the page may still fill with pictures."""

    def __init__(self, size: int) -> None:
        """Starts empty.

        Args:
          size: in bytes.
        """
        self.left = size

    def take(self, picture: Picture) -> Picture | None:
        """Returns the picture when it still fits, and None when it does not."""
        if len(picture.url) > self.left:
            return None
        self.left -= len(picture.url)
        return picture


class Album:
    """Draws the images of a dataset."""

    def __init__(self, directory: str, dataset: Manifest) -> None:
        """Opens nothing yet.

        Args:
          directory: of the dataset.
          dataset: its manifest.
        """
        self._directory = directory
        self._dataset = dataset

    def values(self, row: Mapping[str, Any]) -> dict[str, list]:
        """Returns the record of a row of `images.parquet` that was written, feature name -> values.

        Raises:
          CorruptDataset: there is no sound record.
        """
        return record_of(self._directory, self._dataset, row)

    def draw(self, row: Mapping[str, Any], side_px: int, room: Room) -> Picture | None:
        """Returns the picture of a row, its long side `side_px` at most; None when the section is full.

        Raises:
          CorruptDataset: there is no sound record.
        """
        if room.left <= 0:
            return None
        return room.take(picture(open_stored(self.values(row), side_px), side_px))


def open_stored(values: Mapping[str, list], side_px: int = 0) -> Image.Image:
    """Returns the image of a record in RGB.

    Args:
      values: the record.
      side_px: long side that is enough, which lets a JPEG be decoded in part; 0 for all of it.
    """
    encoded = values[record.ENCODED][0]
    if values[record.FORMAT][0] == b"raw":
        return Image.frombytes("RGB", (values[record.WIDTH][0], values[record.HEIGHT][0]), encoded)
    with Image.open(io.BytesIO(encoded), formats=("JPEG", "PNG")) as image:
        if side_px:
            image.draft("RGB", (side_px, side_px))
        return image.convert("RGB")


def picture(image: Image.Image, side_px: int) -> Picture:
    """Returns an image as a picture.

    Args:
      image: in RGB.
      side_px: its long side at most; smaller ones keep their size.
    """
    small = image.copy()
    small.thumbnail((side_px, side_px))
    out = io.BytesIO()
    if max(small.size) <= _TINY_PX:
        kind = "png"
        small.save(out, "PNG", optimize=True)
    else:
        kind = "jpeg"
        small.save(out, "JPEG", quality=_QUALITY)
    url = f"data:image/{kind};base64," + base64.b64encode(out.getvalue()).decode()
    return Picture(url=url, width=small.width, height=small.height)
