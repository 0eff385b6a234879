"""Sections of pictures: a few images of each class and split, drawn by chance; duplicates side by side; rejects.

Duplicates are images with equal bytes, and images that look alike. A rejected file is looked at as far as that is safe:
it must be a regular one inside the source, its header is judged before anything is decoded, and a decoder process with
bounded time and memory makes of the rest what it can, cut off or grey.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
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
    Album,
    Facts,
    Images,
    Picture,
    Room,
    draw_file,
    placeholder,
)

_MOST_CLASSES = 60
_MOST_IMAGES = 240
_MOST_A_STRIP = 8
# Many pictures are smaller ones, so that all fit.
_SIDES_PX = ((100, 320), (180, 256), (_MOST_IMAGES, 200))
_ROOM_BYTES = 2_000_000


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One image.

    Attributes:
      label: class it stands under.
      split: its split.
      key: identity, as it is shown.
      picture: of it.
      facts: about it.
    """

    label: str
    split: str
    key: str
    picture: Picture
    facts: Facts

    @property
    def search(self) -> str:
        """Text that a search looks through, in lower case."""
        return f"{self.key} {shown.text(self.label, 60)} {self.split}".lower()


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Images of one class in one split.

    Attributes:
      split: name.
      images: how many there are.
      tiles: some of them.
    """

    split: str
    images: int
    tiles: Sequence[Tile]


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """What the gallery shows.

    Attributes:
      classes: class name -> a strip a split that has images of it.
      all_classes: how many classes there are.
      all_images: how many images were written.
    """

    classes: dict[str, list[Strip]]
    all_classes: int
    all_images: int

    @property
    def images(self) -> int:
        """Images shown."""
        return sum(len(strip.tiles) for strips in self.classes.values() for strip in strips)


def gallery(images: Images, album: Album) -> Gallery:
    """Draws the gallery.

    Images are taken in the order of the shards, which is that of a hash, so they are a fair sample. An image of several
    classes stands under each; images without any stand together, after the classes.

    Raises:
      CorruptDataset: a record is damaged.
    """
    counts = _counts(images)
    splits = [split for split in images.dataset.splits if any(name == split for _, name in counts)]
    labels = [label for label in (*images.dataset.labels, NO_CLASS) if any((label, name) in counts for name in splits)]
    shown_labels = labels[: max(1, min(_MOST_CLASSES, _MOST_IMAGES // max(1, len(splits))))]
    wanted = _sample(images, shown_labels, max(1, len(shown_labels) * len(splits)))
    tiles = _draw(images, album, wanted)
    return Gallery(
        classes={
            label: [
                Strip(split=split, images=counts[label, split], tiles=tiles[label, split])
                for split in splits
                if (label, split) in counts
            ]
            for label in shown_labels
        },
        all_classes=len(labels),
        all_images=images.dataset.counts.written,
    )


def _counts(images: Images) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for index in np.flatnonzero(images.is_written).tolist():
        counts.update((label, images.splits[index]) for label in images.labels[index])
    return counts


def _sample(images: Images, labels: Sequence[str], strips: int) -> dict[tuple[str, str], list[int]]:
    most = max(1, min(_MOST_A_STRIP, _MOST_IMAGES // strips))
    wanted: dict[tuple[str, str], list[int]] = defaultdict(list)
    allowed = set(labels)
    for index in np.flatnonzero(images.is_written).tolist():
        for label in images.labels[index]:
            strip = wanted[label, images.splits[index]] if label in allowed else None
            if strip is not None and len(strip) < most:
                strip.append(index)
    return wanted


def _draw(
    images: Images, album: Album, wanted: dict[tuple[str, str], list[int]]
) -> defaultdict[tuple[str, str], list[Tile]]:
    total = sum(map(len, wanted.values()))
    side_px = next((side for most, side in _SIDES_PX if total <= most), _SIDES_PX[-1][1])
    room = Room(_ROOM_BYTES)
    tiles: defaultdict[tuple[str, str], list[Tile]] = defaultdict(list)
    # The first of every strip, then the second: when the room ends, it ends for all alike.
    for turn in range(_MOST_A_STRIP):
        for (label, split), indices in wanted.items():
            if turn >= len(indices):
                continue
            row = images.row(indices[turn])
            picture = album.draw(row, side_px, room)
            if picture is not None:
                tile = Tile(
                    label=label, split=split, key=shown.place(row["key"]), picture=picture, facts=images.facts(row)
                )
                tiles[label, split].append(tile)
    return tiles


_MOST_SETS = 30
_MOST_MEMBERS = 6
_DUPLICATE_SIDE_PX = 160
DUPLICATES_ROOM_BYTES = 1_200_000  # for sets of both kinds


@dataclass(frozen=True, kw_only=True)
class Member:
    """One image of a set.

    Attributes:
      key: identity, as it is shown.
      labels: its classes.
      split: its split, or `dropped`.
      picture: of it; None when it was not stored, or the section is full.
      facts: about it.
    """

    key: str
    labels: str
    split: str
    picture: Picture | None
    facts: Facts


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """One set.

    Attributes:
      name: as `images.parquet` names it.
      members: kept ones first; of many the first.
      size: images in it.
      is_conflict: whether the images carry different labels.
      is_leak: whether they lie in several splits.
    """

    name: str
    members: Sequence[Member]
    size: int
    is_conflict: bool
    is_leak: bool


@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """Sets of one kind.

    Attributes:
      clusters: leaks first, then label conflicts, then the largest.
      sets: how many there are.
      images: in all of them.
      conflicts: sets whose images carry different labels.
      leaks: sets that lie in several splits.
    """

    clusters: Sequence[Cluster]
    sets: int
    images: int
    conflicts: int
    leaks: int


def duplicates(images: Images, album: Album, column: str, room: Room) -> Duplicates:
    """Returns the sets of one kind.

    Args:
      images: of the dataset.
      album: draws them.
      column: `cluster` for equal bytes, `near` for images that look alike.
      room: for the pictures.

    Raises:
      CorruptDataset: a record is damaged.
    """
    found: dict[str, list[int]] = defaultdict(list)
    for index, name in enumerate(images.table[column].to_pylist()):
        if name:
            found[name].append(index)
    conflicts = {name for name, rows in found.items() if len({images.labels[index] for index in rows}) > 1}
    leaks = {name for name, rows in found.items() if len({images.splits[index] for index in rows} - {DROPPED}) > 1}
    order = sorted(found, key=lambda name: (name not in leaks, name not in conflicts, -len(found[name]), name))
    return Duplicates(
        clusters=[
            Cluster(
                name=name,
                members=_members(images, album, found[name], room, column == "cluster"),
                size=len(found[name]),
                is_conflict=name in conflicts,
                is_leak=name in leaks,
            )
            for name in order[:_MOST_SETS]
        ],
        sets=len(found),
        images=sum(map(len, found.values())),
        conflicts=len(conflicts),
        leaks=len(leaks),
    )


def _members(images: Images, album: Album, indices: Sequence[int], room: Room, equal: bool) -> list[Member]:
    keys = images.table["key"].take(np.asarray(indices)).to_pylist()
    ordered = sorted(zip(indices, keys, strict=True), key=lambda item: (not images.is_written[item[0]], item[1]))
    members: list[Member] = []
    for index, key in ordered[:_MOST_MEMBERS]:
        row = images.row(index)
        if images.is_written[index]:
            picture = album.draw(row, _DUPLICATE_SIDE_PX, room)
        else:
            # A dropped copy has no record, but it is the same image as the one that was kept.
            first = members[0].picture if equal and members else None
            picture = room.take(first) if first else None
        members.append(
            Member(
                key=shown.place(key, 80),
                labels=shown.text(", ".join(images.labels[index]), 60),
                split=str(images.splits[index]),
                picture=picture,
                facts=images.facts(row, columns=0),
            )
        )
    return members


# Looser than the ingest where that costs nothing, tighter where it costs memory or time: 24 Mpx decode to 72 MB.
_REJECTED_LIMITS = ImageLimits(
    max_bytes=20 << 20, max_pixels=24_000_000, min_side_px=1, max_aspect=100.0, max_seconds=10.0
)


def look_at_rejected(source: str, uri: str, side_px: int) -> Picture | None:
    """Returns what can be seen of a file, a placeholder with the reason when that is nothing.

    Args:
      source: directory that the file must lie in, links followed.
      uri: of the file, absolute or relative to it.
      side_px: long side of the picture at most.

    Returns:
      the picture; None when the file must not be opened.
    """
    data = _read_rejected(source, uri)
    if data is None:
        return None
    try:
        return draw_file(data, _REJECTED_LIMITS, ThumbnailOptions(side_px=side_px, damaged=True))
    except BadImage as bad:
        return placeholder(bad)


def _read_rejected(source: str, uri: str) -> bytes | None:
    if storage.is_remote(source) or storage.is_remote(uri):
        return None
    try:
        root = os.path.realpath(source)
        path = os.path.realpath(os.path.join(root, uri))
        if os.path.commonpath([root, path]) != root:
            return None
        # Without waiting: a pipe of this name would never open otherwise.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _REJECTED_LIMITS.max_bytes:
            return None
        with open(number, "rb", closefd=False) as stream:
            return stream.read(_REJECTED_LIMITS.max_bytes)
    except OSError:
        return None
    finally:
        os.close(number)


_MOST_REJECTS = 200
_MOST_FILES = 100  # opened, whether or not a picture comes of it
_REJECT_SIDE_PX = 200
_REJECTS_ROOM_BYTES = 700_000


@dataclass(frozen=True, kw_only=True)
class RejectRow:
    """One reject.

    Attributes:
      key: identity of the image, as it is shown.
      stage: of the ingest.
      reason: a `RejectReason` value.
      detail: what was found and what is allowed.
      bytes: size, as text.
      picture: what can be seen of the file; None when it was not opened.
    """

    key: str
    stage: str
    reason: str
    detail: str
    bytes: str
    picture: Picture | None

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """What is shown beside the large picture."""
        return (("Image", self.key), ("Reason", self.reason), ("Detail", self.detail), ("File", self.bytes))


@dataclass(frozen=True, kw_only=True)
class Rejects:
    """The rejects.

    Attributes:
      rows: in order of reason and key; of many, some of each reason.
      reasons: reason -> images, most frequent first.
      total: images rejected.
      looked: whether a source was given to look into.
    """

    rows: Sequence[RejectRow]
    reasons: Mapping[str, int]
    total: int
    looked: bool


def rejects(table: pa.Table, source: str = "") -> Rejects:
    """Returns the rejects.

    Args:
      table: the rows of `rejects.parquet`.
      source: directory that the images came from; empty shows no pictures.
    """
    by_reason: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in table.to_pylist():
        by_reason[row["reason"]].append(row)
    counts = {
        reason: len(rows) for reason, rows in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    }
    kept = _some_of_each([sorted(rows, key=lambda row: row["key"]) for _, rows in sorted(by_reason.items())])
    room = Room(_REJECTS_ROOM_BYTES)
    pictures = [
        _reject_picture(source, row, room) if source and place < _MOST_FILES else None for place, row in enumerate(kept)
    ]
    rows = [_reject_row(row, found) for row, found in zip(kept, pictures, strict=True)]
    rows.sort(key=lambda row: (row.reason, row.key))
    return Rejects(rows=rows, reasons=counts, total=table.num_rows, looked=os.path.isdir(source))


def _some_of_each(groups: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    turns = itertools.chain.from_iterable(itertools.zip_longest(*groups))
    return list(itertools.islice((row for row in turns if row is not None), _MOST_REJECTS))


def _reject_picture(source: str, row: Mapping[str, Any], room: Room) -> Picture | None:
    if room.left <= 0:
        return None
    image = look_at_rejected(source, row["uri"], _REJECT_SIDE_PX)
    return None if image is None else room.take(image)


def _reject_row(row: Mapping[str, Any], found: Picture | None) -> RejectRow:
    return RejectRow(
        key=shown.place(row["key"]),
        stage=row["stage"],
        reason=row["reason"],
        detail=shown.text(row["detail"], 240),
        bytes=strings.size(row["bytes"]),
        picture=found,
    )
