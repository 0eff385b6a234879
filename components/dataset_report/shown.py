"""What sections of the page show: names, numbers and places as text, rows of `images.parquet`, and small pictures.

Nothing here escapes: the templates do. Columns are arrays, single rows come on demand. A picture is a `data:` URL,
within a bound on what all of them may weigh.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from beam_jobs.common import strings
from beam_jobs.dataset import record, schemas
from beam_jobs.dataset.lookup import record_of
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import BadImage, CorruptDataset, RejectReason
from beam_jobs.images import sandbox, thumbnail
from beam_jobs.images.thumbnail import TINY_PX, Thumbnail, ThumbnailOptions
from beam_jobs.options import STORED_LIMITS, ImageLimits

_LONGEST = 120  # characters; a name of a megabyte must not make a page of a megabyte
_ABSOLUTE = re.compile(r"^(/|~|[A-Za-z]:[\\/]|\\\\|file:)")
_HOME = re.compile(
    r"^(?:file:/+(?=[^/]))?(?:/?home/[^/]+|/?Users/[^/]+|/?root|~[^/\\]*|[A-Za-z]:[\\/]Users[\\/][^\\/]+)(?=[\\/]|$)"
)
_PATH_IN_PROSE = re.compile(r"(?<![\w./:…\\~-])(?:file:/+|/|~|[A-Za-z]:[\\/])[^\s'\",;()]+")


def text(value: object, most: int = _LONGEST) -> str:
    """Returns a value as one line: controls made visible, absolute paths as `place` has them, a long one cut inside.

    Args:
      value: anything; its text comes from data.
      most: characters, at least 8.
    """
    # Cut first, so that a very long text is not searched to its end.
    line = str(value)
    if len(line) > most:
        line = f"{line[: most // 2]}…{line[-(most - most // 2 - 1) :]}"
    line = _PATH_IN_PROSE.sub(lambda found: _without_owner(found[0]), line)
    return strings.line(line)


def place(value: str, most: int = _LONGEST) -> str:
    """Returns a path or uri as a line; of an absolute path, which tells whose machine it is, the last two parts."""
    return text(_without_owner(value) if _ABSOLUTE.match(value) else value, most)


def _without_owner(path: str) -> str:
    """Returns the last two parts of an absolute path, and no part that is somebody's home; a short one as it is."""
    below = _HOME.sub("", path)
    parts = [part for part in re.split(r"[\\/]+", below) if part]
    if below == path and len(parts) <= 2:
        return path
    return "/".join(["…", *parts[-2:]])


def number(value: float) -> str:
    """Returns a number with the digits a reader wants: `12,345`, `3.14`, `0.0021`."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float, digits: int = 1) -> str:
    """Returns a share, 0-1, as `12.3 %`."""
    return f"{100 * share:.{digits}f} %"


NO_CLASS = "no class"
DROPPED = "dropped"
_MOST_COLUMNS = 8  # user columns listed with a picture

Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Images:
    """The images of a dataset, dropped ones included.

    Attributes:
      table: the rows of `images.parquet`.
      dataset: the manifest.
    """

    table: pa.Table
    dataset: Manifest

    @cached_property
    def labels(self) -> Sequence[tuple[str, ...]]:
        """Class names of each row; `NO_CLASS` when there are none."""
        if self.dataset.label_kind == "single":
            return [(label,) for label in self.table["label"].to_pylist()]
        parsed = map(schemas.annotations_of, self.table["annotations"].to_pylist())
        return [(annotations and annotations.labels) or (NO_CLASS,) for annotations in parsed]

    @cached_property
    def splits(self) -> np.ndarray:
        """Split of each row, object[rows]; `DROPPED` for what was not written."""
        names = self.table["split"].to_numpy().astype(object)
        names[~self.is_written] = DROPPED
        return names

    @cached_property
    def is_written(self) -> np.ndarray:
        """Whether each row has a record, bool[rows]."""
        return np.asarray(self.table["shard"]) >= 0

    def numbers(self, name: str) -> np.ndarray:
        """Returns a column of numbers, [rows]."""
        return self.table[name].to_numpy()

    def channels(self, name: str) -> np.ndarray:
        """Returns a column of three numbers a row, float32[rows, 3]."""
        return schemas.triples(self.table[name])

    def extras(self) -> Iterator[Mapping[str, Any]]:
        """Yields the user columns of each row."""
        for cell in self.table["extra"].to_pylist():
            yield schemas.cell(cell) if cell else {}

    def row(self, index: int) -> dict[str, Any]:
        """Returns a whole row."""
        return self.table.slice(index, 1).to_pylist()[0]

    def facts(self, row: Mapping[str, Any], columns: int = _MOST_COLUMNS) -> Facts:
        """Returns what is shown beside the large picture of a row: name and value.

        Args:
          row: of the table.
          columns: user columns at most.
        """
        labels = self._labels_of(row)
        pairs = [
            ("Image", place(row["key"])),
            ("Class", text(", ".join(labels))),
            ("Split", row["split"] if row["shard"] >= 0 else DROPPED),
            ("Size", f"{row['width']:,} x {row['height']:,} pixels{_before(row)}"),
            ("Stored", f"{row['format']}, {strings.size(row['bytes'])}"),
            ("Re-encoded", row["normalised"].replace("+", ", ")),
            ("Brightness", f"{np.mean(row['mean_rgb']):.0f} of 255" if self.dataset.channels else ""),
            ("Copies", f"set {row['cluster']}" if row["cluster"] else ""),
            ("Looks like", f"set {row['near']}" if row["near"] else ""),
        ]
        extra = schemas.cell(row["extra"] or "{}")
        pairs += [(text(name, 60), text(extra[name], 80)) for name in sorted(extra)[:columns]]
        return tuple((name, value) for name, value in pairs if value)

    def _labels_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        if self.dataset.label_kind == "single":
            return (row["label"],)
        annotations = schemas.annotations_of(row["annotations"])
        return (annotations and annotations.labels) or (NO_CLASS,)


def _before(row: Mapping[str, Any]) -> str:
    if (row["source_width"], row["source_height"]) == (row["width"], row["height"]):
        return ""
    return f", from {row['source_width']:,} x {row['source_height']:,}"


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
    return Picture(url="", width=0, height=0, remark=text(str(reason), 240))


def _picture(drawn: Thumbnail) -> Picture:
    kind = "png" if drawn.encoded.startswith(b"\x89PNG") else "jpeg"
    url = f"data:image/{kind};base64," + base64.b64encode(drawn.encoded).decode()
    return Picture(url=url, width=drawn.width, height=drawn.height)
