"""Examine: one bucket of references -> a table of facts and a table of rejects. One unit of work, no Beam in sight."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

from beam_jobs import images, storage, tables
from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.options import ImageLimits
from beam_jobs.pool import map_ordered
from beam_jobs.scan import Bucket
from beam_jobs.types import ImageFacts, ImageRef, Reject


@dataclass(frozen=True, kw_only=True)
class ExamineTask:
    """What a worker needs to know to examine buckets; small and picklable.

    Attributes:
      base: what relative uris are relative to.
      directory: where the results go.
      limits: what an image may be.
      threads: threads to use.
    """

    base: str
    directory: str
    limits: ImageLimits
    threads: int


@dataclass(frozen=True, kw_only=True)
class Examined:
    """Outcome of one bucket.

    Attributes:
      good: images with facts.
      rejected: images rejected.
      bytes: bytes read.
      resumed: whether an earlier run had done it already.
    """

    good: int
    rejected: int
    bytes: int
    resumed: bool


def facts_path(directory: str, bucket: Bucket) -> str:
    """Returns the file of facts of a bucket."""
    return storage.join(directory, f"facts-{bucket.name}.parquet")


def rejects_path(directory: str, bucket: Bucket) -> str:
    """Returns the file of rejects of a bucket."""
    return storage.join(directory, f"rejects-{bucket.name}.parquet")


def examine_bucket(bucket: Bucket, task: ExamineTask) -> Examined:
    """Examines every image of a bucket, unless an earlier run did. Idempotent: equal inputs write equal files."""
    marker = storage.join(task.directory, f"done-{bucket.name}.json")
    if storage.exists(marker):
        return Examined(**{**json.loads(storage.read_bytes(marker)), "resumed": True})
    refs = (tables.ref_of(row) for row in tables.read(bucket.path).to_pylist())
    good: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    read = 0
    for ref, outcome in map_ordered(partial(_examine, task=task), refs, task.threads):
        read += ref.bytes
        if isinstance(outcome, Reject):
            bad.append(tables.reject_row(outcome))
        else:
            good.append(tables.examined_row(ref, outcome))
    tables.write(facts_path(task.directory, bucket), good, tables.EXAMINED)
    tables.write(rejects_path(task.directory, bucket), bad, tables.REJECTS)
    counts = {"good": len(good), "rejected": len(bad), "bytes": read}
    storage.write_bytes(marker, json.dumps(counts).encode())  # last: a bucket without it is done again
    return Examined(**counts, resumed=False)


def read_image(base: str, uri: str, max_bytes: int) -> bytes:
    """Reads a file, but no more than one byte over the limit, however large it has grown since the scan.

    Raises:
      BadImage: it cannot be read.
    """
    try:
        with storage.open_read(storage.join(base, uri)) as stream:
            return stream.read(max_bytes + 1)
    except OSError as error:
        raise BadImage(RejectReason.UNREADABLE, error.strerror or str(error)) from error


def _examine(ref: ImageRef, task: ExamineTask) -> tuple[ImageRef, ImageFacts | Reject]:
    data = b""
    try:
        data = read_image(task.base, ref.uri, task.limits.max_bytes)
        return ref, images.examine(data, task.limits)[1]
    except BadImage as bad:
        reject = Reject(
            key=ref.key, uri=ref.uri, stage="examine", reason=bad.reason.value, detail=bad.detail, bytes=len(data)
        )
        return ref, reject
