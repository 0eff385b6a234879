"""Parquet schemas of the tables that the ingest reads and writes, their rows, and the user columns."""

from __future__ import annotations

import contextlib
import io
import json
import math
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_jobs import storage
from beam_jobs.common.strings import unknown
from beam_jobs.dataset import record, shards
from beam_jobs.errors import CorruptDataset, OptionError
from beam_jobs.rejects import Reject
from beam_jobs.sources import http_fetch
from beam_jobs.storage import parquet
from beam_jobs.types import Annotations, ImageFacts, ImageObject, ImageRef

IMAGE_ROWS = 1 << 16  # rows per row group of the image table
# The item field of a list has the name `item` in the files of every release; newer versions of Arrow write `element`.
_PARQUET_OPTIONS = {"compression": "zstd", "use_compliant_nested_type": False}
_STRING, _INT64, _FLOAT = pa.string(), pa.int64(), pa.float32()

REFS = pa.schema(
    {
        "key": _STRING,
        "uri": _STRING,
        "label": _STRING,
        "group": _STRING,
        "split": _STRING,
        "extra": _STRING,  # JSON: the columns differ between datasets
        "annotations": _STRING,  # JSON; empty for none
        "slice": _STRING,
        "bytes": _INT64,
        "mtime_ns": _INT64,
    }.items()
)
FACTS = pa.schema(
    {
        "format": _STRING,
        "source_format": _STRING,
        "height": _INT64,
        "width": _INT64,
        "source_height": _INT64,
        "source_width": _INT64,
        "channels": _INT64,
        "bytes": _INT64,
        "sha256": _STRING,
        "source_sha256": _STRING,
        "crc32c": _INT64,
        "dhash": _INT64,
        "mean_rgb": pa.list_(_FLOAT),
        "var_rgb": pa.list_(_FLOAT),
        "normalised": _STRING,
        "mask_crc32c": _INT64,
    }.items()
)
_REF_COLUMNS = ("key", "uri", "label", "group", "split", "extra", "annotations")
# Slices of the stored bytes and of the mask, and the values of the mask; these columns are not published.
_WORK_COLUMNS = pa.schema([("slice", _STRING), ("mask_slice", _STRING), ("mask_values", _STRING)])
# Only for the plan: `shards.hashes64` of the key and of `sha256`, and the class names in the annotations, of the image
# and of its objects. `thumbnail` is reserved for a grey picture of the image of at most 1 kB, with which a plan could
# confirm near duplicates; it is null.
PLAN_FACTS = pa.schema(
    [
        *(("order_hash", pa.uint64()), ("content_hash", pa.uint64()), ("thumbnail", pa.binary())),
        *((name, pa.list_(_STRING)) for name in ("annotated_labels", "object_labels")),
    ]
)
EXAMINED = pa.schema([REFS.field(name) for name in _REF_COLUMNS] + [*FACTS, *_WORK_COLUMNS, *PLAN_FACTS])
REJECTS = pa.schema(
    {"key": _STRING, "uri": _STRING, "stage": _STRING, "reason": _STRING, "detail": _STRING, "bytes": _INT64}.items()
)
# `cluster` and `near` name sets of duplicates and of near duplicates; `label_index` is -1 without a single label.
_PLAN_COLUMNS = pa.schema([pa.field("cluster", _STRING), pa.field("near", _STRING), pa.field("label_index", _INT64)])
PLANNED = pa.schema([*(field for field in EXAMINED if field.name not in PLAN_FACTS.names), *_PLAN_COLUMNS])
IMAGES = pa.schema(
    [field for field in PLANNED if field.name not in _WORK_COLUMNS.names]
    + [pa.field("shard", _INT64), pa.field("offset", _INT64)]
)


# Matches the labels in a cell of `annotations`: in its JSON object, whose names are sorted, `labels` is the first name.
LABELS_RE = r'^\{"labels": (null|\[(?:"(?:[^"\\]|\\.)*"(?:, )?)*\])'


def ref_row(ref: ImageRef) -> dict[str, Any]:
    """Returns the row of a reference in a `REFS` table."""
    # `vars`, because `asdict` copies every value deeply and holds the GIL, which blocks the decoding threads.
    extra = json.dumps(dict(ref.extra), sort_keys=True, ensure_ascii=False) if ref.extra else "{}"
    return {**vars(ref), "extra": extra, "annotations": _annotations_text(ref.annotations)}


def parse_cell(text: str) -> dict[str, Any]:
    """Returns the JSON object in a cell of a published table.

    Raises:
      CorruptDataset: the cell is not a JSON object, or is nested too deep.
    """
    try:
        values = storage.parse_json(text)
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
    except (TypeError, ValueError) as error:
        raise CorruptDataset(f"the image table has the cell {text!r:.60}: {error}; write the dataset again") from error
    return values


def parse_annotations(text: str) -> Annotations | None:
    """Returns the annotations in a cell of a table; None for an empty cell.

    Raises:
      CorruptDataset: the cell contains something other than annotations.
    """
    if not text:
        return None
    try:
        return _build_annotations(parse_cell(text))
    except (KeyError, TypeError) as error:
        raise CorruptDataset(f"the image table has the annotations {text!r:.60}; write the dataset again") from error


def _build_annotations(values: dict[str, Any]) -> Annotations:
    if values["labels"] is not None:
        values["labels"] = tuple(values["labels"])
    if values["size"] is not None:
        values["size"] = tuple(values["size"])
    if values["objects"] is not None:
        values["objects"] = tuple(ImageObject(**{**item, "bbox": tuple(item["bbox"])}) for item in values["objects"])
    return Annotations(**values)


def image_rows(rows: pa.Table, split: str, shard: int, offsets: Sequence[int]) -> pa.Table:
    """Returns the `IMAGES` rows of `PLANNED` rows.

    Args:
      rows: the planned rows.
      split: name of their split; empty for dropped images.
      shard: index of their shard; -1 for dropped images.
      offsets: offset of each record in the shard, in bytes; -1 for dropped images.
    """
    columns: dict[str, Any] = {name: rows[name] for name in rows.column_names if name in IMAGES.names}
    columns["split"] = pa.array([split] * len(rows), _STRING)
    columns["shard"] = pa.array([shard] * len(rows), _INT64)
    columns["offset"] = pa.array(offsets, _INT64)
    return pa.table(columns).cast(IMAGES)


def examined_rows(
    refs: pa.Table,
    facts: np.ndarray,
    annotations: Sequence[Annotations | None],
    work_columns: Mapping[str, Sequence[Any]],
    seed: int,
) -> pa.Table:
    """Returns the `EXAMINED` table of good images.

    Args:
      refs: their rows of a `REFS` table.
      facts: their rows of `sandbox.FACTS`.
      annotations: their annotations.
      work_columns: their columns `slice`, `mask_slice`, `mask_values` and `mask_crc32c`.
      seed: seed of the hashes that decide the order of the images and their splits.
    """
    columns: dict[str, Any] = {name: refs[name] for name in _REF_COLUMNS}
    columns["uri"] = list(map(http_fetch.remove_signature, refs["uri"].to_pylist()))
    if any(item and item.mask for item in annotations):
        columns["annotations"] = list(map(_annotations_text, map(_unsign_mask_url, annotations)))
    for name in facts.dtype.names or ():
        cells = facts[name]
        columns[name] = _triple_lists(cells) if cells.ndim == 2 else pa.array(cells).cast(FACTS.field(name).type)
    columns |= work_columns
    columns["order_hash"] = pa.array(shards.hashes64(shards.ORDER, seed, refs["key"].to_pylist()))
    columns["content_hash"] = pa.array(shards.hashes64(shards.SPLIT, seed, columns["sha256"].to_pylist()))
    columns["thumbnail"] = pa.nulls(len(refs), pa.binary())
    no_names = class_names(None)  # shared: two lists per image would cause a garbage collection of the whole heap
    names = [class_names(item) if item else no_names for item in annotations]
    columns |= {name: [row[name] for row in names] for name in ("annotated_labels", "object_labels")}
    return pa.table([columns[name] for name in EXAMINED.names], schema=EXAMINED)


def _unsign_mask_url(annotations: Annotations | None) -> Annotations | None:
    """Returns annotations whose mask has no signature in its URL."""
    mask = annotations and annotations.mask
    return replace(annotations, mask=http_fetch.remove_signature(mask)) if annotations and mask else annotations


def class_names(annotations: Annotations | None) -> dict[str, list[str]]:
    """Returns the class names of an image and of its objects, as columns of an `EXAMINED` table."""
    labels, objects = (annotations.labels or (), annotations.objects or ()) if annotations else ((), ())
    return {"annotated_labels": [*labels], "object_labels": [item.label for item in objects]}


def parse_facts(row: Mapping[str, Any]) -> ImageFacts:
    """Returns the facts in a row of an `EXAMINED`, `PLANNED` or `IMAGES` table."""
    values = {name: row[name] for name in FACTS.names}
    return ImageFacts(**{**values, "mean_rgb": tuple(values["mean_rgb"]), "var_rgb": tuple(values["var_rgb"])})


def reject_row(reject: Reject) -> dict[str, Any]:
    """Returns the row of a reject in a `REJECTS` table."""
    return {**vars(reject), "uri": http_fetch.remove_signature(reject.uri)}


def write(path: str, table: pa.Table) -> int:
    """Writes a table as a Parquet file, atomically, and returns the crc32c of its bytes."""
    data = row_groups([table], table.schema)
    storage.write_bytes(path, data)
    return google_crc32c.value(data)


def write_table(path: str, table: pa.Table, scratch: str = "", durable: bool = True) -> None:
    """Writes a table as a Parquet file, atomically; equal tables give equal bytes. See `storage.atomic_writer`."""
    if storage.is_remote(path):  # by one request, without a copy
        storage.write_bytes(path, row_groups([table], table.schema))
        return
    with table_writer(path, table.schema, scratch, durable) as write_rows:
        write_rows(table)


@contextlib.contextmanager
def table_writer(
    path: str, schema: pa.Schema, scratch: str = "", durable: bool = True
) -> Iterator[Callable[[pa.Table], None]]:
    """Yields a function that appends a row group of rows to a Parquet file; see `write_table`."""
    with storage.atomic_writer(path, scratch, durable) as stream, _row_group_writer(stream, schema) as write_rows:
        yield write_rows


def row_groups(tables: Iterable[pa.Table], schema: pa.Schema, **options: Any) -> bytes:
    """Returns the bytes of a Parquet file with a row group per table; `options` are those of `ParquetWriter`.

    Equal tables give equal bytes.
    """
    stream = io.BytesIO()
    with _row_group_writer(stream, schema, **options) as write_rows:
        for rows in tables:
            write_rows(rows)
    return stream.getvalue()


@contextlib.contextmanager
def _row_group_writer(stream: BinaryIO, schema: pa.Schema, **options: Any) -> Iterator[Callable[[pa.Table], None]]:
    with pq.ParquetWriter(stream, schema, **{**_PARQUET_OPTIONS, **options}) as writer:
        yield lambda rows: writer.write_table(rows, row_group_size=max(1, len(rows)))


def read_row_group(path: str, index: int) -> pa.Table:
    """Returns one row group of a Parquet file without reading the others; raises the errors of `read`."""
    with storage.open_read(path) as stream:
        return pq.ParquetFile(stream).read_row_group(index, use_threads=False)


def read(path: str, columns: Sequence[str] | None = None, dictionaries: Sequence[str] = ()) -> pa.Table:
    """Returns a Parquet file, or some of its columns; the columns in `dictionaries` become dictionary arrays.

    Raises:
      OSError: the file is missing.
      pyarrow.ArrowInvalid: the file is not Parquet.
    """
    # With `read_table` or Arrow's threads, about half of the processes that exit soon after abort ("terminate called").
    file = pq.ParquetFile(io.BytesIO(storage.read_bytes(path)), read_dictionary=list(dictionaries))
    return file.read(columns, use_threads=False)


def read_groups(path: str) -> Iterator[pa.Table]:
    """Yields the row groups of a Parquet file of this ingest; see `read`."""
    with parquet.open_random(path) as stream:
        file = pq.ParquetFile(stream)
        for index in range(file.num_row_groups):
            yield file.read_row_group(index, use_threads=False)


def read_images(
    paths: Iterable[str], columns: Sequence[str], groups: Mapping[str, Sequence[int]] | None = None
) -> Iterator[pa.Table]:
    """Yields columns of the image table of a published dataset, some thousands of rows at a time, in order.

    Args:
      paths: paths of the files of the table; see `Manifest.image_paths`.
      columns: names of columns of `IMAGES`.
      groups: path -> indices of the row groups to read; None for all.

    Raises:
      CorruptDataset: a file is missing, damaged or over a limit, or has no such column.
    """
    return _read_published(paths, pa.schema([IMAGES.field(name) for name in columns]), groups)


def read_rejects(path: str) -> Iterator[pa.Table]:
    """Yields the rejects of a published dataset, some thousands of rows at a time; see `read_images`."""
    return _read_published([path], REJECTS, None)


def _read_published(
    paths: Iterable[str], schema: pa.Schema, groups: Mapping[str, Sequence[int]] | None
) -> Iterator[pa.Table]:
    columns = schema.names
    yield schema.empty_table()
    for path in paths:
        with _open_published(path) as stream:
            for batch in parquet.table_batches(stream, columns, groups[path] if groups else None):
                names = batch.schema.names
                if missing := [name for name in columns if name not in names]:
                    raise pa.ArrowInvalid(f"columns are missing: {', '.join(missing)}")
                if repeated := [name for name in columns if names.count(name) > 1]:
                    raise pa.ArrowInvalid(f"it has several columns {', '.join(repeated)}")
                rows = pa.Table.from_batches([batch]).select(columns).cast(schema)
                rows.validate(full=True)  # text columns of a damaged table may not be UTF-8
                yield rows


def image_row_groups(path: str) -> list[int]:
    """Returns the number of rows of each row group of a file of the image table.

    Raises:
      CorruptDataset: the file is missing or damaged.
    """
    with _open_published(path) as stream:
        return parquet.group_rows(stream)


@contextlib.contextmanager
def _open_published(path: str) -> Iterator[BinaryIO]:
    try:
        with parquet.open_random(path) as stream:
            yield stream
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise CorruptDataset(f"{path} cannot be read: {error}; write the dataset again") from error


def _triple_lists(numbers: np.ndarray) -> pa.ListArray:
    """Returns float32 lists of the rows of float64[rows, 3]; the inverse of `triples`."""
    offsets = np.arange(0, 3 * len(numbers) + 1, 3, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(numbers.astype(np.float32).ravel()))


def triples(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a column with three numbers per row, such as `mean_rgb`, as float32[rows, 3]."""
    return column.combine_chunks().flatten().to_numpy().reshape(-1, 3)


def _annotations_text(annotations: Annotations | None) -> str:
    if annotations is None:
        return ""
    objects = annotations.objects
    values = {**vars(annotations), "objects": None if objects is None else [vars(item) for item in objects]}
    return json.dumps(values, sort_keys=True, ensure_ascii=False)


_FLOAT64_EXACT = 2**53  # from this value on, a float64 does not represent every integer


def check_column(name: str, columns: Collection[str], option: str) -> None:
    """Checks that a user column exists.

    Args:
      name: name of the column, without `extra/`.
      columns: user columns of the dataset, without `extra/`.
      option: name of the option with the column, such as `transform.columns`.

    Raises:
      OptionError: the dataset does not have the column.
    """
    if name in columns:
        return
    if columns:
        raise OptionError(f"{option}: {unknown('user column', name, sorted(columns))}", [option])
    plain = name.removeprefix(record.EXTRA_PREFIX)
    raise OptionError(
        f"{option}: there is no user column {name!r}, the images have none; name it in ingest.columns.extra: [{plain}]",
        [option],
    )


def is_whole(number: float) -> bool:
    """Returns whether a number is an integer that float64 represents exactly; from 2**53 on, a float may be rounded."""
    return isinstance(number, int) or (number.is_integer() and abs(number) < _FLOAT64_EXACT)


def fits_float32(number: float) -> bool:
    """Returns whether a number keeps its value as the float32 of a record.

    An integer must equal its float32; a fraction must be the shortest decimal form of it, such as 0.1. NaN fits.
    """
    nearest = _to_float32(number)
    if nearest == number or math.isnan(number):
        return True
    return not is_whole(number) and float(str(np.float32(nearest))) == number


@dataclass(kw_only=True)
class Float32Changes:
    """Counts of the numbers of a user column that float32 changes.

    Attributes:
      changed: count of changed numbers.
      numbers: count of all numbers.
      example: first changed number, as in the source.
    """

    changed: int = 0
    numbers: int = 0
    example: float = 0.0

    def warning(self, name: str) -> str:
        """Returns the warning about the column of this name."""
        return (
            f"float32, in which records store fractions, changes {self.changed:,} of {self.numbers:,} numbers of the "
            f"user column {name!r}, such as {self.example!r} to {_to_float32(self.example)!r}; "
            "write identifiers as text, and round or scale other numbers"
        )


def count_float32_changes(columns: dict[str, Float32Changes], cells: pa.ChunkedArray) -> None:
    """Adds the numbers of further images to the counts of changed numbers.

    Args:
      columns: user column -> counts of the earlier images; it is updated.
      cells: column `extra` of further images.
    """
    texts, counts = pc.value_counts(cells).flatten()
    for text, image_count in zip(texts.to_pylist(), counts.to_pylist(), strict=True):
        for name, value in parse_cell(text).items():
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, float):
                    _count_number(columns.setdefault(name, Float32Changes()), number, image_count)


def column_mismatch(cell: Any, values: Mapping[str, list]) -> str:
    """Returns a message about a difference between the user columns of a record and its row; empty if they agree.

    They agree if the record has the nearest float32 of each fraction, and equal values otherwise.

    Args:
      cell: cell of the column `extra` of the row.
      values: feature name -> values of the user columns of the record.
    """
    try:
        row_features = {
            record.EXTRA_PREFIX + name: record.extra_feature(name, value)
            for name, value in storage.parse_json(cell).items()
        }
    except (TypeError, ValueError, AttributeError):
        return f"its user columns are {cell!r:.60}, which no ingest writes"
    for name in sorted(values.keys() | row_features.keys()):
        kind, row_values = row_features.get(name, ("", ()))
        rounded = [_to_float32(number) for number in row_values] if kind == "float" else [*row_values]
        # Compared as text: NaN is not equal to itself, and 1 is equal to 1.0.
        if repr(record_values := values.get(name, [])) != repr(rounded):
            return f"it has {[*row_values]!r:.60} for {name!r}, the record has {record_values!r:.60}"
    return ""


def _count_number(column: Float32Changes, number: float, image_count: int) -> None:
    column.numbers += image_count
    if not fits_float32(number):
        column.example = column.example if column.changed else number
        column.changed += image_count


def _to_float32(number: Any) -> float:
    return array("f", (number,))[0]
