"""The images of a plan as tables of a database: one row per image.

DuckDB runs the queries within a memory limit, and writes to disk what exceeds it. The tables hold what decides copies,
splits and shards, with hashes in place of keys and contents, which are compared as texts where hashes are equal. The
other facts stay in their files, which are read again for these texts and for the rows of the plan.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.dataset import schemas, shards
from beam_jobs.options import IngestOptions
from beam_jobs.planning import near_duplicates
from beam_jobs.storage.database import Database, open_database

# Keys, names and numbers in a record, without the image. An estimate is enough, because it only balances shards.
RECORD_OVERHEAD_BYTES = 500
_BATCH_BYTES = 1 << 30  # largest size of a column of a batch; the database refuses 2 GiB
_BATCH_ROWS = 1 << 13  # of which each may have cells of the largest size
_READ_AHEAD = 3  # files

_FILE_ROWS = "SELECT file_name, num_rows FROM parquet_file_metadata([{paths}])"
_FACTS_BYTES = "SELECT sum(total_uncompressed_size)::BIGINT FROM parquet_metadata([{paths}])"
_FACTS_VIEW = """
    CREATE VIEW facts AS
    SELECT rows.* EXCLUDE (filename, file_row_number), files.start + file_row_number AS id
    FROM read_parquet([{paths}], filename = true, file_row_number = true) AS rows JOIN files USING (filename)"""
# Kind of labels -> the labels of a new image.
_LABELS = {"single": "[label]", "multi": "annotated_labels", "none": "[]::VARCHAR[]"}
_NEW_IMAGES = """
    INSERT INTO images BY NAME
    SELECT id, true AS is_new, false AS written, "group" AS group_name, split, {labels} AS labels,
        annotated_labels || object_labels AS annotated, '' AS near, order_hash, content_hash
    FROM facts"""


_NAMES = "CREATE OR REPLACE VIEW names AS SELECT * FROM old_names{new}"
_NEW_NAMES = " UNION ALL SELECT {columns} FROM facts"

# Without their type the parameters would make it a division of 128 bits, which takes 200 times as long.
_HASHES = "SELECT {column} FROM {images} WHERE {column} % $parts::UBIGINT = $part::UBIGINT"
_HASHES_OF_MB = 60_000  # of 8 bytes: half of the memory of the database, on top


@dataclass(frozen=True, kw_only=True)
class ImageTables(Database):
    """The database of the old and the new images, with one numbering, old ones first.

    Tables of the database:
      images: one row per image, with the columns of `_old_images`; `id` is the number of the image.
      names: view of the `id`, `key` and `sha256` of each image, rejected ones included, and of the facts that near
        duplicates are found by.
      groups: each name of a group, and its hash.
      rejected: `id`, `key` and `uri` of each new image that has the key of an earlier one and is not in `images`.

    Attributes:
      old: number of images of the dataset that is added to.
      facts: paths of local files of the `EXAMINED` rows of the new images.
      label_kind: one of `types.LABEL_KINDS`.
      memory_mb: memory of the database, in MB.
    """

    old: int
    facts: tuple[str, ...]
    label_kind: str
    memory_mb: int

    def insert_facts(self, appearance: Sequence[str]) -> None:
        """Creates the view `facts` of all facts of the new images, with `id`, and adds these images to `images`.

        Args:
          appearance: columns of the facts that are columns of `names`, too.
        """
        paths = quoted(self.facts)
        rows = dict(zip(*self.query(_FILE_ROWS.format(paths=paths)).to_pydict().values(), strict=True))
        starts = itertools.accumulate((rows[path] for path in self.facts[:-1]), initial=self.old)
        counts = [rows[path] for path in self.facts]
        self.insert("files", pa.table({"filename": self.facts, "start": pa.array(starts), "rows": counts}))
        self.run(_FACTS_VIEW.format(paths=paths))
        self.run(_NAMES.format(new=_NEW_NAMES.format(columns=", ".join(("id", "key", "sha256", *appearance)))))
        self.run(_NEW_IMAGES.format(labels=_LABELS[self.label_kind]))
        if self.new != sum(rows.values()):  # the database joins the facts by the names of their files
            raise RuntimeError(f"the facts have {sum(rows.values())} rows, and {self.new} images are planned")

    def find_repeated(self, column: str, images: str = "images") -> None:
        """Fills the table `repeated_hashes` with the values that several images have in a column of hashes."""
        self.run("DROP TABLE IF EXISTS repeated_hashes")
        # In arrays: the groups of a query would take several times their memory, and that of the database is full.
        parts = 1 + (self.old + self.facts_rows) // (self.memory_mb * _HASHES_OF_MB)
        for part in range(parts):
            hashes = self.sorted_numbers(
                _HASHES.format(column=column, images=images), np.uint64, parts=parts, part=part
            )
            repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
            self.add("repeated_hashes", pa.table({"hash": pa.array(repeated)}), create=not part)

    @property
    def new(self) -> int:
        """Number of new images."""
        return self.number("SELECT count(*) FROM images WHERE is_new")

    @property
    def facts_rows(self) -> int:
        """Number of rows of the facts, rejected ones included."""
        return self.number("SELECT sum(rows) FROM files") if self.facts else 0

    @property
    def facts_bytes(self) -> int:
        """Size of the facts in their files, not compressed, in bytes."""
        return self.number(_FACTS_BYTES.format(paths=quoted(self.facts))) if self.facts else 0

    def read_facts(
        self, columns: list[str], dictionaries: list[str], pool: ThreadPoolExecutor
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yields the number of the first row and the rows of each file of the facts.

        Args:
          columns: names of columns of the facts.
          dictionaries: names of those that become dictionary arrays: indices of few different texts.
          pool: threads that read some files ahead.
        """
        read = partial(schemas.read, columns=columns, dictionaries=dictionaries)
        ahead: deque[Future[pa.Table]] = deque()
        first = 0
        for path in itertools.chain(self.facts, [""] * _READ_AHEAD):
            if path:
                ahead.append(pool.submit(read, path))
            if ahead and (not path or len(ahead) > _READ_AHEAD):
                facts = ahead.popleft().result()
                yield first, facts
                first += len(facts)


@contextlib.contextmanager
def open_tables(
    facts: Sequence[str], existing: Sequence[str], options: IngestOptions, label_kind: str, spill: str = ""
) -> Iterator[ImageTables]:
    """Loads the images into a database that is open inside the block; rejects all new images of a key but the first.

    Args:
      facts: paths of the Parquet files of the `EXAMINED` rows of the new images.
      existing: files of the image table of the dataset that is added to; empty for a new dataset.
      options: seed of the hashes, the policy for near duplicates, and the memory of the database.
      label_kind: one of `types.LABEL_KINDS`.
      spill: local directory for what exceeds the memory of the database; a temporary one when empty.

    Raises:
      CorruptDataset: the table of `existing` is damaged.
      DiskError: the disk of `spill` is full.
      OptionError: the memory of the database is too small.
      ValueError: a new image has the key of an existing one.
    """
    appearance = () if options.near_duplicates == "off" else near_duplicates.COLUMNS
    with open_database("the plan", options.plan_memory_mb, spill, "plan_memory_mb") as database:
        old = _insert_existing(database, existing, options.seed, label_kind, appearance)
        tables = ImageTables(
            connection=database.connection,
            thread=database.thread,
            spill=database.spill,
            batch_rows=min(_BATCH_ROWS, _BATCH_BYTES // options.columns.max_value_bytes),
            old=old,
            facts=tuple(_local_files(facts, database.spill)),
            label_kind=label_kind,
            memory_mb=options.plan_memory_mb,
        )
        if facts:
            tables.insert_facts(appearance)
        tables.insert("groups", _groups(tables.query("SELECT DISTINCT group_name FROM images"), options.seed))
        if old and facts and tables.number("SELECT count(*) FROM old_names JOIN facts USING (key)"):
            raise ValueError("an examined image exists already; leave the images of `existing` out of `facts`")
        _reject_repeated_keys(tables)
        yield tables


def quoted(texts: Iterable[str]) -> str:
    """Returns texts as literals of SQL, separated by commas."""
    return ", ".join("'" + text.replace("'", "''") + "'" for text in texts)


def _groups(groups: pa.Table, seed: int) -> pa.Table:
    names = groups["group_name"].combine_chunks()
    hashes = shards.hashes64(shards.SPLIT, seed, (f"group:{name}" for name in shards.texts(names)))
    return pa.table({"group_name": names, "hash": pa.array(hashes)})


_REPEATED_KEYS = """
    CREATE TABLE repeated AS
    SELECT id FROM names SEMI JOIN (
        SELECT id FROM images WHERE is_new AND order_hash IN (FROM repeated_hashes)) USING (id)
    QUALIFY count(*) OVER (PARTITION BY key) > 1"""
_REJECTED = "CREATE TABLE rejected (id BIGINT, key VARCHAR, uri VARCHAR)"
# Slices come last: they depend on the order of the listing, and rows that differ only in slices have equal bytes.
_LATER_ROWS = """
    INSERT INTO rejected SELECT id, key, uri FROM (
        SELECT id, key, uri, row_number() OVER (PARTITION BY key ORDER BY
            uri, sha256, label, "group", split, extra, annotations, slice, mask_slice, id) AS position
        FROM facts JOIN repeated USING (id)) WHERE position > 1"""


def _insert_existing(
    database: Database, existing: Sequence[str], seed: int, label_kind: str, appearance: Sequence[str]
) -> int:
    """Creates `images` and `names` with the images of the dataset that is added to, and returns their number."""
    count = 0
    for number, rows in enumerate(schemas.read_images(existing, schemas.IMAGES.names)):
        images = _old_images(rows, count, label_kind, seed)
        names = rows.select(["key", "sha256", *appearance]).add_column(0, "id", images["id"])
        database.add("images", images, create=not number)
        database.add("old_names", names, create=not number)
        count += len(rows)
    database.run(_NAMES.format(new=""))
    return count


def _old_images(table: pa.Table, first: int, label_kind: str, seed: int) -> pa.Table:
    """Returns what the queries need of the `IMAGES` rows of the dataset that is added to."""
    count = len(table)
    labels, annotated = _label_sets(table, label_kind)
    contents = itertools.chain.from_iterable(map(shards.texts, table["sha256"].chunks))
    columns = {
        "id": pa.array(np.arange(first, first + count)),
        "is_new": pa.repeat(False, count),
        "written": pc.greater_equal(table["shard"], 0),
        "group_name": table["group"],
        "split": table["split"],
        "labels": labels,
        "annotated": annotated,
        "near": table["near"],
        "order_hash": pa.array(np.zeros(count, np.uint64)),
        "content_hash": pa.array(shards.hashes64(shards.SPLIT, seed, contents)),
    }
    return pa.table(columns)


def _label_sets(table: pa.Table, label_kind: str) -> tuple[pa.Array, pa.Array]:
    """Returns the labels of each image, and the class names in its annotations, both list<string>[images]."""
    count = len(table)
    none = pa.ListArray.from_arrays(np.zeros(count + 1, np.int32), pa.array([], pa.string()))
    own, annotated = none, none
    if label_kind == "single":
        own = pa.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32), table["label"].combine_chunks())
    encoded = table["annotations"].combine_chunks().dictionary_encode()  # many images have equal ones
    names = [schemas.class_names(schemas.parse_annotations(text)) for text in encoded.dictionary.to_pylist()]
    if any(one["annotated_labels"] or one["object_labels"] for one in names):
        both = [one["annotated_labels"] + one["object_labels"] for one in names]
        annotated = pa.array(both, pa.list_(pa.string())).take(encoded.indices)
        if label_kind == "multi":
            labels = pa.array([one["annotated_labels"] for one in names], pa.list_(pa.string()))
            own = labels.take(encoded.indices)
    return own, annotated


def _local_files(paths: Sequence[str], directory: str) -> Iterator[str]:
    """Yields the paths of files that the database can read: of an object in a store, that of a copy."""
    for number, path in enumerate(paths):
        if not storage.is_remote(path):
            yield path
            continue
        copy = os.path.join(directory, f"facts-{number}.parquet")
        storage.write_bytes(copy, storage.read_bytes(path), durable=False)
        yield copy


def _reject_repeated_keys(tables: ImageTables) -> None:
    """Moves all new images of a key but the first, by their other columns, to the table `rejected`."""
    tables.find_repeated("order_hash", "(FROM images WHERE is_new)")
    tables.run(_REPEATED_KEYS)
    tables.run(_REJECTED)
    if tables.number("SELECT count(*) FROM repeated"):
        tables.run(_LATER_ROWS)
        tables.run("DELETE FROM images WHERE id IN (SELECT id FROM rejected)")
