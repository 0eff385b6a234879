"""Datasets made from a table of photographs with columns of the user's."""

from __future__ import annotations

import json
from pathlib import Path

from beam_jobs import ingest
from beam_jobs.options import IngestOptions, TableColumns
from tests.make_images import crop, encode

EXTRA = ("age", "score", "city", "tags")


def row_of(index: int) -> dict:
    """Returns what the table says of an image; some cells are empty."""
    return {
        "label": ("china", "flower", "zoo")[index % 7 % 3],
        "labels": ["china", "flower", "zoo"][: index % 4],
        "age": None if index % 5 == 0 else index - 20,
        "score": index / 8,
        "city": "" if index % 6 == 1 else f"city {index % 4}",
        "tags": ["red", "green", "blue"][index % 3 :],
        "weight": index % 3,
    }


def write_table(root: Path, count: int, width: int = 60) -> Path:
    """Writes a JSONL table and its images, JPEG, PNG and grey PNG in turn, of growing height, and returns its path."""
    root.mkdir(parents=True)
    lines = []
    for index in range(count):
        name = f"{index:03d}.{('jpg', 'png', 'png')[index % 3]}"
        pixels = crop(index, 40 + index, width + index % 11)
        data = encode(pixels if index % 3 < 2 else pixels[..., 1], ("JPEG", "PNG", "PNG")[index % 3])
        (root / name).write_bytes(data)
        lines.append(json.dumps({"image": name, **row_of(index)}))
    path = root / "table.jsonl"
    path.write_text("\n".join(lines))
    return path


def ingest_table(table: Path, out: Path, columns: dict | None = None, **options) -> Path:
    """Ingests a table with the columns `EXTRA` into splits of two thirds and one third, and returns the dataset."""
    splits = {"train": 2.0, "eval": 1.0}
    kept = TableColumns(**{"extra": EXTRA, **(columns or {})})
    ingest.run(IngestOptions(source=str(table), out=str(out), splits=splits, columns=kept, **options))
    return out
