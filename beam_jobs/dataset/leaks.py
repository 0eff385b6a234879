"""Leaks: images that belong together and lie in several splits. Pure; on the table of images alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.common.strings import plural, some

# Column of `images.parquet` -> what its sets are called.
KINDS = {"cluster": "copies", "group": "group", "near": "near duplicates"}


@dataclass(frozen=True, kw_only=True)
class Leak:
    """One set of images that belong together.

    Attributes:
      kind: a value of `KINDS`.
      name: of the set.
      keys: split -> key of its first image there.
    """

    kind: str
    name: str
    keys: dict[str, str]

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.kind == "group" else ""
        return f"{self.kind}{name}: " + " and ".join(f"{key} in {split}" for split, key in self.keys.items())


def find(images: pa.Table, kinds: Sequence[str], new: np.ndarray | None = None) -> list[Leak]:
    """Returns the sets that lie in several splits, kind by kind in order of their names.

    Args:
      images: rows of `images.parquet`, at least `key`, `split` (empty for images in none) and the columns of `kinds`.
      kinds: keys of `KINDS`.
      new: bool[images]; sets without such an image are left out. None for all sets.
    """
    splits = pc.fill_null(images["split"], "").combine_chunks().dictionary_encode()
    placed = pc.not_equal(splits.dictionary, "").to_numpy(zero_copy_only=False)[splits.indices.to_numpy()]
    leaks = []
    for column in kinds:
        rows = np.flatnonzero(placed & pc.fill_null(pc.not_equal(images[column], ""), False).to_numpy())
        names = images[column].take(_places(rows)).combine_chunks().dictionary_encode()
        sets = names.indices.to_numpy().astype(np.int64)
        pairs, firsts = np.unique(sets * len(splits.dictionary) + splits.indices.to_numpy()[rows], return_index=True)
        several = np.bincount(pairs // max(1, len(splits.dictionary)), minlength=len(names.dictionary)) > 1
        if new is not None:
            several[np.setdiff1d(sets, sets[new[rows]])] = False
        firsts = firsts[several[sets[firsts]]]
        shown = images.select([column, "split", "key"]).take(_places(rows[firsts])).to_pylist()
        found: dict[str, dict[str, str]] = {}
        for row in shown:
            found.setdefault(row[column], {})[row["split"]] = row["key"]
        leaks += [Leak(kind=KINDS[column], name=name, keys=dict(sorted(found[name].items()))) for name in sorted(found)]
    return leaks


def _places(rows: np.ndarray) -> pa.Array:
    """Returns int64[rows] for Arrow, which for an array of NumPy imports pandas, and loses a signal that comes then."""
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])


def kinds_of(near_duplicates: str) -> tuple[str, ...]:
    """Returns the kinds of sets that are to stay in one split under a policy for near duplicates."""
    return tuple(KINDS) if near_duplicates == "group" else ("cluster", "group")


def sentence(leaks: Sequence[Leak], most: int = 8) -> str:
    """Returns what is wrong, with the first of the sets."""
    sets = plural(len(leaks), "set of images that belong together lies", "sets of images that belong together lie")
    return f"{sets} in several splits: {some([str(leak) for leak in leaks[: most + 1]], most)}"
