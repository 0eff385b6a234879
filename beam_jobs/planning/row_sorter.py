"""Sorts more rows than fit in memory: the facts of the images, in the order of the shards.

Rows are collected up to a limit, divided by ranges of their hashes, and appended to a file, a part for each range. Then
all parts of a range are read from the file and sorted in memory. The hashes are uniform, so the ranges have about the
same size. A part may have only some hundred rows, so it is compressed as a whole, not column by column. The database
could sort, too, but is slow with these rows of thirty columns, mostly texts.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.planning import near_duplicates
from beam_jobs.storage import disk

_MAX_BYTES = 1 << 30  # rows that are joined; Arrow cannot join texts of 2 GiB
# Each place, division and range has about one part in the file, and one object in memory.
_MAX_DIVISIONS, _MAX_RANGES = 500, 1000
_GATHER_BYTES = 16 << 20  # rows to gather at a time: few rows are slow, and all rows would be one more copy
_CODEC = pa.Codec("zstd", 1)  # hexadecimal digits take half of their size
_ORDER = [("order_hash", "ascending"), ("key", "ascending")]


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredRows:
    """Rows in the file.

    Attributes:
      nbytes: size of the rows as an Arrow message, in bytes, not compressed.
      offset: offset of the compressed message in the file.
      size: size of the compressed message, in bytes.
    """

    nbytes: int
    offset: int
    size: int


_Part: TypeAlias = "_StoredRows | pa.RecordBatch"  # rows of one range


class RowSorter:
    """Sorts the rows of each place (split, or dropped images) by `order_hash` and `key`; raises `DiskError`."""

    def __init__(self, path: str, images: int, table_bytes: int, memory_bytes: int, pool: ThreadPoolExecutor) -> None:
        """Starts without rows.

        Args:
          path: local path of a temporary file, which is written if the rows exceed the memory.
          images: number of all rows.
          table_bytes: estimated size of all rows; a larger estimate from the first rows replaces it.
          memory_bytes: approximate size of all rows in memory at a time; very many rows take more.
          pool: threads that divide and sort rows.
        """
        # Rows are collected while earlier ones are divided into a copy; later, two groups are sorted, each into a copy.
        self._pending_limit = min(max(memory_bytes // 4, table_bytes // _MAX_DIVISIONS), _MAX_BYTES)
        self._sorted_bytes = min(memory_bytes // 8, _MAX_BYTES)
        self._path, self._images, self._table_bytes, self._pool = path, images, table_bytes, pool
        self._ranges = 0  # number of ranges; 0 before the first rows are divided
        self._parts: dict[int, dict[int, list[_Part]]] = defaultdict(lambda: defaultdict(list))  # place -> range
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._division_task: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feedline-parts")
        self._schema: pa.Schema | None = None
        self._sink: pa.NativeFile | None = None
        self._source: pa.NativeFile | None = None

    def add(self, rows: pa.Table) -> None:
        """Adds rows with the columns `place`, its number, `order_hash` and `key`; all rows have one schema."""
        if len(rows):
            self._pending.append(rows)
            self._pending_bytes += rows.nbytes
        if self._pending_bytes >= self._pending_limit:
            self._divide_pending(to_file=True)

    def finish(self) -> None:
        """Waits until all rows are divided; then `read` can be called."""
        if self._pending:
            self._divide_pending(to_file=False)
        if self._division_task:
            self._division_task.result()
        if self._sink:
            with disk.explain_errors("planning", os.path.dirname(self._path)):
                self._sink.close()
            self._source = pa.OSFile(self._path)

    def close(self) -> None:
        """Closes the file without removing it; no thread of the pool may use the file any more."""
        self._thread.shutdown(cancel_futures=True)
        for file in (self._sink, self._source):
            if file:
                file.close()

    def read(self, place: int) -> Iterator[pa.Table]:
        """Yields the sorted rows of a place, some megabytes at a time; can be called once for each place."""
        sort_task: Future[pa.Table] | None = None
        for parts in self._groups(self._parts.pop(place, {})):
            next_sort_task = self._pool.submit(self._sort, parts)
            if sort_task:
                yield sort_task.result()
            sort_task = next_sort_task
        if sort_task:
            yield sort_task.result()

    def _divide_pending(self, to_file: bool) -> None:
        rows, self._pending, self._pending_bytes = self._pending, [], 0
        if self._division_task:  # one division at a time: each copies its rows
            self._division_task.result()
        self._division_task = self._pool.submit(self._divide, rows, to_file)

    def _divide(self, tables: list[pa.Table], to_file: bool) -> None:
        """Divides rows into parts by place and range, and adds the parts; empties `tables`."""
        self._schema = self._schema or tables[0].schema
        rows = pa.concat_tables(tables).cast(self._schema).combine_chunks()  # parts in the file have no schema
        tables.clear()  # releases their memory
        if not self._ranges:
            total_bytes = max(self._table_bytes, rows.nbytes * self._images // len(rows))
            self._ranges = max(1, min(total_bytes // self._sorted_bytes, _MAX_RANGES))
        # The upper half of a hash determines its range.
        ranges = ((rows["order_hash"].to_numpy() >> 32) * np.uint64(self._ranges) >> 32).astype(np.int64)
        part_numbers = rows["place"].to_numpy() * self._ranges + ranges
        order = np.argsort(part_numbers, kind="stable")
        [batch] = rows.to_batches()
        batch_rows = max(1, len(rows) * _GATHER_BYTES // rows.nbytes)
        add_task: Future[None] | None = None
        for start in range(0, len(rows), batch_rows):
            indices = order[start : start + batch_rows]
            gathered_rows = batch.take(pa.array(indices))
            if add_task:
                add_task.result()
            add_task = self._thread.submit(self._add_parts, gathered_rows, part_numbers[indices], to_file)
        if add_task:
            add_task.result()

    def _add_parts(self, rows: pa.RecordBatch, part_numbers: np.ndarray, to_file: bool) -> None:
        """Adds rows, sorted by `part_numbers`: place times number of ranges plus range."""
        for start, end in itertools.pairwise([*near_duplicates.run_starts(part_numbers).tolist(), len(rows)]):
            place, range_number = divmod(int(part_numbers[start]), self._ranges)
            part = rows.slice(start, end - start)
            self._parts[place][range_number].append(self._append(part) if to_file else part)

    def _append(self, rows: pa.RecordBatch) -> _StoredRows:
        message = rows.serialize()
        data = _CODEC.compress(message)
        with disk.explain_errors("planning", os.path.dirname(self._path)):
            self._sink = self._sink or pa.OSFile(self._path, "wb")
            offset = self._sink.tell()
            self._sink.write(data)
        return _StoredRows(nbytes=len(message), offset=offset, size=len(data))

    def _groups(self, parts: dict[int, list[_Part]]) -> Iterator[list[_Part]]:
        """Yields groups of parts of consecutive ranges, each of which is sorted at once."""
        group: list[_Part] = []
        for range_number in sorted(parts):
            group += parts.pop(range_number)
            if sum(part.nbytes for part in group) >= self._sorted_bytes / 2:
                yield group
                group = []
        if group:
            yield group

    def _sort(self, parts: Sequence[_Part]) -> pa.Table:
        rows = pa.Table.from_batches(map(self._load, parts)).combine_chunks()
        return rows.take(pc.sort_indices(rows, sort_keys=_ORDER))

    def _load(self, part: _Part) -> pa.RecordBatch:
        if isinstance(part, pa.RecordBatch) or not self._source:
            return part
        message = _CODEC.decompress(self._source.read_at(part.size, part.offset), part.nbytes)
        return pa.ipc.read_record_batch(message, self._schema)
