"""Small pictures of stored images, each a `data:` URL, within a bound on what all of them may weigh."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from beam_jobs.dataset import record
from beam_jobs.dataset.lookup import record_of
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import BadImage, CorruptDataset, RejectReason
from beam_jobs.images import sandbox, thumbnail
from beam_jobs.images.thumbnail import TINY_PX, Thumbnail, ThumbnailOptions
from beam_jobs.options import STORED_LIMITS, ImageLimits
from components.dataset_report import shown

# They say that a limit ended the look at an image, not that its bytes are damaged.
_NOT_LOOKED_AT = (
    RejectReason.DECODER_CRASHED,
    RejectReason.TOO_LARGE,
    RejectReason.TOO_MANY_BYTES,
    RejectReason.TOO_SLOW,
)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One small picture.

    Attributes:
      url: `data:` URL of a JPEG or PNG file; empty for a placeholder.
      width: columns, in pixels.
      height: rows.
      remark: why there is nothing to see; empty for a picture.
    """

    url: str
    width: int
    height: int
    remark: str = ""

    @property
    def is_tiny(self) -> bool:
        """Whether its pixels should stay visible when it is enlarged."""
        return max(self.width, self.height) <= TINY_PX


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
          CorruptDataset: there is no sound record, or its image is damaged.
        """
        if room.left <= 0:
            return None
        return room.take(self.picture(row, self.values(row), side_px))

    def picture(self, row: Mapping[str, Any], values: Mapping[str, list], side_px: int, max_pixels: int = 0) -> Picture:
        """Returns the picture of a record, or a placeholder where a limit forbids to decode it.

        Args:
          row: of `images.parquet`.
          values: its record.
          side_px: long side of the picture at most.
          max_pixels: pixels of the stored image at most; 0 for what an ingest may store.

        Raises:
          CorruptDataset: the image is damaged.
        """
        limits = replace(STORED_LIMITS, max_pixels=max_pixels) if max_pixels else STORED_LIMITS
        try:
            is_raw = values[record.FORMAT] == [b"raw"]
            size = (int(values[record.HEIGHT][0]), int(values[record.WIDTH][0])) if is_raw else None
            return draw_file(values[record.ENCODED][0], limits, ThumbnailOptions(side_px=side_px, raw_size=size))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise self._corrupt(row, f"is not of this format: {error!r}") from error
        except BadImage as bad:
            if bad.reason in _NOT_LOOKED_AT:
                return placeholder(bad)
            raise self._corrupt(row, f"cannot be shown: {bad}") from bad

    def _corrupt(self, row: Mapping[str, Any], problem: str) -> CorruptDataset:
        path = self._dataset.shard_paths(self._directory, row["split"])[row["shard"]]
        place = f"{path} offset {row['offset']}"
        return CorruptDataset(f"{place}: the image {row['key']!r} {problem}; `feedline verify` says more")


def draw_file(data: bytes, limits: ImageLimits, options: ThumbnailOptions) -> Picture:
    """Returns the picture of an image that is not trusted, drawn in a decoder process.

    Raises:
      BadImage: it is over a limit, it cannot be decoded, or it takes too long.
    """
    return _picture(sandbox.thumbnail(data, limits, options))


def draw_pixels(pixels: np.ndarray, side_px: int) -> Picture:
    """Returns pixels of our own as a picture.

    Args:
      pixels: uint8[height, width, 3].
      side_px: long side of the picture at most; smaller ones keep their size.
    """
    options = ThumbnailOptions(side_px=side_px, raw_size=(pixels.shape[0], pixels.shape[1]))
    return _picture(thumbnail.draw(pixels.tobytes(), STORED_LIMITS, options))


def placeholder(reason: BadImage) -> Picture:
    """Returns what stands in the place of an image that cannot be shown."""
    return Picture(url="", width=0, height=0, remark=shown.text(str(reason), 240))


def _picture(drawn: Thumbnail) -> Picture:
    kind = "png" if drawn.encoded.startswith(b"\x89PNG") else "jpeg"
    url = f"data:image/{kind};base64," + base64.b64encode(drawn.encoded).decode()
    return Picture(url=url, width=drawn.width, height=drawn.height)
