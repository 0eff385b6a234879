"""The gallery: for each class and split a few images, drawn by chance."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from components.dataset_report import shown
from components.dataset_report.images import NO_CLASS, Facts, Images
from components.dataset_report.pictures import Album, Picture, Room

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
