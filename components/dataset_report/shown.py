"""Contents of the sections of the report: names, numbers and paths as text, rows of the image table, and pictures.

The templates escape the texts. The database counts images; single rows are read when needed. A picture is a `data:`
URL, and the total size of the pictures of a section is limited.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from beam_jobs.common import strings
from beam_jobs.dataset import lookup, record, schemas
from beam_jobs.dataset.lookup import read_row_record
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import BadImage, CorruptDataset
from beam_jobs.images import sandbox, thumbnail
from beam_jobs.images.thumbnail import TINY_PX, Thumbnail, ThumbnailOptions
from beam_jobs.options import STORED_LIMITS, ImageLimits
from beam_jobs.rejects import RejectReason
from beam_jobs.storage.database import Database

_MAX_LENGTH = 120  # characters, so that a name of a megabyte does not enlarge the page
_ABSOLUTE = re.compile(r"^(/|~|[A-Za-z]:[\\/]|\\\\|file:)")
_HOME = re.compile(
    r"^(?:file:/+(?=[^/]))?(?:/?home/[^/]+|/?Users/[^/]+|/?root|~[^/\\]*|[A-Za-z]:[\\/]Users[\\/][^\\/]+)(?=[\\/]|$)"
)
_PATH_IN_PROSE = re.compile(r"(?<![\w./:…\\~-])(?:file:/+|/|~|[A-Za-z]:[\\/])[^\s'\",;()]+")


def text(value: object, most: int = _MAX_LENGTH) -> str:
    """Returns a value as one line, with visible control characters, shortened absolute paths and limited length.

    Args:
      value: untrusted value.
      most: maximum number of characters, at least 8.
    """
    # The line is shortened first, so that the search for paths is fast.
    line = str(value)
    if len(line) > most:
        line = f"{line[: most // 2]}…{line[-(most - most // 2 - 1) :]}"
    line = _PATH_IN_PROSE.sub(lambda match: _without_owner(match[0]), line)
    return strings.line(line)


def lines(value: str) -> str:
    """Returns a text of up to 60 lines of 400 characters, with control characters escaped."""
    return "\n".join(strings.printable(line[:400]) for line in value.splitlines()[:60])


def short_path(value: str, most: int = _MAX_LENGTH) -> str:
    """Returns a path or URI as one line; of an absolute path, which may contain a user name, the last two parts."""
    return text(_without_owner(value) if _ABSOLUTE.match(value) else value, most)


def _without_owner(path: str) -> str:
    """Returns the last two parts of an absolute path; a path of up to two parts outside of a home is unchanged."""
    relative = _HOME.sub("", path)
    parts = [part for part in re.split(r"[\\/]+", relative) if part]
    if relative == path and len(parts) <= 2:
        return path
    return "/".join(["…", *parts[-2:]])


def number(value: float) -> str:
    """Returns a number as text with four significant digits, or all digits of the integer part: `12,345`, `3.14`."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float) -> str:
    """Returns a share, 0-1, as `12.3 %`."""
    return f"{100 * share:.1f} %"


NO_CLASS = "no class"
DROPPED = "dropped"
_MAX_COLUMNS = 8  # user columns in the facts of a picture

Facts = tuple[tuple[str, str], ...]  # names and values to display with an image


class SetName(str):
    """The name of a set of duplicates as a fact, from which the page makes a link.

    Attributes:
      anchor: id of the set in the section of duplicates, unique in the page.
    """

    anchor: str

    def __new__(cls, column: str, name: str) -> SetName:
        """Returns the text for a set by its column, `cluster` or `near`, and its name in the image table."""
        set_name = super().__new__(cls, f"set {name}")
        set_name.anchor = column[0] + name
        return set_name


@dataclass(frozen=True)
class Images:
    """The images of a dataset, including dropped copies.

    Attributes:
      database: database of these views. `images` has the rows of the image table, with `place`, the split or, for an
        image without a record, an empty text; and with `labels`, the classes as one text. `classes` has a `row` and a
        `label` for each class of an image, `NO_CLASS` if it has none. `user_values` has the values of user columns of
        images with a record, see `lookup.open_images`, with `place`.
      dataset: manifest of the dataset.
    """

    database: Database
    dataset: Manifest

    def row(self, number: int) -> dict[str, Any]:
        """Returns the row with a number, with all columns of the image table."""
        return self.database.query(_ROW, number=number).to_pylist()[0]

    def facts(self, row: Mapping[str, Any], columns: int = _MAX_COLUMNS) -> Facts:
        """Returns names and values to display with the enlarged picture of a row.

        Args:
          row: row of the image table.
          columns: maximum number of user columns.
        """
        labels, source = self.labels(row), (row["source_width"], row["source_height"])
        resized = "" if source == (row["width"], row["height"]) else f", from {source[0]:,} x {source[1]:,}"
        pairs = [
            ("Image", short_path(row["key"])),
            ("Class", text(", ".join(labels))),
            ("Split", row["split"] if row["shard"] >= 0 else DROPPED),
            ("Size", f"{row['width']:,} x {row['height']:,} pixels{resized}"),
            ("Stored", f"{row['format']}, {strings.size(row['bytes'])}"),
            ("Re-encoded", row["normalised"].replace("+", ", ")),
            ("Brightness", f"{np.mean(row['mean_rgb']):.0f} of 255" if self.dataset.channels else ""),
            ("Copies", SetName("cluster", row["cluster"]) if row["cluster"] else ""),
            ("Looks like", SetName("near", row["near"]) if row["near"] else ""),
        ]
        extra = schemas.parse_cell(row["extra"] or "{}")
        pairs += [(text(name, 60), text(extra[name], 80)) for name in sorted(extra)[:columns]]
        return tuple((name, value) for name, value in pairs if value)

    def labels(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns the class names of a row; `NO_CLASS` if it has none."""
        if self.dataset.label_kind == "single":
            return (row["label"],)
        annotations = schemas.parse_annotations(row["annotations"])
        return (annotations and annotations.labels) or (NO_CLASS,)


_ROW = "SELECT * EXCLUDE (row, place, labels) FROM images WHERE row = $number"
_IMAGES = """
    CREATE VIEW images AS
    SELECT *, CASE WHEN shard >= 0 THEN split ELSE '' END AS place, {labels} AS labels FROM rows"""
_SEVERAL_LABELS = "regexp_replace(regexp_extract(annotations, '{labels_re}', 1), '^(null|\\[\\])$', '')"
_ONE_CLASS = "CREATE VIEW classes AS SELECT row, label FROM images"
_CLASSES = """
    CREATE VIEW classes AS SELECT row, label FROM labels
    UNION ALL SELECT row, '{no_class}' AS label FROM images ANTI JOIN labels USING (row)"""


_USER_VALUES = """
    CREATE VIEW user_values AS SELECT columns.*, place FROM columns JOIN images USING (row) WHERE shard >= 0"""


@contextlib.contextmanager
def open_images(directory: str, dataset: Manifest) -> Iterator[Images]:
    """Yields the images of a dataset with their rows in a database, which is closed at the end of the block.

    Raises:
      CorruptDataset: the image table is damaged.
    """
    is_single = dataset.label_kind == "single"
    labels = "label" if is_single else _SEVERAL_LABELS.format(labels_re=schemas.LABELS_RE)
    with lookup.open_images(directory, dataset, schemas.IMAGES.names, "rows", with_values=True) as database:
        database.run(_IMAGES.format(labels=labels))
        database.run(_USER_VALUES)
        database.run(_ONE_CLASS if is_single else _CLASSES.format(no_class=NO_CLASS))
        yield Images(database, dataset)


# Rejects because of a limit of the decoder; the image itself may be undamaged.
_LIMIT_REASONS = (
    RejectReason.DECODER_CRASHED,
    RejectReason.TOO_LARGE,
    RejectReason.TOO_MANY_BYTES,
    RejectReason.TOO_SLOW,
)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A small picture.

    Attributes:
      url: `data:` URL of a JPEG or PNG file; empty for a placeholder.
      width: width, pixels.
      height: height, pixels.
      problem: reason for the placeholder; empty if there is a picture.
    """

    url: str
    width: int
    height: int
    problem: str = ""

    @property
    def is_tiny(self) -> bool:
        """Whether the picture is so small that it is enlarged without smoothing."""
        return max(self.width, self.height) <= TINY_PX


@dataclass
class ByteBudget:
    """Limit of the total size of the pictures of a section.

    Attributes:
      free_bytes: remaining number of bytes.
    """

    free_bytes: int

    def spend(self, picture: Picture) -> Picture | None:
        """Subtracts the size of a picture and returns the picture; None if it exceeds the remaining bytes."""
        if len(picture.url) > self.free_bytes:
            return None
        self.free_bytes -= len(picture.url)
        return picture


class Renderer:
    """Renders pictures of the images of a dataset."""

    def __init__(self, directory: str, dataset: Manifest) -> None:
        """Builds the renderer without opening a file.

        Args:
          directory: directory of the dataset.
          dataset: manifest of the dataset.
        """
        self._directory = directory
        self._dataset = dataset

    def values(self, row: Mapping[str, Any]) -> dict[str, list]:
        """Returns the record of a row of the image table that has one, as feature name -> values.

        Raises:
          CorruptDataset: the record is missing or damaged.
        """
        return read_row_record(self._directory, self._dataset, row)

    def render(self, row: Mapping[str, Any], side_px: int, budget: ByteBudget) -> Picture | None:
        """Returns the picture of a row, with a long side of at most `side_px`; None if the budget is spent.

        Raises:
          CorruptDataset: the record is missing or damaged, or its image is damaged.
        """
        if budget.free_bytes <= 0:
            return None
        return budget.spend(self.picture(row, self.values(row), side_px))

    def picture(self, row: Mapping[str, Any], values: Mapping[str, list], side_px: int, max_pixels: int = 0) -> Picture:
        """Returns the picture of a record, or a placeholder if a limit stops the decoder.

        Args:
          row: row of the image table.
          values: values of its record.
          side_px: maximum long side of the picture, pixels.
          max_pixels: maximum number of pixels of the stored image; 0 for the limit of the ingest.

        Raises:
          CorruptDataset: the image is damaged.
        """
        limits = replace(STORED_LIMITS, max_pixels=max_pixels) if max_pixels else STORED_LIMITS
        try:
            is_raw = values[record.FORMAT] == [b"raw"]
            size = (int(values[record.HEIGHT][0]), int(values[record.WIDTH][0])) if is_raw else None
            return render_file(values[record.ENCODED][0], limits, ThumbnailOptions(side_px=side_px, raw_size=size))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise self._corrupt_error(row, f"is not of this format: {error!r}") from error
        except BadImage as error:
            if error.reason in _LIMIT_REASONS:
                return placeholder(error)
            raise self._corrupt_error(row, f"cannot be shown: {error}") from error

    def _corrupt_error(self, row: Mapping[str, Any], problem: str) -> CorruptDataset:
        path = self._dataset.shard_paths(self._directory, row["split"])[row["shard"]]
        location = f"{path} offset {row['offset']}"
        return CorruptDataset(f"{location}: the image {row['key']!r} {problem}; `feedline verify` says more")


def render_file(data: bytes, limits: ImageLimits, options: ThumbnailOptions) -> Picture:
    """Returns the picture of an untrusted image, rendered in a decoder process.

    Raises:
      BadImage: the image exceeds a limit, cannot be decoded, or takes too long.
    """
    return _picture(sandbox.thumbnail(data, limits, options))


def render_pixels(pixels: np.ndarray, side_px: int) -> Picture:
    """Returns trusted pixels as a picture.

    Args:
      pixels: uint8[height, width, 3].
      side_px: maximum long side of the picture, pixels; smaller pictures are not enlarged.
    """
    options = ThumbnailOptions(side_px=side_px, raw_size=(pixels.shape[0], pixels.shape[1]))
    return _picture(thumbnail.render(pixels.tobytes(), STORED_LIMITS, options))


def placeholder(error: BadImage) -> Picture:
    """Returns the placeholder of an image that cannot be displayed."""
    return Picture(url="", width=0, height=0, problem=text(str(error), 240))


def _picture(image: Thumbnail) -> Picture:
    kind = "png" if image.encoded.startswith(b"\x89PNG") else "jpeg"
    url = f"data:image/{kind};base64," + base64.b64encode(image.encoded).decode()
    return Picture(url=url, width=image.width, height=image.height)
