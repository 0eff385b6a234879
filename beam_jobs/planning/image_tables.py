"""The images of a plan as tables of a database: one row per image.

DuckDB runs the queries within a memory limit, beyond which it writes data to disk. The tables have the columns that
determine duplicates, splits and shards, with hashes in place of keys and contents; where hashes are equal, the texts
are compared. The other facts stay in files, which are read again for these texts and for the rows of the plan.
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

# Size of keys, names and numbers in a record, without the image. An estimate is enough: it only balances shards.
RECORD_OVERHEAD_BYTES = 500
_BATCH_BYTES = 1 << 30  # largest size of a column of a batch; the database refuses 2 GiB
_BATCH_ROWS = 1 << 13  # rows of a batch at most; fewer if large cells are allowed
_READ_AHEAD = 3  # files

_FILE_ROWS = "SELECT file_name, num_rows FROM parquet_file_metadata([{paths}])"
_FACTS_BYTES = "SELECT sum(total_uncompressed_size)::BIGINT FROM parquet_metadata([{paths}])"
_FACTS_VIEW = """
    CREATE VIEW facts AS
    SELECT rows.* EXCLUDE (filename, file_row_number), files.start + file_row_number AS id
    FROM read_parquet([{paths}], filename = true, file_row_number = true) AS rows JOIN files USING (filename)"""
# Kind of labels -> expression of the labels of a new image.
_LABELS = {"single": "[label]", "multi": "annotated_labels", "none": "[]::VARCHAR[]"}
_NEW_IMAGES = """
    INSERT INTO images BY NAME
    SELECT id, true AS is_new, false AS written, "group" AS group_name, split, {labels} AS labels,
        annotated_labels || object_labels AS annotated, '' AS near, order_hash, content_hash
    FROM facts"""
_NAMES = "CREATE OR REPLACE VIEW names AS SELECT * FROM old_names{new}"
_NEW_NAMES = " UNION ALL SELECT {columns} FROM facts"

# With parameters without a type, `%` would be an operation of 128 bits, which takes 200 times as long.
_HASHES = "SELECT {column} FROM {images} WHERE {column} % $parts::UBIGINT = $part::UBIGINT"
_HASHES_PER_MB = 60_000  # hashes of 8 bytes in memory per MB of the database, half as much as the database


@dataclass(frozen=True, kw_only=True)
class ImageTables(Database):
    """The database of the old and the new images, numbered together, old images first.

    Tables of the database:
      images: one row per image, with the columns of `_old_images`; `id` is the number of the image.
      names: view of the `id`, `key` and `sha256` of each image, rejected ones included, and of the facts by which near
        duplicates are found.
      groups: name and hash of each group.
      rejected: `id`, `key` and `uri` of each new image that has the key of an earlier one and is not in `images`.

    Attributes:
      old_count: number of images of the existing dataset, to which the new ones are added; 0 for a new dataset.
      facts_paths: local files with the `EXAMINED` rows of the new images.
      label_kind: one of `types.LABEL_KINDS`.
      memory_mb: memory of the database, in MB.
    """

    old_count: int
    facts_paths: tuple[str, ...]
    label_kind: str
    memory_mb: int

    def insert_facts(self, appearance_columns: Sequence[str]) -> None:
        """Creates the view `facts` of all facts of the new images, with `id`, and adds these images to `images`.

        Args:
          appearance_columns: columns of the facts that become columns of `names`.
        """
        paths = quoted(self.facts_paths)
        file_rows = dict(zip(*self.query(_FILE_ROWS.format(paths=paths)).to_pydict().values(), strict=True))
        starts = itertools.accumulate((file_rows[path] for path in self.facts_paths[:-1]), initial=self.old_count)
        counts = [file_rows[path] for path in self.facts_paths]
        self.insert("files", pa.table({"filename": self.facts_paths, "start": pa.array(starts), "rows": counts}))
        self.run(_FACTS_VIEW.format(paths=paths))
        self.run(_NAMES.format(new=_NEW_NAMES.format(columns=", ".join(("id", "key", "sha256", *appearance_columns)))))
        self.run(_NEW_IMAGES.format(labels=_LABELS[self.label_kind]))
        if self.new_count != sum(file_rows.values()):  # the query joins the facts with the table `files` by file name
            raise RuntimeError(
                f"the facts have {sum(file_rows.values())} rows, and {self.new_count} images are planned"
            )

    def find_repeated(self, column: str, images: str = "images") -> None:
        """Fills the table `repeated_hashes` with the values of a column of hashes that several `images` have."""
        self.run("DROP TABLE IF EXISTS repeated_hashes")
        # Arrays are sorted, because GROUP BY would take several times their memory, and the database has none left.
        parts = 1 + (self.old_count + self.facts_rows) // (self.memory_mb * _HASHES_PER_MB)
        for part in range(parts):
            hashes = self.sorted_numbers(
                _HASHES.format(column=column, images=images), np.uint64, parts=parts, part=part
            )
            repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
            self.add("repeated_hashes", pa.table({"hash": pa.array(repeated)}), create=not part)

    @property
    def new_count(self) -> int:
        """Number of new images."""
        return self.number("SELECT count(*) FROM images WHERE is_new")

    @property
    def facts_rows(self) -> int:
        """Number of rows of the facts, rejected ones included."""
        return self.number("SELECT sum(rows) FROM files") if self.facts_paths else 0

    @property
    def facts_bytes(self) -> int:
        """Size of the facts in their files, not compressed, in bytes."""
        return self.number(_FACTS_BYTES.format(paths=quoted(self.facts_paths))) if self.facts_paths else 0

    def read_facts(
        self, columns: list[str], dictionaries: list[str], pool: ThreadPoolExecutor
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yields the number of the first row and the rows of each file of the facts.

        Args:
          columns: names of columns of the facts.
          dictionaries: names of the columns to read as dictionary arrays, because they have few different texts.
          pool: threads that read some files ahead.
        """
        read = partial(schemas.read, columns=columns, dictionaries=dictionaries)
        pending_reads: deque[Future[pa.Table]] = deque()
        first_row = 0
        for path in itertools.chain(self.facts_paths, [""] * _READ_AHEAD):  # "" only yields a pending file
            if path:
                pending_reads.append(pool.submit(read, path))
            if pending_reads and (not path or len(pending_reads) > _READ_AHEAD):
                facts = pending_reads.popleft().result()
                yield first_row, facts
                first_row += len(facts)


@contextlib.contextmanager
def open_tables(
    facts: Sequence[str], existing: Sequence[str], options: IngestOptions, label_kind: str, spill: str = ""
) -> Iterator[ImageTables]:
    """Loads the images into a database, open inside the block; rejects all but the first of the new images of each key.

    Args:
      facts: paths of the Parquet files with the `EXAMINED` rows of the new images.
      existing: files of the image table of the existing dataset; empty for a new dataset.
      options: seed of the hashes, the policy for near duplicates, and the memory of the database.
      label_kind: one of `types.LABEL_KINDS`.
      spill: local directory for data that exceed the memory of the database; a temporary one when empty.

    Raises:
      CorruptDataset: the table of `existing` is damaged.
      DiskError: the disk of `spill` is full.
      OptionError: the memory of the database is too small.
      ValueError: a new image has the key of an existing one.
    """
    appearance_columns = () if options.near_duplicates == "off" else near_duplicates.COLUMNS
    with open_database("the plan", options.plan_memory_mb, spill, "plan_memory_mb") as database:
        old_count = _insert_existing(database, existing, options.seed, label_kind, appearance_columns)
        tables = ImageTables(
            connection=database.connection,
            thread=database.thread,
            spill=database.spill,
            batch_rows=min(_BATCH_ROWS, _BATCH_BYTES // options.columns.max_value_bytes),
            old_count=old_count,
            facts_paths=tuple(_local_files(facts, database.spill)),
            label_kind=label_kind,
            memory_mb=options.plan_memory_mb,
        )
        if facts:
            tables.insert_facts(appearance_columns)
        tables.insert("groups", _hash_groups(tables.query("SELECT DISTINCT group_name FROM images"), options.seed))
        if old_count and facts and tables.number("SELECT count(*) FROM old_names JOIN facts USING (key)"):
            raise ValueError("an examined image exists already; leave the images of `existing` out of `facts`")
        _reject_repeated_keys(tables)
        yield tables


def quoted(texts: Iterable[str]) -> str:
    """Returns texts as SQL literals, separated by commas."""
    return ", ".join("'" + text.replace("'", "''") + "'" for text in texts)


def _hash_groups(groups: pa.Table, seed: int) -> pa.Table:
    """Returns the table `groups`, given the names of the groups."""
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
    database: Database, existing: Sequence[str], seed: int, label_kind: str, appearance_columns: Sequence[str]
) -> int:
    """Creates `images` and `names` with the images of the existing dataset, and returns their number."""
    count = 0
    for number, rows in enumerate(schemas.read_images(existing, schemas.IMAGES.names)):
        images = _old_images(rows, count, label_kind, seed)
        names = rows.select(["key", "sha256", *appearance_columns]).add_column(0, "id", images["id"])
        database.add("images", images, create=not number)
        database.add("old_names", names, create=not number)
        count += len(rows)
    database.run(_NAMES.format(new=""))
    return count


def _old_images(table: pa.Table, first_id: int, label_kind: str, seed: int) -> pa.Table:
    """Returns the rows of the table `images` for `IMAGES` rows of the existing dataset."""
    count = len(table)
    labels, annotated = _label_sets(table, label_kind)
    contents = itertools.chain.from_iterable(map(shards.texts, table["sha256"].chunks))
    columns = {
        "id": pa.array(np.arange(first_id, first_id + count)),
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
    image_labels = annotated = pa.ListArray.from_arrays(np.zeros(count + 1, np.int32), pa.array([], pa.string()))
    if label_kind == "single":
        image_labels = pa.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32), table["label"].combine_chunks())
    encoded = table["annotations"].combine_chunks().dictionary_encode()  # many images have equal annotations
    class_names = [schemas.class_names(schemas.parse_annotations(text)) for text in encoded.dictionary.to_pylist()]
    if any(item["annotated_labels"] or item["object_labels"] for item in class_names):
        joined_names = [item["annotated_labels"] + item["object_labels"] for item in class_names]
        annotated = pa.array(joined_names, pa.list_(pa.string())).take(encoded.indices)
        if label_kind == "multi":
            labels = pa.array([item["annotated_labels"] for item in class_names], pa.list_(pa.string()))
            image_labels = labels.take(encoded.indices)
    return image_labels, annotated


def _local_files(paths: Sequence[str], directory: str) -> Iterator[str]:
    """Yields paths of local files, which the database can read; an object in a store is copied to a file first."""
    for number, path in enumerate(paths):
        if not storage.is_remote(path):
            yield path
            continue
        copy = os.path.join(directory, f"facts-{number}.parquet")
        storage.write_bytes(copy, storage.read_bytes(path), durable=False)
        yield copy


def _reject_repeated_keys(tables: ImageTables) -> None:
    """Moves all but the first of the new images of each key, ordered by other columns, to the table `rejected`."""
    tables.find_repeated("order_hash", "(FROM images WHERE is_new)")
    tables.run(_REPEATED_KEYS)
    tables.run(_REJECTED)
    if tables.number("SELECT count(*) FROM repeated"):
        tables.run(_LATER_ROWS)
        tables.run("DELETE FROM images WHERE id IN (SELECT id FROM rejected)")
