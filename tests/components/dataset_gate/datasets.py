"""Datasets for the gate: a sound one, and one more for every fault. Made by real ingests of tables."""

from __future__ import annotations

import contextlib
import csv
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions, PixelOptions, TableColumns
from components.dataset_gate.drift_and_skew import GateDataset, open_dataset
from tests.make_images import crop, encode

SIDE = 40


@dataclass(frozen=True)
class Row:
    """One image of a table."""

    name: str
    data: bytes
    label: str
    split: str
    extra: dict = field(default_factory=dict)


def photograph(seed: int, bright: bool = False, side: int = SIDE, quality: int = 90) -> bytes:
    pixels = crop(seed, SIDE, SIDE, "flower.jpg")[:side, :side]
    return encode(pixels // 2 + 127 if bright else pixels, "JPEG", quality=quality)


def flat(level: int) -> bytes:
    return encode(np.full((SIDE, SIDE, 3), level, np.uint8), "PNG")


def sound_rows(start: int = 0, bright: bool = False) -> list[Row]:
    """60 images to train and 30 to evaluate, of two classes."""
    return [
        Row(f"{index:02d}.jpg", photograph(start + index, bright), "ab"[index % 2], "train" if index < 60 else "eval")
        for index in range(90)
    ]


def changed(rows: Sequence[Row], change: Callable[[Row], Row]) -> list[Row]:
    return [change(row) for row in rows]


def ingest(root: Path, rows: Sequence[Row], columns: TableColumns | None = None, **options) -> Path:
    """Writes the images and their table, and returns the dataset of them."""
    root.mkdir(parents=True)
    extra = sorted({name for row in rows for name in row.extra})
    with (root / "table.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["image", "label", "split", *extra])
        for row in rows:
            (root / row.name).write_bytes(row.data)
            table.writerow([row.name, row.label, row.split, *(row.extra.get(name, "") for name in extra)])
    columns = columns or TableColumns(split="split", extra=tuple(extra))
    run(IngestOptions(source=str(root / "table.csv"), out=str(root / "dataset"), columns=columns, **options))
    return root / "dataset"


def with_rows(*rows: Row) -> list[Row]:
    """The sound ones and more."""
    return [*sound_rows(), *rows]


def _in_eval(change: Callable[[Row, int], Row]) -> list[Row]:
    return [change(row, place) if row.split == "eval" else row for place, row in enumerate(sound_rows())]


def _all(change: Callable[[Row, int], Row]) -> list[Row]:
    return [change(row, place) for place, row in enumerate(sound_rows())]


# Name -> rows and options of the ingest.
RECIPES: dict[str, Callable[[], tuple[list[Row], dict]]] = {
    "sound": lambda: (sound_rows(), {}),
    "other": lambda: (sound_rows(500), {}),
    "rejects": lambda: (with_rows(Row("bad.jpg", b"no image", "a", "train"), Row("worse.jpg", b"", "b", "eval")), {}),
    "copy": lambda: (with_rows(Row("twin.jpg", sound_rows()[7].data, "b", "eval")), {}),
    "copy in one split": lambda: (with_rows(Row("twin.jpg", sound_rows()[7].data, "b", "train")), {}),
    "group": lambda: (
        _all(lambda row, at: replace(row, extra={"owner": f"owner {at // 7}" if at // 7 in (3, 8) else ""})),
        {"columns": TableColumns(split="split", group="owner")},
    ),
    "grouped look-alike": lambda: (
        with_rows(Row("alike.jpg", photograph(7, quality=70), "b", "eval")),
        {"near_duplicates": "group"},
    ),
    "look-alike": lambda: (with_rows(Row("alike.jpg", photograph(7, quality=70), "b", "eval")), {}),
    "one class": lambda: (_all(lambda row, _: replace(row, label="a")), {}),
    "lost class": lambda: (with_rows(Row("z.jpg", sound_rows()[7].data, "c", "train")), {"duplicates": "drop"}),
    "unseen class": lambda: (with_rows(Row("new.jpg", photograph(900), "c", "eval")), {}),
    "rare class": lambda: (with_rows(*(Row(f"rare{i}.jpg", photograph(900 + i), "c", "train") for i in (0, 1))), {}),
    "small images": lambda: (
        with_rows(*(Row(f"s{i}.jpg", photograph(900 + i, side=16), "a", "train") for i in (0, 1))),
        {},
    ),
    "small images, enlarged": lambda: (
        with_rows(*(Row(f"s{i}.jpg", photograph(900 + i, side=16), "a", "train") for i in (0, 1))),
        {"pixels": PixelOptions(policy="raw", side_px=SIDE)},
    ),
    "blank": lambda: (with_rows(Row("black.png", flat(0), "a", "train"), Row("grey.png", flat(99), "b", "train")), {}),
    "blank, basic": lambda: (with_rows(Row("black.png", flat(0), "a", "train")), {"facts": "basic"}),
    "sound, basic": lambda: (sound_rows(), {"facts": "basic"}),
    "bright": lambda: (sound_rows(500, bright=True), {}),
    "bright eval": lambda: (_in_eval(lambda row, at: replace(row, data=photograph(at, bright=True))), {}),
    "png eval": lambda: (
        _in_eval(lambda row, at: replace(row, data=encode(crop(at, 40, 40, "flower.jpg"), "PNG"))),
        {},
    ),
    "one class in eval": lambda: (_in_eval(lambda row, _: replace(row, label="a")), {}),
    "wide eval": lambda: (
        _in_eval(lambda row, at: replace(row, data=encode(crop(at, 40, 80, "flower.jpg"), "JPEG"))),
        {},
    ),
    "columns": lambda: (_all(lambda row, at: replace(row, extra={"camera": "xyz"[at % 3], "year": 2000 + at % 7})), {}),
    "camera in eval": lambda: (
        _all(lambda row, at: replace(row, extra={"camera": "q" if row.split == "eval" else "xyz"[at % 3]})),
        {},
    ),
    "year in eval": lambda: (
        _all(lambda row, at: replace(row, extra={"year": 2000 + at % 7 + 90 * (row.split == "eval")})),
        {},
    ),
}
_FOR_TESTS = {"max_reject_ratio": 0.5, "splits": {"train": 0.5, "eval": 0.5}}


@dataclass
class Library:
    """Makes each dataset when it is asked for, once, and opens it until the library is closed."""

    root: Path

    def __post_init__(self):
        self.stack = contextlib.ExitStack()
        self.load = functools.cache(self._load)
        self.path = functools.cache(self._path)

    def _path(self, name: str) -> Path:
        rows, options = RECIPES[name]()
        return ingest(self.root / name.replace(" ", "_"), rows, **{**_FOR_TESTS, **options})

    def _load(self, name: str) -> GateDataset:
        return self.open(self.path(name))

    def open(self, path: Path) -> GateDataset:
        return self.stack.enter_context(open_dataset(str(path)))
