"""Queries of the image table: an image by its key, the lengths of records, and leaks between splits."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.common.strings import plural, some
from beam_jobs.dataset import manifest, record, schemas, shards, tfrecord
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset, OptionError
from beam_jobs.storage.database import Database, join_small, open_database

MEMORY_MB = 100  # limit of a database of rows, in addition to its results and the reader of the table


def find_record(directory: str, key: str) -> tuple[dict[str, Any], dict[str, list]]:
    """Reads the row of an image, from the few files of the image table that can contain its key, and its record.

    Examples:
      >>> from beam_jobs import find_record
      >>> row, record = find_record("dataset", "cat/000.jpg")
      >>> row["label"], row["height"], row["width"], record["image/class/text"]
      ('cat', 40, 90, [b'cat'])

    Args:
      directory: directory of a published dataset.
      key: identity of the image.

    Returns:
      row of the image in the image table, and its record as feature name -> values.

    Raises:
      SourceError: the directory is not a dataset.
      OptionError: no image of the dataset has this key, or it was dropped as a duplicate.
      CorruptDataset: the table or the record is damaged.
    """
    dataset = manifest.load(directory)
    row = _find_row(directory, dataset, key)
    if row is None:
        raise OptionError(f"{directory} has no image with the key {key!r}; keys are listed in its image table")
    if row["shard"] < 0:
        kind, cluster = ("a near duplicate", row["near"]) if row["near"] else ("a copy", row["cluster"])
        raise OptionError(f"the image {key!r} was dropped as {kind}; its duplicate set is {cluster}")
    return row, read_row_record(directory, dataset, row)


def _find_row(directory: str, dataset: Manifest, key: str) -> dict[str, Any] | None:
    """Returns the row of a key, or None. Files of format 2 whose range of order hashes excludes the key are skipped."""
    order_hash = shards.order_hash(dataset.options.get("seed", 0), key)
    for path, file in itertools.zip_longest(dataset.image_paths(directory), dataset.images):
        if file and file.order_hashes and not file.order_hashes[0] <= order_hash <= file.order_hashes[1]:
            continue
        if any(pc.any(pc.equal(rows["key"], key)).as_py() for rows in schemas.read_images([path], ["key"])):
            tables = schemas.read_images([path], schemas.IMAGES.names)
            return next(row for rows in tables for row in rows.filter(pc.equal(rows["key"], key)).to_pylist())
    return None


def read_row_record(directory: str, dataset: Manifest, row: Mapping[str, Any]) -> dict[str, list]:
    """Reads the record of a written image as feature name -> values.

    Args:
      directory: directory of the dataset.
      dataset: its manifest.
      row: row of the image table, at least `split`, `shard` and `offset`.

    Raises:
      CorruptDataset: the record is missing or damaged.
    """
    from google.protobuf.message import DecodeError

    split, shard, offset = row["split"], row["shard"], row["offset"]
    split_shards = dataset.split(split).shards
    if shard not in range(len(split_shards)) or offset not in range(split_shards[shard].bytes):
        place = f"offset {offset} of shard {shard} of {split}"
        raise CorruptDataset(f"the image table of {directory} lists a record at {place}, which does not exist")
    path = dataset.shard_paths(directory, split)[shard]
    try:
        with storage.open_read(path) as stream:
            return record.decode(tfrecord.read_record_at(stream, path, offset))
    except OSError as error:
        raise CorruptDataset(f"{path} cannot be read: {error.strerror or error}; run `feedline verify`") from error
    except (DecodeError, TypeError, ValueError) as error:
        raise CorruptDataset(f"{path} has no record of a dataset at offset {offset}: {error}") from error


def record_lengths(directory: str, dataset: Manifest) -> np.ndarray:
    """Returns the payload sizes of all records of a dataset in bytes, int64[records].

    The offsets in the image table give the sizes; no shard is opened.

    Raises:
      CorruptDataset: the table is damaged, or belongs to another manifest.
    """
    lengths = [np.empty(0, np.int64)]
    with open_images(directory, dataset, SHARD_COLUMNS) as images:
        for split, index, rows in read_shard_rows(images, directory, dataset, tuple(dataset.splits), ["offset"]):
            end = dataset.split(split).shards[index].bytes
            lengths.append(np.diff(rows["offset"].to_numpy(), append=end) - tfrecord.OVERHEAD)
    return np.concatenate(lengths)


SHARD_COLUMNS = ("split", "shard", "offset")
_SHARD_ROWS = """
    SELECT {columns} FROM images WHERE split = $split AND shard = $shard ORDER BY "offset" LIMIT $most"""


def read_shard_rows(
    images: Database, directory: str, dataset: Manifest, splits: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[str, int, pa.Table]]:
    """Yields the split and the index of each shard of some splits, and the rows of its images in record order.

    Args:
      images: database of `open_images`, with at least `columns` and `SHARD_COLUMNS`.
      directory: directory of the dataset.
      dataset: its manifest.
      splits: names of the splits.
      columns: names of columns of the image table.

    Raises:
      CorruptDataset: the table belongs to another manifest.
    """
    statement = _SHARD_ROWS.format(columns=", ".join(f'"{name}"' for name in columns))
    for split in splits:
        for index, shard in enumerate(dataset.split(split).shards):
            rows = images.query(statement, split=split, shard=index, most=shard.records + 1)  # 1: finds surplus rows
            if len(rows) != shard.records:
                raise CorruptDataset(
                    f"the image table of {directory} does not match {manifest.MANIFEST_NAME}: it does not have "
                    f"{plural(shard.records, 'row')} for {shard.name} of {split}; write the dataset again"
                )
            yield split, index, rows


@contextlib.contextmanager
def open_images(
    directory: str, dataset: Manifest, columns: Sequence[str], table: str = "images", with_values: bool = False
) -> Iterator[Database]:
    """Yields a database with a table of the images of a dataset.

    Args:
      directory: directory of a published dataset.
      dataset: its manifest.
      columns: names of the columns of the image table to load; the column `row`, the row number from 0, is added.
      table: name of the table.
      with_values: whether to create two more tables, from the columns `extra` and `annotations`: `columns` has a row
        per value of a user column, with `row` of the image, `name`, `text`, `number` (null for text) and `is_first` (of
        the values of this column and image); `labels` has `row` and `label` of each label in the annotations.

    Raises:
      CorruptDataset: the image table is damaged.
      DiskError: the disk of temporary files has too little space for the rows.
    """
    with open_database("the rows of the dataset", MEMORY_MB) as database:
        for number, rows in enumerate(join_small(read_rows(directory, dataset, columns))):
            database.add(table, rows, create=not number)
            if with_values:
                database.add("columns", _column_values(rows), create=not number)
                database.add("labels", _label_values(rows), create=not number)
        yield database


def _column_values(rows: pa.Table) -> pa.Table:
    """Returns the table `columns` of `open_images`; parses each distinct cell once, because many cells are equal."""
    cell_values = functools.cache(lambda text: list(_cell_values(text)) if text else [])
    values = [
        (row, *value)
        for row, text in zip(rows["row"].to_pylist(), rows["extra"].to_pylist(), strict=True)
        for value in cell_values(text)
    ]
    types = {"name": pa.string(), "text": pa.string(), "number": pa.float64(), "is_first": pa.bool_()}
    return _to_table(values, {"row": pa.int64(), **types})


def _cell_values(text: str) -> Iterator[tuple[str, str, float | None, bool]]:
    """Yields name, text, number and whether it is the first value of this column, for each value of a cell."""
    names: set[str] = set()
    for raw_name, cell in schemas.parse_cell(text).items():
        name = _encodable(raw_name)
        for value in cell if isinstance(cell, list) else [cell]:
            if value is not None:
                yield name, _encodable(str(value)), _to_float(value), name not in names
                names.add(name)


def _to_float(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float)) else None
    except OverflowError as error:
        raise CorruptDataset(f"the image table has a number of {len(str(value))} digits: {error}") from error


def _encodable(text: str) -> str:
    """Returns a text with escaped lone surrogates, which JSON can contain and a database cannot store."""
    return text.encode("utf-8", "backslashreplace").decode()


def _label_values(rows: pa.Table) -> pa.Table:
    """Returns the table `labels` of `open_images`."""
    row_labels = []
    rows = rows.select(["row", "annotations"]).filter(pc.not_equal(rows["annotations"], ""))
    for row, text in zip(rows["row"].to_pylist(), rows["annotations"].to_pylist(), strict=True):
        annotations = schemas.parse_annotations(text)
        row_labels += [(row, _encodable(str(label))) for label in (annotations and annotations.labels) or ()]
    return _to_table(row_labels, {"row": pa.int64(), "label": pa.string()})


def _to_table(rows: Iterable[tuple[Any, ...]], types: Mapping[str, pa.DataType]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    return pa.table({name: pa.array(column, kind) for (name, kind), column in zip(types.items(), columns, strict=True)})


def read_rows(directory: str, dataset: Manifest, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yields columns of the image table, and `row`, the row number from 0; raises `CorruptDataset` if it is damaged."""
    start = 0
    for rows in schemas.read_images(dataset.image_paths(directory), columns):
        numbers = np.arange(start, start + len(rows))
        # `pa.array` would import pandas, during which signals are lost.
        column = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(numbers)])
        yield rows.append_column("row", column)
        start += len(rows)


# Column of the image table with names of sets of images -> kind of these sets in messages.
LEAK_KINDS = {"cluster": "copies", "group": "group", "near": "near duplicates"}


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A set of images that belong together (see `LEAK_KINDS`) and are in several splits.

    Attributes:
      kind: a value of `LEAK_KINDS`.
      name: name of the set.
      keys: split -> key of the first image of the set in this split.
    """

    kind: str
    name: str
    keys: dict[str, str]

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.kind == "group" else ""
        return f"{self.kind}{name}: " + " and ".join(f"{key} in {split}" for split, key in self.keys.items())


# Untyped parameters would cause a division of 128 bits, which takes 200 times as long.
_SETS_AND_SPLITS = """
    SELECT hash({column}) AS name, list_position($splits, split) AS split FROM images
    WHERE {column} <> '' AND split <> '' AND hash({column}) % $parts::UBIGINT = $part::UBIGINT"""
_FIND_LEAKS = """
    SELECT {column} AS name, split, arg_min(key, row) AS key FROM images
    WHERE {column} <> '' AND split <> '' AND hash({column}) IN (SELECT name FROM leaking_sets)
    GROUP BY {column}, split ORDER BY name, split"""
_ROWS_AT_ONCE = 1_000_000  # rows in memory: 16 bytes each, and their sort order


def find_leaks(images: Database, kinds: Sequence[str]) -> list[Leak]:
    """Returns the sets with images in several splits, ordered by kind and name.

    Args:
      images: database of `open_images`, with at least `key`, `split` (empty for no split) and the columns of `kinds`.
      kinds: keys of `LEAK_KINDS`.
    """
    leaks = []
    for column in kinds:
        quoted = f'"{column}"'
        # Hashes are compared first, because the names of all sets would exceed the memory of a query.
        images.insert_all("leaking_sets", [pa.table({"name": pa.array(_leaking_hashes(images, quoted), pa.uint64())})])
        rows = images.query(_FIND_LEAKS.format(column=quoted)).to_pylist()
        images.run("DROP TABLE leaking_sets")
        for name, members in itertools.groupby(rows, itemgetter("name")):
            keys = {row["split"]: row["key"] for row in members}
            if len(keys) > 1:  # a set in one split may have the hash of a leaking set
                leaks.append(Leak(kind=LEAK_KINDS[column], name=name, keys=keys))
    return leaks


def _leaking_hashes(images: Database, column: str) -> list[int]:
    """Returns the hashes of the names of sets that are in several splits."""
    splits = [row["split"] for row in images.query("SELECT DISTINCT split FROM images WHERE split <> ''").to_pylist()]
    part_count = 1 + images.number("SELECT count(*) FROM images") // _ROWS_AT_ONCE
    leaking_hashes: list[int] = []
    for part in range(part_count):
        rows = images.query(_SETS_AND_SPLITS.format(column=column), splits=splits, parts=part_count, part=part)
        hashes, positions = (rows[field].to_numpy() for field in ("name", "split"))
        order = np.argsort(hashes, kind="stable")
        hashes, positions = hashes[order], positions[order]
        set_starts = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)])
        if len(set_starts):
            is_leak = np.minimum.reduceat(positions, set_starts) != np.maximum.reduceat(positions, set_starts)
            leaking_hashes += hashes[set_starts[is_leak]].tolist()
    return leaking_hashes


def select_leak_kinds(near_duplicates: str) -> tuple[str, ...]:
    """Returns the keys of `LEAK_KINDS` whose sets must stay in one split, by the policy for near duplicates."""
    return tuple(LEAK_KINDS) if near_duplicates == "group" else ("cluster", "group")


def leak_sentence(leaks: Sequence[Leak], most: int = 8) -> str:
    """Returns a sentence that counts the sets and names the first `most` of them."""
    sets = plural(len(leaks), "set of images that belong together lies", "sets of images that belong together lie")
    return f"{sets} in several splits: {some(leaks, most)}"
