"""Sorts more rows than fit in memory: the facts of the images, in the order of the shards.

Rows are collected up to a limit, divided by ranges of their hashes, and appended to a file, a part for each range. A
range is then read from everywhere in the file and sorted in memory; the hashes are uniform, so the ranges are about
equal. A part may have only some hundred rows, so it is compressed as a whole, not column by column. The database sorts
as well, but these rows have thirty columns, mostly texts, which it moves slowly.
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

_MOST_BYTES = 1 << 30  # Arrow cannot join texts of 2 GiB
# There is about a part in the file, and an object in memory, for each place, division and range.
_MOST_DIVISIONS, _MOST_RANGES = 500, 1000
_TAKEN_BYTES = 16 << 20  # of a division at a time: few rows are slow, and all are one more copy of it
_CODEC = pa.Codec("zstd", 1)  # hexadecimal digits take half of their size
_ORDER = [("order_hash", "ascending"), ("key", "ascending")]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Written:
    """Rows in the file.

    Attributes:
      nbytes: their size as a message, not compressed.
      offset: position of the compressed message in the file.
      size: its size.
    """

    nbytes: int
    offset: int
    size: int


_Part: TypeAlias = "_Written | pa.RecordBatch"  # rows of one range


class RowSorter:
    """Sorts the rows of each place by `order_hash` and `key`. A full or failing disk is a `DiskError`."""

    def __init__(self, path: str, images: int, table_bytes: int, memory_bytes: int, pool: ThreadPoolExecutor) -> None:
        """Starts before the first row.

        Args:
          path: local path of a temporary file, which is written if the rows exceed the memory.
          images: number of all rows.
          table_bytes: their estimated size; they count as larger if the first ones are.
          memory_bytes: size of all rows that are in memory at a time, roughly; of very many rows, more.
          pool: threads that divide and sort.
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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feedline-parts")
        self._schema: pa.Schema | None = None
        self._sink: pa.NativeFile | None = None
        self._source: pa.NativeFile | None = None

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
        if self._sink:
            with disk.explain_errors("planning", os.path.dirname(self._path)):
                self._sink.close()
            self._source = pa.OSFile(self._path)

    def close(self) -> None:
        """Closes the file, which is left; no thread of the pool may use it any more."""
        self._thread.shutdown(cancel_futures=True)
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
        self._schema = self._schema or tables[0].schema
        rows = pa.concat_tables(tables).cast(self._schema).combine_chunks()  # a part in the file has no schema
        tables.clear()  # their memory is not needed any more
        if not self._ranges:
            size = max(self._table_bytes, rows.nbytes * self._images // len(rows))
            self._ranges = max(1, min(size // self._sorted_bytes, _MOST_RANGES))
        # The upper half of a hash decides its range.
        ranges = ((rows["order_hash"].to_numpy() >> 32) * np.uint64(self._ranges) >> 32).astype(np.int64)
        numbers = rows["place"].to_numpy() * self._ranges + ranges
        order = np.argsort(numbers, kind="stable")
        [batch] = rows.to_batches()
        count = max(1, len(rows) * _TAKEN_BYTES // rows.nbytes)
        adding: Future[None] | None = None
        for first in range(0, len(rows), count):
            indices = order[first : first + count]
            taken = batch.take(pa.array(indices))
            if adding:
                adding.result()
            adding = self._thread.submit(self._add_parts, taken, numbers[indices], write)
        if adding:
            adding.result()

    def _add_parts(self, rows: pa.RecordBatch, numbers: np.ndarray, write: bool) -> None:
        """Adds rows in order of the numbers, each that of a place and a range."""
        for start, end in itertools.pairwise([*near_duplicates.run_starts(numbers).tolist(), len(rows)]):
            place, hashes = divmod(int(numbers[start]), self._ranges)
            part = rows.slice(start, end - start)
            self._parts[place][hashes].append(self._append(part) if write else part)

    def _append(self, rows: pa.RecordBatch) -> _Written:
        message = rows.serialize()
        data = _CODEC.compress(message)
        with disk.explain_errors("planning", os.path.dirname(self._path)):
            self._sink = self._sink or pa.OSFile(self._path, "wb")
            offset = self._sink.tell()
            self._sink.write(data)
        return _Written(nbytes=len(message), offset=offset, size=len(data))

    def _groups(self, parts: dict[int, list[_Part]]) -> Iterator[list[_Part]]:
        """Yields parts of consecutive ranges, as many as are sorted at once."""
        group: list[_Part] = []
        for number in sorted(parts):
            group += parts.pop(number)
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
