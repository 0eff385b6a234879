"""`rejects.parquet`: the rejects of an ingest in the order of their keys, sorted on a disk if they are many."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from beam_jobs.dataset import schemas
from beam_jobs.rejects import Reject
from beam_jobs.storage.database import open_database

_MEMORY_BYTES = 64 << 20  # limit of rows that are sorted in memory; a database sorts more rows
_MEMORY_MB = 200  # limit of the database
_SORTED_ROWS = "SELECT * FROM rejects ORDER BY ALL"


def from_rejects(rejects: Sequence[Reject]) -> pa.Table:
    """Returns rejects as `REJECTS` rows."""
    return pa.Table.from_pylist([schemas.reject_row(reject) for reject in rejects], schemas.REJECTS)


def write_sorted(path: str, tables: Iterable[pa.Table], scratch: str = "", spill: str = "") -> dict[str, int]:
    """Writes `REJECTS` rows in the order of their keys.

    Args:
      path: path of the file, which may be one that `tables` reads.
      tables: the rows, in any order.
      scratch: local directory for the unfinished file; see `storage.atomic_writer`.
      spill: local directory for rows that exceed the memory; the directory of temporary files when empty.

    Returns:
      reason -> number of rows, most frequent first; equally frequent reasons in the order of their first rows.

    Raises:
      DiskError: the disk of `spill` is full.
    """
    reasons: Counter[str] = Counter()
    with schemas.table_writer(path, schemas.REJECTS, scratch) as write_rows:
        for rows in _sort_rows(iter(tables), spill):
            reasons.update(rows["reason"].to_pylist())
            write_rows(rows)
    return dict(reasons.most_common())


def first_rows(path: str, count: int) -> list[dict[str, Any]]:
    """Returns the first rows of a file of rejects."""
    tables = schemas.read_groups(path)
    return list(itertools.islice((row for rows in tables for row in rows.slice(0, count).to_pylist()), count))


def _sort_rows(tables: Iterator[pa.Table], spill: str) -> Iterator[pa.Table]:
    """Yields the sorted rows of some tables, in at least one table."""
    loaded, loaded_bytes = [schemas.REJECTS.empty_table()], 0
    while (rows := next(tables, None)) is not None:
        loaded.append(rows)
        loaded_bytes += rows.nbytes
        if loaded_bytes > _MEMORY_BYTES:
            break
    else:
        yield pa.concat_tables(loaded).sort_by([(name, "ascending") for name in schemas.REJECTS.names]).combine_chunks()
        return
    with open_database("the rejects", _MEMORY_MB, spill) as database:
        database.insert_all("rejects", itertools.chain(loaded, tables))
        for rows in database.tables(_SORTED_ROWS):
            yield rows.cast(schemas.REJECTS)
