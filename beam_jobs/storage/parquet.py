"""Decoding of untrusted Parquet files in bounded memory.

A few bytes of a file can decode to gigabytes: one long text that every row repeats, or a page that unpacks to a
thousand times its size. So the page headers are read first, which give the decoded sizes. Source of the format:
https://parquet.apache.org/docs/file-format (`parquet.thrift`), and the compact protocol of Thrift.

A column of a pickled Python type is refused: Arrow before 14.0.1 runs its code when the file is opened
(CVE-2023-47248). Importing this module protects the process.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from beam_jobs import stack, storage
from beam_jobs.common.system import temporary_errors, temporary_file

_PICKLED_TYPE = "arrow.py_extension_type"


class _RefusedType(pa.ExtensionType):
    """Replaces the extension type of Arrow that unpickles Python types."""

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> _RefusedType:
        detail = "a column has a pickled Python type, which would run code; write it as a plain column"
        raise pa.ArrowInvalid(detail)


# Before the registration below: `pyarrow_hotfix`, which Beam imports too, registers the same type.
stack.protect_arrow()
with contextlib.suppress(pa.ArrowKeyError):  # newer versions of Arrow have no such type
    pa.unregister_extension_type(_PICKLED_TYPE)
pa.register_extension_type(_RefusedType(pa.null(), _PICKLED_TYPE))

# Limits: a base and a multiple of the file size, because text compresses to a fifth, and a column of labels to less.
_PAGE_BYTES, _PAGE_RATIO = 64 << 20, 20  # sum of the largest pages of all columns
_TABLE_BYTES, _TABLE_RATIO = 256 << 20, 100  # decoded size of a table, or of the lists of a column
_VALUES, _VALUES_RATIO = 100_000, 100  # values of a column, and so rows

_COPY_IN_MEMORY_BYTES = 32 << 20  # the copy of a smaller file is in memory, not on a disk
_BATCH_BYTES = 32 << 20
_BATCH_ROWS = 4096
_BUFFER_BYTES = 1 << 20
_VALUE_BYTES = 64  # size of a short value in Python
_HEADER_BYTES = (8 << 10, 1 << 20, 16 << 20)  # lengths to try; the last is Arrow's limit for a page header

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # `PageType`
_DICTIONARY_ENCODINGS, _PREFIX_ENCODING = (2, 8), 7  # `Encoding`: indices of a dictionary, or shared prefixes
_BYTE_ARRAY = "BYTE_ARRAY"
# Skipped types of Thrift -> bytes of a value; -1 for a value that begins with its length.
_SKIPPED = {1: 0, 2: 0, 3: 1, 7: 8, 8: -1}
_MAX_DEPTH = 4
_CODECS = {"LZ4": "lz4_raw"}  # name of a codec in the format -> its name in Arrow, if that differs


@dataclass
class _ColumnSize:
    """Size of a column over all row groups, from its page headers.

    Attributes:
      values: number of values.
      page_bytes: size of the largest page, unpacked.
      value_bytes: upper bound of the decoded size of a value.
      bytes: upper bound of the decoded size of all values.
    """

    values: int = 0
    page_bytes: int = 0
    value_bytes: int = _VALUE_BYTES
    bytes: int = 0

    def add(self, values: int, page_bytes: int, value_bytes: int) -> None:
        self.values += values
        self.page_bytes = max(self.page_bytes, page_bytes)
        self.value_bytes = max(self.value_bytes, value_bytes + _VALUE_BYTES)
        self.bytes += values * (value_bytes + _VALUE_BYTES)


def batches(
    stream: BinaryIO, columns: Sequence[str] | None = None, rows: int = 0, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file in batches that fit in memory.

    Args:
      stream: seekable stream of the file.
      columns: names of the columns to decode; None for all.
      rows: largest number of rows of a batch; 0 for `batch_rows`.
      groups: numbers of the row groups to decode; None for all.

    Raises:
      pa.ArrowException, UnicodeDecodeError: the file is not Parquet, is damaged, or exceeds a limit.
      OSError: the file cannot be read.
    """
    for batch in _encoded_batches(stream, columns, rows, groups):
        yield pa.RecordBatch.from_arrays([_decode_dictionary(column) for column in batch.columns], batch.schema.names)


def rows_of(stream: BinaryIO, columns: Sequence[str] | None = None, rows: int = 0) -> Iterator[dict[str, Any]]:
    """Yields the rows of a file as Python values; see `batches`. It converts a dictionary only once per batch."""
    for batch in _encoded_batches(stream, columns, rows, None):
        for values in zip(*map(_to_pylist, batch.columns), strict=True):
            yield dict(zip(batch.schema.names, values, strict=True))


def _encoded_batches(
    stream: BinaryIO, columns: Sequence[str] | None, rows: int, groups: Sequence[int] | None
) -> Iterator[pa.RecordBatch]:
    """Yields batches as `batches` does, without decoding the dictionaries of the columns."""
    # Without a buffer, a complete column chunk is read at once. With Arrow's threads, about half of the processes that
    # exit soon afterwards abort ("terminate called").
    file = pq.ParquetFile(stream, buffer_size=_BUFFER_BYTES)
    groups = range(file.metadata.num_row_groups) if groups is None else groups
    sizes = _measure_columns(stream, file.metadata, columns, groups)
    if any(column.values for column in sizes) and not any(file.metadata.row_group(group).num_rows for group in groups):
        raise pa.ArrowInvalid("its pages contain values, but it has no rows")
    rows = rows or _rows_at_once(sizes)
    return file.iter_batches(rows, row_groups=list(groups), columns=columns, use_threads=False)


def _to_pylist(column: pa.Array) -> list[Any]:
    if not pa.types.is_dictionary(column.type):
        return column.to_pylist()
    values = column.dictionary.to_pylist()
    indices = column.indices.to_pylist()
    if any(index is not None and not 0 <= index < len(values) for index in indices):  # Arrow does not check this
        raise pa.ArrowInvalid(f"the column has an index outside of its dictionary of {len(values)} values")
    return [None if index is None else values[index] for index in indices]


def _decode_dictionary(column: pa.Array) -> pa.Array:
    """Returns a dictionary array as plain values; Arrow restores the dictionaries that it wrote."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def group_rows(stream: BinaryIO) -> list[int]:
    """Returns the number of rows of each row group; see `batches` for errors."""
    metadata = pq.read_metadata(stream)
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def batch_rows(stream: BinaryIO, columns: Sequence[str] | None = None) -> int:
    """Returns the number of rows of the columns that may be decoded at once, from the page headers; see `batches`."""
    return _rows_at_once(_measure_columns(stream, pq.read_metadata(stream), columns))


def _rows_at_once(columns: Sequence[_ColumnSize]) -> int:
    value_bytes = sum(column.value_bytes for column in columns)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, value_bytes)))


def table_batches(
    stream: BinaryIO, columns: Sequence[str] | None = None, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file as `batches` does, within the limit of the decoded size of a table."""
    size, allowed = 0, _TABLE_BYTES + _TABLE_RATIO * stream.seek(0, os.SEEK_END)
    for batch in batches(stream, columns, groups=groups):
        size += batch.nbytes
        if size > allowed:
            length = stream.seek(0, os.SEEK_END)
            raise pa.ArrowInvalid(f"its {length} bytes unpack to more than the limit of {allowed}")
        yield batch


def _measure_columns(
    stream: BinaryIO, metadata: pq.FileMetaData, columns: Sequence[str] | None, groups: Sequence[int] | None = None
) -> list[_ColumnSize]:
    """Returns the sizes of the columns, in some row groups, or in all.

    Raises:
      pa.ArrowInvalid: the file is damaged, or exceeds a limit.
    """
    size = stream.seek(0, os.SEEK_END)
    column_sizes = []
    for index in range(metadata.num_columns):
        column = metadata.schema.column(index)
        if columns is not None and column.path.partition(".")[0] not in columns and column.path not in columns:
            continue
        column_size = _ColumnSize()
        for group in range(metadata.num_row_groups) if groups is None else groups:
            chunk = metadata.row_group(group).column(index)
            _measure_chunk(stream, chunk, column, _PAGE_BYTES + _PAGE_RATIO * size, column_size)
        if not column.max_repetition_level:
            _check(f"column {column.path} has", column_size.values, _VALUES + _VALUES_RATIO * size, "values")
        else:  # a single row may contain all values
            _check(f"column {column.path} has", column_size.bytes, _TABLE_BYTES + _TABLE_RATIO * size, "bytes in lists")
            column_size.value_bytes = _VALUE_BYTES
        column_sizes.append(column_size)
    page_bytes = sum(column_size.page_bytes for column_size in column_sizes)
    _check("the largest pages of all columns have", page_bytes, _PAGE_BYTES + _PAGE_RATIO * size, "bytes")
    return column_sizes


def _check(subject: str, count: int, allowed: int, unit: str) -> None:
    if count > allowed:
        raise pa.ArrowInvalid(f"{subject} {count} {unit}; {allowed} are allowed in a file of its size")


def _measure_chunk(stream: BinaryIO, chunk: Any, column: Any, allowed: int, column_size: _ColumnSize) -> None:
    """Adds the pages of one column in one row group to its size."""
    longest = fixed = column.length  # 0 unless the schema defines one length for all values
    for page in _pages(stream, chunk):
        _check(f"column {column.path} has", page.bytes, allowed, "bytes in a page")
        if page.kind == _DICTIONARY:
            if column.physical_type == _BYTE_ARRAY:
                longest = _longest_text(stream, page, chunk.compression)
            column_size.add(0, page.bytes, 0)
        elif page.encoding in _DICTIONARY_ENCODINGS:
            column_size.add(page.values, page.bytes, longest)
        elif page.encoding == _PREFIX_ENCODING:
            column_size.add(page.values, page.bytes, page.bytes)  # one value may share the complete page
        else:
            column_size.add(page.values, page.bytes, max(fixed, -(-page.bytes // max(1, page.values))))


@dataclass(frozen=True)
class _Page:
    kind: int
    values: int
    encoding: int
    bytes: int  # unpacked
    start: int  # offset in the file, after the page header
    packed_bytes: int


def _pages(stream: BinaryIO, chunk: Any) -> Iterator[_Page]:
    """Yields the pages of a column in a row group that Arrow reads."""
    offset = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < offset:
        offset = chunk.dictionary_page_offset
    if offset < 0:
        raise pa.ArrowInvalid(f"the pages of column {chunk.path_in_schema} begin at byte {offset}")
    end, values = offset + chunk.total_compressed_size, 0
    while offset < end and values < chunk.num_values:
        header, length = _page_header(stream, offset)
        kind = _number(header, 1)
        type_header = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0))  # ids in `parquet.thrift`
        fields = type_header if isinstance(type_header, dict) else {}
        has_values = kind in (_DATA, _DATA_V2)
        page = _Page(
            kind=kind,
            values=_number(fields, 1) if has_values else 0,
            encoding=_number(fields, 4 if kind == _DATA_V2 else 2) if has_values else 0,
            bytes=_number(header, 2),
            start=offset + length,
            packed_bytes=_number(header, 3),
        )
        if min(page.kind, page.values, page.encoding, page.bytes, page.packed_bytes) < 0:
            raise pa.ArrowInvalid(f"the header of the page at byte {offset} lacks a number, or has one below 0")
        if page.kind in (_DATA, _DATA_V2):
            values += page.values
        yield page
        offset = page.start + page.packed_bytes


def _number(fields: dict[int, Any], field_id: int) -> int:
    value = fields.get(field_id)
    return value if isinstance(value, int) else -1  # -1: missing, or of another type


def _page_header(stream: BinaryIO, offset: int) -> tuple[dict[int, Any], int]:
    """Returns the fields of a page header, and its length in bytes."""
    for length in _HEADER_BYTES:
        stream.seek(offset)
        content = io.BytesIO(stream.read(length))
        with contextlib.suppress(EOFError):
            return _structure(content, 0), content.tell()
    raise pa.ArrowInvalid(f"the header of the page at byte {offset} is damaged or truncated")


def _longest_text(stream: BinaryIO, page: _Page, compression: str) -> int:
    """Returns an upper bound of the length of the longest text of a dictionary, in bytes."""
    stream.seek(page.start)
    content = stream.read(page.packed_bytes)
    try:
        if compression != "UNCOMPRESSED":
            codec = _CODECS.get(compression, compression.lower())
            content = pa.decompress(content, page.bytes, codec, asbytes=True)
    except (pa.ArrowException, OSError, ValueError):
        return page.bytes
    position = longest = 0
    while position + 4 <= len(content):
        (length,) = struct.unpack_from("<I", content, position)
        longest = max(longest, length)
        position += 4 + length
    return min(longest, page.bytes)


def _structure(content: BinaryIO, depth: int) -> dict[int, Any]:
    """Reads a structure of Thrift's compact protocol: field id -> number, structure, or None for other types.

    Raises:
      EOFError: the content ends inside the structure.
      pa.ArrowInvalid: the content is not such a structure.
    """
    fields: dict[int, Any] = {}
    field_id = 0
    while field_header := _read_byte(content):
        field_id = field_id + (field_header >> 4) if field_header >> 4 else _read_signed(content)
        field_id = (field_id + (1 << 15)) % (1 << 16) - (1 << 15)  # wraps at 16 bits, as in Thrift
        fields[field_id] = _read_value(content, field_header & 15, depth)
    return fields


def _read_value(content: BinaryIO, kind: int, depth: int) -> Any:
    if kind == 5:  # 32 bits: all numbers of the header
        return _read_signed(content)
    if kind in (4, 6):  # 16 and 64 bits: counts of the statistics
        while _read_byte(content) > 127:
            pass
        return None
    if kind == 12 and depth < _MAX_DEPTH:
        return _structure(content, depth + 1)
    if kind not in _SKIPPED:
        raise pa.ArrowInvalid(f"the header of a page has a field of type {kind}")
    length = _read_unsigned(content) if _SKIPPED[kind] < 0 else _SKIPPED[kind]
    if length and len(content.read(length)) < length:
        raise EOFError
    return None


def _read_signed(content: BinaryIO) -> int:
    value = _read_unsigned(content)  # zigzag: 0, -1, 1, -2 are stored as 0, 1, 2, 3
    return (value >> 1) ^ -(value & 1)


def _read_unsigned(content: BinaryIO) -> int:
    value = shift = 0  # seven bits in each byte, the lowest first
    while (byte := _read_byte(content)) > 127:
        value |= (byte & 127) << shift
        shift += 7
        if shift > 28:
            break
    value |= (byte & 127) << shift
    if byte > 127 or value >> 32:
        raise pa.ArrowInvalid("the header of a page has a number of more than 32 bits")
    return value


def _read_byte(content: BinaryIO) -> int:
    byte = content.read(1)
    if not byte:
        raise EOFError
    return byte[0]


@contextlib.contextmanager
def open_random(path: str) -> Iterator[BinaryIO]:
    """Yields a stream of a file for random access; copies a remote file first, because each access would be a request.

    Raises:
      DiskError: there is no room for a temporary copy of a large file.
      OSError: the file is missing or not readable.
    """
    with storage.open_read(path) as source:
        if not storage.is_remote(path):
            yield source
            return
        first_block = source.read(_COPY_IN_MEMORY_BYTES)
        if len(first_block) < _COPY_IN_MEMORY_BYTES:
            yield io.BytesIO(first_block)
            return
        problem = f"no temporary copy of {path} can be made"
        with temporary_file(problem) as copy:
            for block in itertools.chain([first_block], iter(lambda: source.read(_COPY_IN_MEMORY_BYTES), b"")):
                with temporary_errors(problem):
                    copy.write(block)
            copy.seek(0)
            yield copy
