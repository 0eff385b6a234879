"""Sorts more rows than fit in memory: the facts of the images, in the order of the shards.

Rows are collected up to a limit, divided by ranges of their hashes, and appended to a file with one batch per range. A
range is then read from everywhere in the file and sorted in memory; the hashes are uniform, so the ranges are about
equal. The database sorts as well, but these rows have thirty columns, mostly texts, which it moves slowly.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.planning import near_duplicates
from beam_jobs.storage import disk

_MOST_BYTES = 1 << 30  # Arrow cannot join texts of 2 GiB
# There is a batch in the file, and an object in memory, for each division and range.
_MOST_DIVISIONS, _MOST_RANGES = 500, 1000
_FILE_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")  # hexadecimal digits take half of their size
_ORDER = [("order_hash", "ascending"), ("key", "ascending")]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Rows of one range: their size in memory, and themselves or the number of their batch in the file."""

    bytes: int
    rows: pa.Table | int


class RowSorter:
    """Sorts the rows of each place by `order_hash` and `key`. A full or failing disk is a `DiskError`."""

    def __init__(self, path: str, images: int, table_bytes: int, memory_bytes: int, pool: ThreadPoolExecutor) -> None:
        """Starts before the first row.

        Args:
          path: local path of a temporary file, which is written if the rows exceed the memory.
          images: number of all rows.
          table_bytes: their estimated size; they count as larger if the first ones are.
          memory_bytes: size of all rows that are in memory at a time, roughly; of very many rows, more.
          pool: threads that write, read and sort.
        """
        # Rows are collected while earlier ones are divided into a copy; later, two groups are sorted, each into a copy.
        self._pending_limit = min(max(memory_bytes // 4, table_bytes // _MOST_DIVISIONS), _MOST_BYTES)
        self._sorted_bytes = min(memory_bytes // 8, _MOST_BYTES)
        self._path, self._images, self._table_bytes, self._pool = path, images, table_bytes, pool
        self._ranges = 0  # unknown before the first rows
        self._parts: dict[int, dict[int, list[_Part]]] = defaultdict(lambda: defaultdict(list))
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._dividing: Future[None] | None = None
        self._batches = 0  # in the file
        self._sink: pa.NativeFile | None = None
        self._source: pa.NativeFile | None = None
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._reader: pa.ipc.RecordBatchFileReader | None = None

    def add(self, rows: pa.Table) -> None:
        """Adds rows of one schema, with the number of their `place`."""
        if len(rows):
            self._pending.append(rows)
            self._pending_bytes += rows.nbytes
        if self._pending_bytes >= self._pending_limit:
            self._divide_pending(write=True)

    def finish(self) -> None:
        """Ends the rows; they can be read then."""
        if self._pending:
            self._divide_pending(write=False)
        if self._dividing:
            self._dividing.result()
        if self._writer and self._sink:
            with disk.explain_errors("planning", os.path.dirname(self._path)):
                self._writer.close()
                self._sink.close()
            self._source = pa.OSFile(self._path)
            self._reader = pa.ipc.open_file(self._source)

    def close(self) -> None:
        """Closes the file, which is left; no thread may use it any more."""
        for file in (self._sink, self._source):
            if file:
                file.close()

    def read(self, place: int) -> Iterator[pa.Table]:
        """Yields the rows of a place in their order, some megabytes at a time; only once."""
        sorting: Future[pa.Table] | None = None
        for parts in self._groups(self._parts.pop(place, {})):
            following = self._pool.submit(self._sort, parts)
            if sorting:
                yield sorting.result()
            sorting = following
        if sorting:
            yield sorting.result()

    def _divide_pending(self, write: bool) -> None:
        rows, self._pending, self._pending_bytes = self._pending, [], 0
        if self._dividing:  # one at a time: each has a copy of the rows
            self._dividing.result()
        self._dividing = self._pool.submit(self._divide, rows, write)

    def _divide(self, tables: list[pa.Table], write: bool) -> None:
        rows = pa.concat_tables(tables).combine_chunks()
        tables.clear()  # their memory is not needed any more
        if not self._ranges:
            size = max(self._table_bytes, rows.nbytes * self._images // len(rows))
            self._ranges = max(1, min(size // self._sorted_bytes, _MOST_RANGES))
        # The upper half of a hash decides its range.
        ranges = ((rows["order_hash"].to_numpy() >> 32) * np.uint64(self._ranges) >> 32).astype(np.int64)
        numbers = rows["place"].to_numpy() * self._ranges + ranges
        order = np.argsort(numbers, kind="stable")
        starts = near_duplicates.run_starts(numbers[order]).tolist()
        for start, end in itertools.pairwise([*starts, len(rows)]):
            place, hashes = divmod(int(numbers[order[start]]), self._ranges)
            part = rows.take(pa.array(order[start:end]))
            self._parts[place][hashes].append(_Part(bytes=part.nbytes, rows=self._append(part) if write else part))

    def _append(self, rows: pa.Table) -> int:
        with disk.explain_errors("planning", os.path.dirname(self._path)):
            if not self._writer:
                self._sink = pa.OSFile(self._path, "wb")
                self._writer = pa.ipc.new_file(self._sink, rows.schema, options=_FILE_OPTIONS)
            self._writer.write_table(rows)  # of one chunk, so it is one batch
        self._batches += 1
        return self._batches - 1

    def _groups(self, parts: dict[int, list[_Part]]) -> Iterator[list[_Part]]:
        """Yields parts of consecutive ranges, as many as are sorted at once."""
        group: list[_Part] = []
        for number in sorted(parts):
            group += parts.pop(number)
            if sum(part.bytes for part in group) >= self._sorted_bytes / 2:
                yield group
                group = []
        if group:
            yield group

    def _sort(self, parts: Sequence[_Part]) -> pa.Table:
        rows = pa.concat_tables(map(self._load, parts)).combine_chunks()
        return rows.take(pc.sort_indices(rows, sort_keys=_ORDER))

    def _load(self, part: _Part) -> pa.Table:
        if self._reader and isinstance(part.rows, int):
            return pa.Table.from_batches([self._reader.get_batch(part.rows)])
        return part.rows
