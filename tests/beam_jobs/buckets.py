"""Buckets of a few images, good and bad, and what is needed to examine them."""

from __future__ import annotations

from pathlib import Path

from beam_jobs.dataset import schemas
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.sources.image_reader import Reader
from beam_jobs.stages.examine import ExamineTask, facts_path, rejects_path
from beam_jobs.stages.scan import Bucket, scan
from beam_jobs.types import ImageRef
from tests.beam_jobs.make_rows import make_ref
from tests.beam_jobs.web_server import HERE
from tests.make_images import crop, encode, jpeg, png, rotated_jpeg

FILES = {"1.jpg": jpeg(1), "2.png": b"text", "3.png": jpeg(3), "4": png(4), "5.txt": jpeg(5), "6.jpg": jpeg(6)[:-9]}
# What cannot be stored as it is, between files that can.
MIXED = {
    "a.jpg": jpeg(11),
    "b.webp": encode(crop(12), "WEBP", quality=80),
    "c.png": png(13),
    "d.jpg": rotated_jpeg(6, seed=14),
    "e.bmp": encode(crop(15), "BMP"),
}


def write_files(folder: Path) -> Path:
    """Writes all of them; returns the folder."""
    for name, data in {**FILES, **MIXED}.items():
        (folder / name).write_bytes(data)
    return folder


def bucket_of(source: Path, *names: str) -> Bucket:
    return bucket_of_refs(source, *(make_ref(name, bytes=len({**FILES, **MIXED}.get(name, b""))) for name in names))


def bucket_of_refs(source: Path, *refs: ImageRef) -> Bucket:
    (bucket,) = scan(refs, str(source / "refs"), 100, {}, "").buckets
    return bucket


def task_of(source: Path, work: str = "work", kind: type[Reader] = Reader, **fields) -> ExamineTask:
    limits = fields.get("limits", ImageLimits())
    reader = kind(base=str(source), max_bytes=limits.max_bytes, work=str(source / work), http=HERE)
    values = {"reader": reader, "limits": limits, "pixels": PixelOptions(), "facts": "all", "threads": 2}
    return ExamineTask(**{**values, **fields})


def facts_of(task: ExamineTask, bucket: Bucket) -> list[dict]:
    return schemas.read(facts_path(task.reader.work, bucket)).to_pylist()


def rejects_of(task: ExamineTask, bucket: Bucket) -> list[dict]:
    return schemas.read(rejects_path(task.reader.work, bucket)).to_pylist()
