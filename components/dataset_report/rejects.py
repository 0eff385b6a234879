"""Rejects: what is not in the dataset, why, and what it looks like where that can be shown."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from components.dataset_report import shown
from components.dataset_report.lenient import look
from components.dataset_report.pictures import Picture, Room

_MOST_ROWS = 200
_MOST_FILES = 100  # opened, whether or not a picture comes of it
_SIDE_PX = 200
_ROOM_BYTES = 700_000


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
    room = Room(_ROOM_BYTES)
    pictures = [
        _picture(source, row, room) if source and place < _MOST_FILES else None for place, row in enumerate(kept)
    ]
    rows = [_row(row, found) for row, found in zip(kept, pictures, strict=True)]
    rows.sort(key=lambda row: (row.reason, row.key))
    return Rejects(rows=rows, reasons=counts, total=table.num_rows, looked=os.path.isdir(source))


def _some_of_each(groups: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    turns = itertools.chain.from_iterable(itertools.zip_longest(*groups))
    return list(itertools.islice((row for row in turns if row is not None), _MOST_ROWS))


def _picture(source: str, row: Mapping[str, Any], room: Room) -> Picture | None:
    if room.left <= 0:
        return None
    image = look(source, row["uri"], _SIDE_PX)
    return None if image is None else room.take(image)


def _row(row: Mapping[str, Any], found: Picture | None) -> RejectRow:
    return RejectRow(
        key=shown.place(row["key"]),
        stage=row["stage"],
        reason=row["reason"],
        detail=shown.text(row["detail"], 240),
        bytes=shown.size(row["bytes"]),
        picture=found,
    )
