"""Scan: writes the references of a source to files, each of which is examined as one unit of work."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from beam_jobs import storage
from beam_jobs.dataset import schemas
from beam_jobs.rejects import Reject, RejectReason
from beam_jobs.stages import reject_table
from beam_jobs.types import ImageRef

# Extensions of images that are converted to JPEG or PNG; see `normalise`.
_CONVERTED = (".gif", ".bmp", ".dib", ".tif", ".tiff", ".webp")


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """References of images that are examined as one unit of work.

    Attributes:
      path: Parquet file of the references.
      name: name of the results; it contains a digest of the references, so changed inputs never match old results.
    """

    path: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Result of a scan.

    Attributes:
      buckets: files of references.
      found: number of images and rejects.
      bytes: sum of the file sizes, in bytes.
      copied_bytes: sum of the sizes of files that `copy` stores unchanged, according to their extension, in bytes.
      reject_files: paths of the tables of the entries that the scan rejected, without reading the images.
      reject_count: number of these entries.
    """

    buckets: tuple[Bucket, ...]
    found: int
    bytes: int
    copied_bytes: int
    reject_files: tuple[str, ...]
    reject_count: int


def scan(
    entries: Iterable[ImageRef | Reject], directory: str, bucket_images: int, splits: Mapping[str, float], salt: str
) -> Scan:
    """Writes the references and rejects of a source into `directory`; at most one bucket of each is in memory.

    Args:
      entries: entries of the source.
      directory: directory of the buckets. Buckets of earlier scans remain, because workers of their run may read them.
      bucket_images: maximum number of references per bucket.
      splits: splits that a split column may name.
      salt: text that represents everything else that determines the results, such as the digest of the options.
    """
    rejects = _RejectFiles(directory, bucket_images)
    buckets: list[Bucket] = []
    found = total_bytes = copied_bytes = 0
    for index, chunk in enumerate(_chunks(_accepted_refs(entries, rejects, splits), bucket_images)):
        columns = _ref_columns(chunk)
        digest = hashlib.sha256(json.dumps([salt, columns]).encode()).hexdigest()[:16]
        name = f"{index:06d}-{digest}"
        path = storage.join(directory, f"refs-{name}.parquet")
        schemas.write_table(path, pa.table(columns, schema=schemas.REFS))
        buckets.append(Bucket(path=path, name=name))
        found += len(chunk)
        total_bytes += sum(ref.bytes for ref in chunk)
        copied_bytes += sum(ref.bytes for ref in chunk if not ref.key.lower().endswith(_CONVERTED))
    rejects.write()
    return Scan(
        buckets=tuple(buckets),
        found=found + rejects.count,
        bytes=total_bytes,
        copied_bytes=copied_bytes,
        reject_files=tuple(rejects.paths),
        reject_count=rejects.count,
    )


class _RejectFiles:
    """Writes rejects to files; they are named by number, without a digest, because no worker reads them."""

    def __init__(self, directory: str, file_rows: int) -> None:
        self.paths: list[str] = []
        self.count = 0
        self._directory, self._rows = directory, file_rows
        self._pending: list[Reject] = []

    def add(self, reject: Reject) -> None:
        """Adds a reject, and writes a file when there are enough pending rejects."""
        self.count += 1
        self._pending.append(reject)
        if len(self._pending) >= self._rows:
            self.write()

    def write(self) -> None:
        """Writes the pending rejects to a file."""
        if self._pending:
            self.paths.append(storage.join(self._directory, f"rejects-{len(self.paths):06d}.parquet"))
            schemas.write_table(self.paths[-1], reject_table.from_rejects(self._pending))
            self._pending = []


def _accepted_refs(
    entries: Iterable[ImageRef | Reject], rejects: _RejectFiles, splits: Mapping[str, float]
) -> Iterator[ImageRef]:
    """Yields the references; adds all other entries to `rejects`."""
    for entry in entries:
        if isinstance(entry, Reject):
            rejects.add(entry)
        elif entry.split and entry.split not in splits:
            detail = f"the split column has {entry.split!r}; known are {', '.join(splits)}"
            reason = RejectReason.UNKNOWN_SPLIT.value
            rejects.add(Reject(key=entry.key, uri=entry.uri, stage="scan", reason=reason, detail=detail))
        else:
            yield entry


def _chunks(refs: Iterable[ImageRef], count: int) -> Iterator[list[ImageRef]]:
    stream = iter(refs)
    while chunk := list(itertools.islice(stream, count)):
        yield chunk


def _ref_columns(refs: list[ImageRef]) -> dict[str, list]:
    """Returns the columns of a `REFS` table; Arrow needs ten times as long to build a table from rows."""
    rows = [schemas.ref_row(ref) for ref in refs]
    return {name: [row[name] for row in rows] for name in schemas.REFS.names}
