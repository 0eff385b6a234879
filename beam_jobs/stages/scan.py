"""Scan: stream the source into files of references, the units that are examined."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from beam_jobs import storage
from beam_jobs.dataset import schemas
from beam_jobs.errors import RejectReason
from beam_jobs.types import ImageRef, Reject

# Ends of names of images that are stored as JPEG or PNG, see `normalise`.
_STORED_AS_OTHERS = (".gif", ".bmp", ".dib", ".tif", ".tiff", ".webp")


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One unit of examining.

    Attributes:
      path: Parquet file of references.
      name: name of its results; it holds the digest of the references, so changed inputs never meet old results.
    """

    path: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What a scan found.

    Attributes:
      buckets: files of references.
      found: images and rejects together.
      bytes: sum of the file sizes.
      kept_bytes: of files but those whose names say that they are stored in another format, and so perhaps smaller.
      rejects: what was rejected without opening it.
    """

    buckets: tuple[Bucket, ...]
    found: int
    bytes: int
    kept_bytes: int
    rejects: tuple[Reject, ...]


def scan(
    entries: Iterable[ImageRef | Reject], directory: str, bucket_images: int, splits: Mapping[str, float], salt: str
) -> Scan:
    """Writes the references of a source into `directory`; at most one bucket of them is in memory.

    Args:
      entries: what the source yields.
      directory: where the buckets go. Those of an earlier scan stay, for workers of its run may still read them.
      bucket_images: references a bucket.
      splits: splits that a split column may name.
      salt: what the results depend on besides the references, such as the digest of the options.
    """
    rejects: list[Reject] = []
    buckets: list[Bucket] = []
    found = total = kept = 0
    for index, chunk in enumerate(_chunks(_good(entries, rejects, splits), bucket_images)):
        columns = _columns(chunk)
        name = f"{index:06d}-{_digest(columns, salt)}"
        path = storage.join(directory, f"refs-{name}.parquet")
        schemas.write_table(path, pa.table(columns, schema=schemas.REFS))
        buckets.append(Bucket(path=path, name=name))
        found += len(chunk)
        total += sum(ref.bytes for ref in chunk)
        kept += sum(ref.bytes for ref in chunk if not ref.key.lower().endswith(_STORED_AS_OTHERS))
    return Scan(
        buckets=tuple(buckets), found=found + len(rejects), bytes=total, kept_bytes=kept, rejects=tuple(rejects)
    )


def _good(
    entries: Iterable[ImageRef | Reject], rejects: list[Reject], splits: Mapping[str, float]
) -> Iterator[ImageRef]:
    for entry in entries:
        if isinstance(entry, Reject):
            rejects.append(entry)
        elif entry.split and entry.split not in splits:
            detail = f"the split column says {entry.split!r}; known are {', '.join(splits)}"
            reason = RejectReason.UNKNOWN_SPLIT.value
            rejects.append(Reject(key=entry.key, uri=entry.uri, stage="scan", reason=reason, detail=detail))
        else:
            yield entry


def _chunks(refs: Iterable[ImageRef], count: int) -> Iterator[list[ImageRef]]:
    stream = iter(refs)
    while chunk := list(itertools.islice(stream, count)):
        yield chunk


def _columns(refs: list[ImageRef]) -> dict[str, list]:
    """Returns the columns of a `REFS` table; Arrow would take ten times as long to build it from rows."""
    rows = [schemas.ref_row(ref) for ref in refs]
    return {name: [row[name] for row in rows] for name in schemas.REFS.names}


def _digest(columns: dict[str, list], salt: str) -> str:
    return hashlib.sha256(json.dumps([salt, columns]).encode()).hexdigest()[:16]
