"""Classes: how many images of each there are in each split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from beam_jobs.dataset.manifest import Manifest

_MOST_ROWS = 200
_MOST_SPLITS = 12


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Images of a class in a split.

    Attributes:
      split: name.
      images: how many.
      length: share of the images of the largest class of the split, 0-1.
    """

    split: str
    images: int
    length: float


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """One class.

    Attributes:
      label: its name.
      images: in all splits.
      bars: one a split.
    """

    label: str
    images: int
    bars: Sequence[Bar]


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The classes.

    Attributes:
      rows: in order of the labels; of very many, the largest and the smallest.
      left_out: classes between these.
      largest: the row with the most images in the first split; None without classes.
      smallest: the row with the fewest.
    """

    rows: Sequence[ClassRow]
    left_out: int
    largest: ClassRow | None
    smallest: ClassRow | None

    @property
    def ratio(self) -> float:
        """Images of the largest class for each of the smallest, in the first split; infinite when that has none."""
        if self.largest is None or self.smallest is None:
            return 1.0
        fewest = self.smallest.bars[0].images
        return self.largest.bars[0].images / fewest if fewest else float("inf")


def balance(dataset: Manifest) -> Balance:
    """Returns the classes of a dataset with their images."""
    splits = list(dataset.splits)[:_MOST_SPLITS]
    most = {name: max(dataset.splits[name].classes.values(), default=1) for name in splits}
    rows = [_row(dataset, label, most) for label in dataset.labels]
    by_size = sorted(rows, key=lambda row: (-row.bars[0].images, row.label))
    kept = rows
    if len(rows) > _MOST_ROWS:
        # An imbalance is at the two ends.
        ends = {row.label for row in (*by_size[: _MOST_ROWS // 2], *by_size[-_MOST_ROWS // 2 :])}
        kept = [row for row in rows if row.label in ends]
    return Balance(
        rows=kept,
        left_out=len(rows) - len(kept),
        largest=by_size[0] if by_size else None,
        smallest=by_size[-1] if by_size else None,
    )


def _row(dataset: Manifest, label: str, most: Mapping[str, int]) -> ClassRow:
    bars = []
    for name, longest in most.items():
        count = dataset.splits[name].classes.get(label, 0)
        bars.append(Bar(split=name, images=count, length=count / max(1, longest)))
    images = sum(info.classes.get(label, 0) for info in dataset.splits.values())
    return ClassRow(label=label, images=images, bars=bars)
