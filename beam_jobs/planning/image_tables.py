"""The images of a plan as tables of a database: one row per image, and what equal and similar images share.

DuckDB runs the queries within a memory limit, and writes to disk what exceeds it. The tables hold what decides copies,
splits and shards; all other columns stay where they are, and are taken by row number.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.common import system
from beam_jobs.dataset import schemas, shards
from beam_jobs.errors import DiskError
from beam_jobs.options import IngestOptions
from beam_jobs.planning import near_duplicates
from beam_jobs.planning.labels import label_sets
from beam_jobs.planning.near_duplicates import Appearances, NearClusters
from beam_jobs.rejects import Reject, RejectReason

# Keys, names and numbers in a record, without the image. An estimate is enough, because it only balances shards.
RECORD_OVERHEAD_BYTES = 500
_MEMORY = "1GB"  # of the database; it writes more to the disk
_INTERRUPT_S = 0.1  # an interrupt that comes before its query has no effect
_SPILL_FULL = "failed to offload data block"  # in DuckDB's message
# Slices come last: they depend on the order of the listing, and rows that differ only in slices have equal bytes.
_TIES = ("key", "uri", "sha256", "label", "group", "split", "extra", "annotations", "slice", "mask_slice")
_MAX_STRING_BYTES = 2**31  # bytes of text in one array of Arrow's `string` type
_PIECE = 1 << 16
_NAME_LENGTH = 16  # hex digits of a sha256: the probability that two sets of a billion images share a name is 3 %

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ImageTables:
    """The rows of two tables with one numbering, old rows first, and the database of their queries.

    Tables of the database:
      images: one row per image, with the columns of `_columns`; `id` is the row number.
      copies: images whose content others have too; `content` is the id of the first of them, by old or new and key.
      near_contents: contents that look like others; `root` is the first content of the near cluster.
      related: view of all images with their content, root, and whether the policies retain them.
      groups: each name of a group, and its hash.

    Attributes:
      database: connection to the tables.
      thread: runs the statements.
      old: `IMAGES` rows of the dataset that is added to.
      new: `EXAMINED` rows.
      label_kind: one of `types.LABEL_KINDS`.
    """

    database: duckdb.DuckDBPyConnection
    thread: ThreadPoolExecutor
    old: pa.Table
    new: pa.Table
    label_kind: str

    def __len__(self) -> int:
        return len(self.old) + len(self.new)

    def run(self, statement: str, **parameters: object) -> None:
        """Runs a statement."""
        self._wait(lambda: self.database.execute(statement, parameters or None))

    def query(self, statement: str, **parameters: object) -> pa.Table:
        """Returns the rows of a query."""
        return self._wait(lambda: self.database.execute(statement, parameters or None).fetch_arrow_table())

    def batches(self, statement: str) -> pa.RecordBatchReader:
        """Returns the rows of a query, a batch at a time; no other statement may run meanwhile."""
        return self._wait(lambda: self.database.execute(statement).fetch_record_batch())

    def column(self, statement: str) -> np.ndarray:
        """Returns the only column of a query as an array."""
        return self.query(statement).column(0).to_numpy()

    def number(self, statement: str) -> int:
        """Returns the only number of a query; 0 for null."""
        return int(self.query(statement).column(0)[0].as_py() or 0)

    def insert(self, table: str, rows: pa.Table) -> None:
        """Creates a table of the database with rows."""
        self._wait(lambda: self.database.from_arrow(rows).create(table))

    def _wait(self, work: Callable[[], T]) -> T:
        """Runs work in the thread of the database: DuckDB itself does not always end a query at a signal."""
        result = self.thread.submit(work)
        try:
            return result.result()
        finally:
            while not result.done():  # a signal
                self.database.interrupt()
                wait((result,), _INTERRUPT_S)

    def take(self, names: Sequence[str], ids: np.ndarray) -> pa.Table:
        """Returns columns that both tables have, of the images with these ids; old images come first."""
        old = take(self.old.select(names), ids[ids < len(self.old)])
        return pa.concat_tables([old, self.take_new(names, ids[ids >= len(self.old)])])

    def take_new(self, names: Sequence[str], ids: np.ndarray) -> pa.Table:
        """Returns columns of the new images with these ids, in their order."""
        return take(self.new.select(names), ids - len(self.old))


@contextlib.contextmanager
def open_tables(
    examined: pa.Table, existing: pa.Table | None, seed: int, label_kind: str, spill: str = ""
) -> Iterator[tuple[ImageTables, tuple[Reject, ...]]]:
    """Loads the images into a database that is open inside the block; rejects all new images of a key but the first.

    Args:
      examined: `EXAMINED` rows, in any order.
      existing: `IMAGES` rows of the dataset that is added to; None for a new dataset.
      seed: seed of the hashes.
      label_kind: one of `types.LABEL_KINDS`.
      spill: local directory for what exceeds the memory of the database; a temporary one when empty.

    Raises:
      DiskError: the disk of `spill` is full.
      ValueError: a new image has the key of an existing one.
    """
    old = schemas.IMAGES.empty_table() if existing is None else existing
    spill = spill or system.temporary_directory()
    with (
        _explain_errors(spill),
        contextlib.closing(_connect(spill)) as database,
        ThreadPoolExecutor(1, thread_name_prefix="feedline-plan") as thread,
    ):
        tables = ImageTables(database=database, thread=thread, old=old, new=examined, label_kind=label_kind)
        new_rows = _columns(examined, len(old), seed, label_kind)
        tables.insert("images", pa.concat_tables([_columns(old, 0, seed, label_kind), new_rows]))
        tables.insert("groups", _groups(tables.query("SELECT DISTINCT group_name FROM images"), seed))
        if len(old) and tables.number(_KNOWN_KEYS):
            raise ValueError("an examined image exists already; leave the images of `existing` out of `examined`")
        yield tables, _reject_repeated_keys(tables)


@contextlib.contextmanager
def _explain_errors(spill: str) -> Iterator[None]:
    # Not at the top: the import starts a thread, and a fork of the process that uses DuckDB waits for it at its end.
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as error:
        cause = str(error).partition("\n")[0]
        if _SPILL_FULL not in cause:
            raise
        raise DiskError(
            f"{spill} has no room for the plan ({cause}); make room, then run the same command again: what is finished "
            "is kept"
        ) from None


def _connect(spill: str) -> duckdb.DuckDBPyConnection:
    import duckdb

    return duckdb.connect(
        config={
            "memory_limit": _MEMORY,
            "temp_directory": os.path.join(spill, "spill"),
            "threads": system.cores(),
            "preserve_insertion_order": False,  # it takes memory; where an order counts, the query names it
        }
    )


def _groups(groups: pa.Table, seed: int) -> pa.Table:
    names = groups["group_name"].combine_chunks()
    hashes = shards.hashes64(shards.SPLIT, seed, (f"group:{name}" for name in shards.texts(names)))
    return pa.table({"group_name": names, "hash": pa.array(hashes)})


_KNOWN_KEYS = "SELECT count(*) FROM images old JOIN images new USING (key) WHERE new.is_new AND NOT old.is_new"
_REPEATED_KEYS = """
    SELECT id FROM images WHERE is_new AND key IN (
        SELECT key FROM images WHERE order_hash IN (
            SELECT order_hash FROM images WHERE is_new GROUP BY order_hash HAVING count(*) > 1)
        AND is_new GROUP BY key HAVING count(*) > 1)
    ORDER BY id"""


def _columns(table: pa.Table, start: int, seed: int, label_kind: str) -> pa.Table:
    """Returns what the queries need of the rows of a table; ids begin at `start`."""
    count = len(table)
    is_new = "shard" not in table.column_names
    no_text = pa.repeat("", count)
    order = shards.hashes64(shards.ORDER, seed, _texts(table["key"])) if is_new else np.zeros(count, np.uint64)
    columns = {
        "id": pa.array(np.arange(start, start + count)),
        "is_new": pa.repeat(is_new, count),
        "written": pa.repeat(False, count) if is_new else pc.greater_equal(table["shard"], 0),
        "key": table["key"],
        "sha256": table["sha256"],
        "group_name": table["group"],
        "split": table["split"],
        "labels": label_sets(table, label_kind),
        "near": no_text if is_new else table["near"],
        # Objects are about as long in a record as their annotations are in JSON.
        "size": pc.add(pc.add(table["bytes"], pc.binary_length(table["annotations"])), RECORD_OVERHEAD_BYTES),
        "order_hash": pa.array(order),
        "content_hash": pa.array(shards.hashes64(shards.SPLIT, seed, _texts(table["sha256"]))),
    }
    return pa.table(columns)


def _texts(column: pa.ChunkedArray) -> Iterator[str]:
    return itertools.chain.from_iterable(map(shards.texts, column.chunks))


def _reject_repeated_keys(tables: ImageTables) -> tuple[Reject, ...]:
    """Removes all new images of a key but the first, by their other columns, and returns them."""
    repeated = tables.column(_REPEATED_KEYS)
    if not len(repeated):
        return ()
    rows = tables.take_new(_TIES, repeated)
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in _TIES])
    rows, ids = rows.take(order), repeated[order.to_numpy()]
    keys = rows["key"].combine_chunks()
    later = np.append(False, pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False))
    tables.insert("repeated", pa.table({"id": pa.array(ids[later])}))
    tables.run("DELETE FROM images WHERE id IN (SELECT id FROM repeated)")
    return tuple(_reject(row) for row in rows.select(["key", "uri"]).filter(pa.array(later)).to_pylist())


def _reject(row: dict[str, str]) -> Reject:
    return Reject(
        key=row["key"],
        uri=row["uri"],
        stage="plan",
        reason=RejectReason.DUPLICATE_KEY.value,
        detail="another row has this key; name a key column whose values differ",
    )


def take(table: pa.Table, indices: np.ndarray) -> pa.Table:
    """Returns the rows with these indices, in their order."""
    return pa.table([_take(column, pa.array(indices)) for column in table.columns], schema=table.schema)


def _take(column: pa.ChunkedArray, indices: pa.Array) -> pa.ChunkedArray:
    if column.nbytes < _MAX_STRING_BYTES or not pa.types.is_string(column.type):
        return column.take(indices)
    # `take` combines the chunks of a column, and fails when they are too long for the offsets of the type.
    combined = column.cast(pa.large_string()).combine_chunks()
    pieces = (combined.take(indices.slice(start, _PIECE)) for start in range(0, len(indices), _PIECE))
    return pa.chunked_array([piece.cast(pa.string()) for piece in pieces], pa.string())


_COPIES = """
    CREATE TABLE copies AS
    SELECT id, first_value(id) OVER content AS content, row_number() OVER content AS position
    FROM images WHERE sha256 IN (
        SELECT sha256 FROM images WHERE content_hash IN (
            SELECT content_hash FROM images GROUP BY content_hash HAVING count(*) > 1)
        GROUP BY sha256 HAVING count(*) > 1)
    WINDOW content AS (PARTITION BY sha256 ORDER BY is_new, key)"""

# Of a content, the first image stands for all.
_CONTENTS = """
    SELECT id, content_hash FROM images WHERE id NOT IN (SELECT id FROM copies WHERE position > 1)
    ORDER BY is_new, key"""

_RELATED = """
    CREATE VIEW related AS
    SELECT images.*,
        copies.id IS NOT NULL AS is_copy,
        coalesce(copies.content, images.id) AS content,
        coalesce(near_contents.root, copies.content, images.id) AS root,
        coalesce(near_contents.root_hash, content_hash) AS root_hash,
        coalesce(near_contents.is_linked, false) AS is_linked,
        coalesce(near_contents.is_surplus, false) AS is_surplus,
        coalesce(near_contents.is_unsearched, false) AS is_unsearched,
        coalesce(copies.position, 1) = 1 OR NOT {drop} AS is_first,
    FROM images LEFT JOIN copies USING (id)
    LEFT JOIN near_contents ON near_contents.content = coalesce(copies.content, images.id)"""

# A cluster that joins several existing clusters gets the smallest of their names.
_NEAR_CLUSTERS = """
    CREATE TABLE near_clusters AS
    SELECT root, coalesce(min(near) FILTER (near <> ''), left(min(sha256), {length})) AS name, count(*) AS images
    FROM related WHERE root IN (SELECT root FROM related WHERE is_linked OR near <> '') GROUP BY root"""

_NAMED = """
    CREATE VIEW named AS
    SELECT related.*, CASE WHEN is_copy THEN left(sha256, {length}) ELSE '' END AS cluster,
        coalesce(near_clusters.name, '') AS near_cluster
    FROM related LEFT JOIN near_clusters USING (root)"""


def find_sets(tables: ImageTables, options: IngestOptions) -> None:
    """Finds the copies and the near clusters, and applies the policies: creates `related` and its tables.

    `drop` drops the new images of a set that contains an existing image; of other sets it retains the first by key.
    Policies for near duplicates apply to contents: all copies of an image are retained or dropped, unless the policy
    for duplicates drops some of them.
    """
    tables.run(_COPIES)
    tables.insert("near_contents", _near_contents(tables, options))
    tables.run(_RELATED.format(drop=options.duplicates == "drop"))
    tables.run(_NEAR_CLUSTERS.format(length=_NAME_LENGTH))
    tables.run(_NAMED.format(length=_NAME_LENGTH))


def _near_contents(tables: ImageTables, options: IngestOptions) -> pa.Table:
    ids = hashes = roots = np.zeros(0, np.int64)
    surplus = unsearched = np.zeros(0, bool)
    if options.near_duplicates != "off":
        contents = tables.query(_CONTENTS)
        ids, hashes = contents["id"].to_numpy(), contents["content_hash"].to_numpy()
        facts = tables.take(near_duplicates.COLUMNS, ids)
        appearances = near_duplicates.measure_facts(facts, channel_statistics=options.facts == "all")
        near = near_duplicates.find(appearances, options.near_distance)
        roots, unsearched, surplus = near.roots, near.unsearched, np.zeros(len(ids), bool)
        if options.near_duplicates == "drop":
            surplus, unsearched = _find_surplus(tables, ids, appearances, near, options.near_distance)
    linked = np.bincount(roots)[roots] > 1
    rows = np.flatnonzero(linked | surplus | unsearched)
    columns = {
        "content": ids[rows],
        "root": ids[roots[rows]],
        "root_hash": hashes[roots[rows]].astype(np.uint64),
        "is_linked": linked[rows],
        "is_surplus": surplus[rows],
        "is_unsearched": unsearched[rows],
    }
    return pa.table({name: pa.array(column) for name, column in columns.items()})


_PRECEDENCE = """
    SELECT coalesce(copies.content, images.id) AS content, bool_or(written) AS is_written, bool_and(is_new) AS is_new
    FROM images LEFT JOIN copies USING (id) GROUP BY ALL"""


def _find_surplus(
    tables: ImageTables, ids: np.ndarray, appearances: Appearances, near: NearClusters, distance: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns which contents the policy drops, and which are unsearched; an existing image is never dropped."""
    rows = tables.query(_PRECEDENCE)
    order = np.empty(len(tables), np.int64)
    order[ids] = np.arange(len(ids))
    contents = order[rows["content"].to_numpy()]
    written, droppable = np.empty(len(ids), bool), np.empty(len(ids), bool)
    written[contents] = rows["is_written"].to_numpy()
    droppable[contents] = rows["is_new"].to_numpy()
    return near_duplicates.find_surplus(appearances, near, distance, written, droppable)
