"""Values of the ingest made without any image, for tests of what only moves them about."""

from __future__ import annotations

import hashlib
import zlib

import pyarrow as pa

from beam_jobs.dataset import schemas
from beam_jobs.options import IngestOptions
from beam_jobs.types import ImageFacts, ImageRecord, ImageRef


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def make_ref(key: str = "cat/a.jpg", label: str = "cat", **fields) -> ImageRef:
    return ImageRef(**{"key": key, "uri": key, "label": label, "bytes": 1000, "mtime_ns": 1, **fields})


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
    return pa.Table.from_pylist([schemas.examined_row(ref, facts) for ref, facts in rows], schemas.EXAMINED)


def many(count: int, start: int = 0) -> list[tuple[ImageRef, ImageFacts]]:
    """Returns images of two classes, all different."""
    numbers = range(start, start + count)
    return [
        (make_ref(f"{'ab'[n % 2]}/{n:05d}.jpg", label="ab"[n % 2]), make_facts(str(n), bytes=500 + n % 7))
        for n in numbers
    ]


def make_options(**fields) -> IngestOptions:
    return IngestOptions(**{"source": "photos", "out": "dataset", **fields})
