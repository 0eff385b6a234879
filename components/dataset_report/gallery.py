"""Sections of the report with pictures: a sample of each class and split, sets of duplicates, and rejects.

Duplicates are exact copies and near duplicates. A rejected file is opened only if it is a regular file in the source.
Its header is checked first; then a decoder process with limited time and memory decodes as much as possible.
"""

from __future__ import annotations

import heapq
import itertools
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from beam_jobs import storage
from beam_jobs.common import strings
from beam_jobs.errors import BadImage
from beam_jobs.images.thumbnail import ThumbnailOptions
from beam_jobs.options import ImageLimits
from components.dataset_report import shown
from components.dataset_report.shown import (
    DROPPED,
    NO_CLASS,
    ByteBudget,
    Facts,
    Images,
    Picture,
    Renderer,
    placeholder,
    render_file,
)

_MAX_CLASSES = 60
_MAX_IMAGES = 240
_MAX_PER_STRIP = 8
# Maximum number of pictures -> their long side, pixels: a smaller side for more pictures limits the size of the page.
_SIDES_PX = ((100, 320), (180, 256), (_MAX_IMAGES, 200))
_BUDGET_BYTES = 2_000_000


@dataclass(frozen=True, kw_only=True)
class Tile:
    """An image in the gallery.

    Attributes:
      label: class of the image in its strip.
      split: name of the split.
      key: key of the image, as display text.
      picture: picture of the image.
      facts: names and values about the image.
    """

    label: str
    split: str
    key: str
    picture: Picture
    facts: Facts

    @property
    def search(self) -> str:
        """Text that the search of the page compares with the query, in lower case."""
        return f"{self.key} {shown.text(self.label, 60)} {self.split}".lower()


@dataclass(frozen=True, kw_only=True)
class Strip:
    """A sample of the images of one class in one split.

    Attributes:
      split: name of the split.
      images: number of images of the class in the split.
      tiles: images of the sample.
    """

    split: str
    images: int
    tiles: Sequence[Tile]


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """The section of the gallery.

    Attributes:
      classes: class name -> a strip for each split with images of the class.
      all_classes: number of classes.
      all_images: number of written images.
    """

    classes: dict[str, list[Strip]]
    all_classes: int
    all_images: int

    @property
    def images(self) -> int:
        """Number of images in the gallery."""
        return sum(len(strip.tiles) for strips in self.classes.values() for strip in strips)


def gallery(images: Images, renderer: Renderer) -> Gallery:
    """Returns the section of the gallery, with rendered pictures.

    The sample of a strip is its first images in the order of the shards, which is the order of hashes of the keys, so
    the sample is random. An image with several classes is in a strip of each class; images without a class come last.

    Raises:
      CorruptDataset: a record is damaged.
    """
    counts = _count_images(images)
    splits = [split for split in images.dataset.splits if any(name == split for _, name in counts)]
    labels = [label for label in (*images.dataset.labels, NO_CLASS) if any((label, name) in counts for name in splits)]
    sample_labels = labels[: max(1, min(_MAX_CLASSES, _MAX_IMAGES // max(1, len(splits))))]
    sample = _sample_rows(images, sample_labels, max(1, len(sample_labels) * len(splits)))
    tiles = _render_tiles(images, renderer, sample)
    return Gallery(
        classes={
            label: [
                Strip(split=split, images=counts[label, split], tiles=tiles[label, split])
                for split in splits
                if (label, split) in counts
            ]
            for label in sample_labels
        },
        all_classes=len(labels),
        all_images=images.dataset.counts.written,
    )


_COUNTS = """
    SELECT classes.label, place, count(*) AS images FROM classes JOIN images USING (row) WHERE shard >= 0
    GROUP BY classes.label, place"""
_SAMPLE = """
    SELECT label, place, row FROM (
        SELECT classes.label, place, row, row_number() OVER (PARTITION BY classes.label, place ORDER BY row) AS nth
        FROM classes JOIN images USING (row) WHERE shard >= 0 AND list_contains($labels, classes.label))
    WHERE nth <= $most ORDER BY row"""


def _count_images(images: Images) -> dict[tuple[str, str], int]:
    rows = images.database.query(_COUNTS).to_pylist()
    return {(row["label"], row["place"]): row["images"] for row in rows}


def _sample_rows(images: Images, labels: Sequence[str], strips: int) -> dict[tuple[str, str], list[int]]:
    most = max(1, min(_MAX_PER_STRIP, _MAX_IMAGES // strips))
    sample: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in images.database.query(_SAMPLE, most=most, labels=list(labels)).to_pylist():
        sample[row["label"], row["place"]].append(row["row"])
    return sample


def _render_tiles(
    images: Images, renderer: Renderer, sample: dict[tuple[str, str], list[int]]
) -> defaultdict[tuple[str, str], list[Tile]]:
    total = sum(map(len, sample.values()))
    side_px = next((side for most, side in _SIDES_PX if total <= most), _SIDES_PX[-1][1])
    budget = ByteBudget(_BUDGET_BYTES)
    tiles: defaultdict[tuple[str, str], list[Tile]] = defaultdict(list)
    # First image of every strip, second image of every strip, ...: the size limit of the section affects all strips.
    for position in range(_MAX_PER_STRIP):
        for (label, split), row_numbers in sample.items():
            if position >= len(row_numbers):
                continue
            row = images.row(row_numbers[position])
            picture = renderer.render(row, side_px, budget)
            if picture is not None:
                tile = Tile(
                    label=label, split=split, key=shown.short_path(row["key"]), picture=picture, facts=images.facts(row)
                )
                tiles[label, split].append(tile)
    return tiles


_MAX_SETS = 30
_MAX_MEMBERS = 6
_DUPLICATE_SIDE_PX = 160
DUPLICATES_BUDGET_BYTES = 1_200_000  # for exact copies and near duplicates together


@dataclass(frozen=True, kw_only=True)
class Member:
    """An image of a set of duplicates.

    Attributes:
      key: key of the image, as display text.
      labels: classes of the image, as text.
      split: name of the split, or `dropped`.
      picture: picture of the image; None if it is not stored, or if the size limit of the section is reached.
      facts: names and values about the image.
    """

    key: str
    labels: str
    split: str
    picture: Picture | None
    facts: Facts


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A set of duplicates.

    Attributes:
      name: name of the set in the image table.
      members: the first images of the set, with stored images before dropped copies.
      size: number of images.
      is_conflict: whether the images have different labels.
      is_leak: whether the images are in several splits.
    """

    name: str
    members: Sequence[Member]
    size: int
    is_conflict: bool
    is_leak: bool


@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """Sets of exact copies, or of near duplicates.

    Attributes:
      clusters: the first sets, in this order: leaks, label conflicts, other sets; the largest first.
      sets: number of sets.
      images: number of images in all sets.
      conflicts: number of sets with different labels.
      leaks: number of sets in several splits.
    """

    clusters: Sequence[Cluster]
    sets: int
    images: int
    conflicts: int
    leaks: int


def duplicates(images: Images, renderer: Renderer, column: str, budget: ByteBudget) -> Duplicates:
    """Returns the section of the sets of exact copies, or of near duplicates.

    Args:
      images: images of the dataset.
      renderer: renders the pictures.
      column: `cluster` for exact copies, `near` for near duplicates.
      budget: limit of the total size of the pictures.

    Raises:
      CorruptDataset: a record is damaged.
    """
    images.database.run(_SETS.format(column=column))
    totals = images.database.query(_SET_TOTALS).to_pylist()[0]
    return Duplicates(
        clusters=[
            Cluster(
                name=row["name"],
                members=_members(images, renderer, column, row["name"], budget),
                size=row["size"],
                is_conflict=row["is_conflict"],
                is_leak=row["is_leak"],
            )
            for row in images.database.query(_FIRST_SETS, most=_MAX_SETS).to_pylist()
        ],
        **{name: int(total or 0) for name, total in totals.items()},
    )


_SETS = """
    CREATE OR REPLACE TABLE sets AS
    SELECT {column} AS name, count(*) AS size, count(DISTINCT labels) > 1 AS is_conflict,
        count(DISTINCT split) FILTER (shard >= 0) > 1 AS is_leak
    FROM images WHERE {column} <> '' GROUP BY {column}"""
_SET_TOTALS = """
    SELECT count(*) AS sets, sum(size) AS images, count_if(is_conflict) AS conflicts, count_if(is_leak) AS leaks
    FROM sets"""
_FIRST_SETS = "SELECT * FROM sets ORDER BY NOT is_leak, NOT is_conflict, size DESC, name LIMIT $most"
_MEMBERS = "SELECT row FROM images WHERE {column} = $name ORDER BY shard < 0, key LIMIT $most"


def _members(images: Images, renderer: Renderer, column: str, name: str, budget: ByteBudget) -> list[Member]:
    members: list[Member] = []
    for number in images.database.column(_MEMBERS.format(column=column), name=name, most=_MAX_MEMBERS).tolist():
        row = images.row(number)
        is_written = row["shard"] >= 0
        if is_written:
            picture = renderer.render(row, _DUPLICATE_SIDE_PX, budget)
        else:
            # A dropped copy has no record, but the first member of an exact cluster is stored, and is the same image.
            equal_picture = members[0].picture if column == "cluster" and members else None
            picture = budget.spend(equal_picture) if equal_picture else None
        members.append(
            Member(
                key=shown.short_path(row["key"], 80),
                labels=shown.text(", ".join(images.labels(row)), 60),
                split=row["split"] if is_written else DROPPED,
                picture=picture,
                facts=images.facts(row, columns=0),
            )
        )
    return members


# Less strict than the limits of the ingest, except for memory and time: the decoded pixels of 24 Mpx have 72 MB.
_REJECTED_LIMITS = ImageLimits(
    max_bytes=20 << 20, max_pixels=24_000_000, min_side_px=1, max_aspect=100.0, max_seconds=10.0
)


def render_reject(source: str, uri: str, side_px: int) -> Picture | None:
    """Returns the picture of a rejected file.

    Args:
      source: directory that must contain the file after resolving links.
      uri: URI of the file, absolute or relative to `source`.
      side_px: maximum long side of the picture, pixels.

    Returns:
      the picture, or a placeholder with the reason if it cannot be decoded; None if the file must not be opened.
    """
    data = _read_reject(source, uri)
    if data is None:
        return None
    try:
        return render_file(data, _REJECTED_LIMITS, ThumbnailOptions(side_px=side_px, damaged=True))
    except BadImage as error:
        return placeholder(error)


def _read_reject(source: str, uri: str) -> bytes | None:
    if storage.is_remote(source) or storage.is_remote(uri):
        return None
    try:
        root = os.path.realpath(source)
        path = os.path.realpath(os.path.join(root, uri))
        if os.path.commonpath([root, path]) != root:
            return None
        # O_NONBLOCK, because opening a named pipe might never return.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _REJECTED_LIMITS.max_bytes:
            return None
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read(_REJECTED_LIMITS.max_bytes)
    except OSError:
        return None
    finally:
        os.close(descriptor)


_MAX_REJECTS = 200
_MAX_FILES = 100  # maximum number of opened files, even if they give no picture
_REJECT_SIDE_PX = 200
_REJECTS_BUDGET_BYTES = 700_000


@dataclass(frozen=True, kw_only=True)
class RejectRow:
    """A row of the table of rejects.

    Attributes:
      key: key of the image, as display text.
      stage: stage of the ingest that rejected the image.
      reason: a `RejectReason` value.
      detail: observed and allowed value, as text.
      bytes: size of the file, as text.
      picture: picture of the file; None if it was not opened.
    """

    key: str
    stage: str
    reason: str
    detail: str
    bytes: str
    picture: Picture | None

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """Names and values to display with the enlarged picture."""
        return (("Image", self.key), ("Reason", self.reason), ("Detail", self.detail), ("File", self.bytes))


@dataclass(frozen=True, kw_only=True)
class Rejects:
    """The section of the rejects.

    Attributes:
      rows: rows sorted by reason and key; if there are many rejects, a sample for each reason.
      reasons: reason -> number of images, by descending number.
      total: number of rejected images.
      has_source: whether the source directory exists.
    """

    rows: Sequence[RejectRow]
    reasons: Mapping[str, int]
    total: int
    has_source: bool


def rejects(tables: Iterable[pa.Table], source: str = "") -> Rejects:
    """Returns the section on rejects; at most a few hundred rows per reason are in memory at a time.

    Args:
      tables: the rows of `rejects.parquet`.
      source: directory of the source images; if empty, no pictures are shown.
    """
    by_reason: dict[str, list[dict[str, Any]]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for row in (row for table in tables for row in table.to_pylist()):
        counts[row["reason"]] += 1
        by_reason[row["reason"]].append(row)
        if len(by_reason[row["reason"]]) >= 2 * _MAX_REJECTS:
            by_reason[row["reason"]] = _first_rejects(by_reason[row["reason"]])
    rounds = itertools.zip_longest(*(_first_rejects(rows) for _, rows in sorted(by_reason.items())))
    sample = list(itertools.islice(filter(None, itertools.chain.from_iterable(rounds)), _MAX_REJECTS))
    budget = ByteBudget(_REJECTS_BUDGET_BYTES)
    pictures = [
        _reject_picture(source, row, budget) if source and index < _MAX_FILES else None
        for index, row in enumerate(sample)
    ]
    rows = [
        RejectRow(
            key=shown.short_path(row["key"]),
            stage=row["stage"],
            reason=row["reason"],
            detail=shown.text(row["detail"], 240),
            bytes=strings.size(row["bytes"]),
            picture=picture,
        )
        for row, picture in zip(sample, pictures, strict=True)
    ]
    rows.sort(key=lambda row: (row.reason, row.key))
    reasons = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return Rejects(rows=rows, reasons=reasons, total=counts.total(), has_source=os.path.isdir(source))


def _first_rejects(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return heapq.nsmallest(_MAX_REJECTS, rows, key=lambda row: row["key"])


def _reject_picture(source: str, row: Mapping[str, Any], budget: ByteBudget) -> Picture | None:
    if budget.free_bytes <= 0:
        return None
    picture = render_reject(source, row["uri"], _REJECT_SIDE_PX)
    return None if picture is None else budget.spend(picture)
