"""`images.parquet` as the sections of the page want it: columns as arrays, and single rows on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from beam_jobs.dataset import schemas
from beam_jobs.dataset.manifest import Manifest
from components.dataset_report import shown

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
        return self.table[name].combine_chunks().flatten().to_numpy().reshape(-1, 3)

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
            ("Image", shown.place(row["key"])),
            ("Class", shown.text(", ".join(labels))),
            ("Split", row["split"] if row["shard"] >= 0 else DROPPED),
            ("Size", f"{row['width']:,} x {row['height']:,} pixels{_before(row)}"),
            ("Stored", f"{row['format']}, {shown.size(row['bytes'])}"),
            ("Re-encoded", row["normalised"].replace("+", ", ")),
            ("Brightness", f"{np.mean(row['mean_rgb']):.0f} of 255" if self.dataset.channels else ""),
            ("Copies", f"set {row['cluster']}" if row["cluster"] else ""),
            ("Looks like", f"set {row['near']}" if row["near"] else ""),
        ]
        extra = schemas.cell(row["extra"] or "{}")
        pairs += [(shown.text(name, 60), shown.text(extra[name], 80)) for name in sorted(extra)[:columns]]
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
