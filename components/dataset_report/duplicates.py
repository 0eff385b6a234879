"""Duplicates: images with equal bytes, and images that look alike, side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from components.dataset_report import shown
from components.dataset_report.images import DROPPED, Facts, Images
from components.dataset_report.pictures import Album, Picture, Room

_MOST_SETS = 30
_MOST_MEMBERS = 6
_SIDE_PX = 160
ROOM_BYTES = 1_200_000  # for sets of both kinds


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
            picture = album.draw(row, _SIDE_PX, room)
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
