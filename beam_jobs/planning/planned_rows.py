"""The rows of a plan in files: a row group per shard, several shards per file, in the order of the records."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.dataset import schemas, shards

_FILE_BYTES = 32 << 20  # size of the rows of a file in memory; a single shard may be larger
_MAX_PENDING = 2  # files that are being encoded, or are waiting
_FILE_SHARDS = 64  # shards of a file; reading one of them also reads two kilobytes of metadata for each
# Columns that determine the bytes of a record, besides the options.
_DIGESTED = ("key", "uri", "sha256", "source_sha256", "label", "label_index", "extra", "annotations", "mask_crc32c")


@dataclass(frozen=True, kw_only=True)
class PlannedShard:
    """The rows of one shard.

    Attributes:
      path: Parquet file.
      row_group: number of the row group in the file.
      images: number of rows.
      digest: digest of the values that determine the bytes of the shard, besides the options.
    """

    path: str
    row_group: int
    images: int
    digest: str

    def read(self) -> pa.Table:
        """Reads the `PLANNED` rows.

        Raises:
          OSError: the file is missing.
          pyarrow.ArrowInvalid: the file is damaged.
        """
        return schemas.read_row_group(self.path, self.row_group)


class ShardRows:
    """Writes the rows of one split; threads encode files while the next rows are added.

    File names contain a digest of the bytes, because workers of an earlier run may still read the files of that run.
    """

    def __init__(
        self, directory: str, name: str, cutter: shards.Cutter, labels: tuple[str, ...], pool: ThreadPoolExecutor
    ) -> None:
        """Starts without rows.

        Args:
          directory: directory of the files.
          name: name of the split; file names begin with it.
          cutter: cuts the rows into shards.
          labels: class names, for the digests: records contain the indices of the names in annotations.
          pool: threads that encode the files.
        """
        self._pool = pool
        self._shards: list[PlannedShard] = []
        self._pending: deque[Future[list[PlannedShard]]] = deque()
        self._submitted_count = 0  # number of complete shards that were passed to a thread
        self._stem = storage.join(directory, name)
        self._cutter, self._labels = cutter, labels
        self._parts: list[pa.Table] = []  # rows of the incomplete shard
        self._shard_rows: list[pa.Table] = []  # complete shards that are in no file
        self._shard_bytes = 0

    def add(self, rows: pa.Table, sizes: np.ndarray) -> None:
        """Appends `PLANNED` rows.

        Args:
          rows: the next rows of the split.
          sizes: int64[rows], estimated size of each record, in bytes.
        """
        start = 0
        for cut in self._cutter.cut(sizes):
            self._parts.append(rows.slice(start, cut - start))
            self._end_shard()
            start = cut
        self._parts.append(rows.slice(start))

    def close(self) -> tuple[PlannedShard, ...]:
        """Writes the remaining rows, and returns all shards."""
        self._end_shard()
        self._submit()
        while self._pending:
            self._shards += self._pending.popleft().result()
        return tuple(self._shards)

    def _end_shard(self) -> None:
        rows = pa.concat_tables(self._parts)
        self._parts = []
        self._shard_rows.append(rows)
        self._shard_bytes += rows.nbytes
        if self._shard_bytes >= _FILE_BYTES or len(self._shard_rows) >= _FILE_SHARDS:
            self._submit()

    def _submit(self) -> None:
        if not self._shard_rows:
            return
        if len(self._pending) >= _MAX_PENDING:
            self._shards += self._pending.popleft().result()
        self._pending.append(self._pool.submit(self._write, self._submitted_count, self._shard_rows))
        self._submitted_count += len(self._shard_rows)
        self._shard_rows, self._shard_bytes = [], 0

    def _write(self, first_shard: int, shard_rows: Sequence[pa.Table]) -> list[PlannedShard]:
        # The row groups are small and read once. Without dictionaries and statistics they take half the time and less
        # space. Another codec would save a quarter of the time, but need more space.
        options = {"compression": "snappy", "use_dictionary": False, "write_statistics": False}
        data = schemas.row_groups(shard_rows, schemas.PLANNED, **options)
        path = f"{self._stem}-{first_shard:05d}-{hashlib.sha256(data).hexdigest()[:16]}.parquet"
        storage.write_bytes(path, data, durable=False)  # every run writes the file again
        return [
            PlannedShard(path=path, row_group=row_group, images=len(rows), digest=_digest(rows, self._labels))
            for row_group, rows in enumerate(shard_rows)
        ]


def _digest(rows: pa.Table, labels: tuple[str, ...]) -> str:
    hasher = hashlib.sha256()
    for name in _DIGESTED:
        column = rows[name]
        if not pa.types.is_string(column.type):
            hasher.update(column.to_numpy().tobytes())
            continue
        hasher.update(pc.binary_length(column).to_numpy().tobytes())  # otherwise "ab", "c" would equal "a", "bc"
        for text in column.chunks:
            hasher.update(_text_bytes(text))
    if pc.any(pc.not_equal(rows["annotations"], "")).as_py():
        hasher.update(repr(labels).encode())  # records contain the indices of the names in annotations
    return hasher.hexdigest()


def _text_bytes(column: pa.StringArray) -> bytes | memoryview:
    """Returns the bytes of all texts, without a copy."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return b""
    text_offsets = np.frombuffer(offsets, np.int32)
    return memoryview(data)[text_offsets[column.offset] : text_offsets[column.offset + len(column)]]
