"""Values of the ingest made without any image, for tests of what only moves them about."""

from __future__ import annotations

import hashlib
import json
import zlib

import numpy as np
import pyarrow as pa

from beam_jobs.dataset import schemas
from beam_jobs.images.sandbox import FACTS, pack_facts
from beam_jobs.options import IngestOptions
from beam_jobs.types import ImageFacts, ImageRecord, ImageRef


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def make_ref(key: str = "cat/a.jpg", label: str = "cat", **fields) -> ImageRef:
    return ImageRef(**{"key": key, "uri": key, "label": label, "bytes": 1000, "mtime_ns": 1, **fields})


def parse_ref(row: dict) -> ImageRef:
    """Returns the reference in a row of a `REFS` table."""
    annotations = schemas.parse_annotations(row["annotations"])
    return ImageRef(**{**row, "extra": json.loads(row["extra"]), "annotations": annotations})


def make_facts(content: str = "a", **fields) -> ImageFacts:
    values = {
        "format": "jpeg",
        "source_format": "jpeg",
        "height": 60,
        "width": 80,
        "source_height": 60,
        "source_width": 80,
        "channels": 3,
        "bytes": 1000,
        "sha256": sha(content),
        "source_sha256": sha(content),
        "crc32c": zlib.crc32(content.encode()),
        "dhash": int(sha(content)[:16], 16) - (1 << 63),
        "mean_rgb": (10.0, 20.0, 30.0),
        "var_rgb": (1.0, 4.0, 9.0),
    }
    return ImageFacts(**{**values, **fields})


def make_record(encoded: bytes = b"pixels", **fields) -> ImageRecord:
    values = {"key": "cat/ä.jpg", "uri": "far/ä.jpg", "facts": make_facts(), "labels": ((3, "kätzchen"),)}
    return ImageRecord(**{**values, "encoded": encoded, **fields})


def examined(*rows: tuple[ImageRef, ImageFacts]) -> pa.Table:
    refs = pa.Table.from_pylist([schemas.ref_row(ref) for ref, _ in rows], schemas.REFS)
    facts = np.frombuffer(b"".join(pack_facts(facts) for _, facts in rows), FACTS)
    work = {"slice": [ref.slice for ref, _ in rows], "mask_crc32c": [facts.mask_crc32c for _, facts in rows]}
    work |= dict.fromkeys(("mask_slice", "mask_values"), [""] * len(rows))
    return schemas.examined_rows(refs, facts, [ref.annotations for ref, _ in rows], work, 0)


def examined_row(ref: ImageRef, facts: ImageFacts) -> dict:
    return examined((ref, facts)).to_pylist()[0]


def many(count: int, start: int = 0) -> list[tuple[ImageRef, ImageFacts]]:
    """Returns images of two classes, all different."""
    numbers = range(start, start + count)
    return [
        (make_ref(f"{'ab'[n % 2]}/{n:05d}.jpg", label="ab"[n % 2]), make_facts(str(n), bytes=500 + n % 7))
        for n in numbers
    ]


def make_options(**fields) -> IngestOptions:
    return IngestOptions(**{"source": "photos", "out": "dataset", **fields})
