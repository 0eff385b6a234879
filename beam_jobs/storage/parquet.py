"""Parquet files of anybody, decoded within a bound of memory.

A few bytes of a file can stand for gigabytes: one long text that every row repeats, a page that unpacks to a thousand
times its size. Arrow decodes as much as the file claims; so the headers of the pages are read first, which say how much
that is. Source of the format: https://parquet.apache.org/docs/file-format (`parquet.thrift`), and the compact protocol
of Thrift.

A column of a Python type, which Arrow would unpickle, is refused: before 14.0.1 Arrow runs what such a column brings
along as soon as the file is opened (CVE-2023-47248). Importing this module is enough.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from beam_jobs import stack

_PICKLED_TYPE = "arrow.py_extension_type"


class _Refused(pa.ExtensionType):
    """Stands where Arrow has the type that unpickles."""

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> _Refused:
        detail = "a column has a pickled Python type, which would run code; write it as a plain column"
        raise pa.ArrowInvalid(detail)


# Before the registration below, whose place it would take: Beam imports the same package.
stack.protect_arrow()
with contextlib.suppress(pa.ArrowKeyError):  # newer versions of Arrow have no such type
    pa.unregister_extension_type(_PICKLED_TYPE)
pa.register_extension_type(_Refused(pa.null(), _PICKLED_TYPE))


# Each grows with the file, because honest large files hold much: text packs to a fifth, a column of labels to less.
_PAGE_BYTES, _PAGE_RATIO = 64 << 20, 20  # of the largest pages of all columns, together
_TABLE_BYTES, _TABLE_RATIO = 256 << 20, 100  # of a table, or the lists of a column, decoded
_VALUES, _VALUES_RATIO = 100_000, 100  # of a column, and so rows

_BATCH_BYTES = 32 << 20
_BATCH_ROWS = 4096
_BUFFER_BYTES = 1 << 20
_VALUE_BYTES = 64  # that Python takes for a short value
_HEADER_BYTES = (8 << 10, 1 << 20, 16 << 20)  # Arrow takes no longer header of a page than the last

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # `PageType`
_BY_DICTIONARY, _BY_PREFIX = (2, 8), 7  # `Encoding`: values that are numbers of others, or share what they begin with
_BYTE_ARRAY = "BYTE_ARRAY"
# Types of Thrift that are passed over -> bytes of a value; -1, where it begins with their number.
_SKIPPED = {1: 0, 2: 0, 3: 1, 7: 8, 8: -1}
_MAX_DEPTH = 4
_CODECS = {"LZ4": "lz4_raw"}  # Arrow's name of a codec, where it is not that of the format


@dataclass
class _Column:
    """What the pages of a column amount to, over all row groups.

    Attributes:
      values: how many there are.
      page_bytes: of the largest page.
      value_bytes: that a value of the worst page takes at most.
      bytes: that all values take at most.
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


def batches(stream: BinaryIO, columns: Sequence[str] | None = None, rows: int = 0) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file, as many at once as memory allows.

    Args:
      stream: seekable, of the file.
      columns: which to decode; all when not given.
      rows: at most in a batch; what `batch_rows` returns when not given.

    Raises:
      pa.ArrowException, UnicodeDecodeError: it is no Parquet, damaged, or over a limit.
      OSError: it cannot be read.
    """
    # Buffered, or the whole of a column is read at once. Arrow's own threads abort every other process that ends soon
    # after ("terminate called").
    file = pq.ParquetFile(stream, buffer_size=_BUFFER_BYTES)
    for batch in file.iter_batches(rows or batch_rows(stream, columns), columns=columns, use_threads=False):
        yield pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], batch.schema.names)


def _plain(column: pa.Array) -> pa.Array:
    """Returns each value in full, as who reads rows holds it; Arrow keeps the dictionaries that it wrote."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def batch_rows(stream: BinaryIO, columns: Sequence[str] | None = None) -> int:
    """Returns how many rows of some columns, or of all, may be decoded at once, by the headers of their pages.

    Raises:
      pa.ArrowException, UnicodeDecodeError: it is no Parquet, damaged, or over a limit.
      OSError: it cannot be read.
    """
    value_bytes = sum(column.value_bytes for column in _looked_at(stream, columns))
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, value_bytes)))


def read(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Returns the whole of a file, or some columns of it, unless it unpacks to far more than any honest one.

    Raises:
      pa.ArrowException, UnicodeDecodeError: it is no Parquet, damaged, or over a limit.
    """
    found = _looked_at(io.BytesIO(data), columns)
    allowed = _TABLE_BYTES + _TABLE_RATIO * len(data)
    file = pq.ParquetFile(io.BytesIO(data))
    if sum(column.bytes for column in found) <= allowed:
        return file.read(columns, use_threads=False)
    # What it may be at most is too much: a single long value in a column does that. Find out what it is.
    decoded, size = [], 0
    for batch in batches(io.BytesIO(data), columns):
        size += batch.nbytes
        if size > allowed:
            raise pa.ArrowInvalid(f"its {len(data)} bytes unpack to more than {allowed}; it is refused")
        decoded.append(batch)
    if not decoded:
        raise pa.ArrowInvalid("its pages hold values, and it has no row")
    return pa.Table.from_batches(decoded)


def _looked_at(stream: BinaryIO, columns: Sequence[str] | None) -> list[_Column]:
    """Returns what the pages of some columns, or of all, amount to.

    Raises:
      pa.ArrowInvalid: it is over a limit, or damaged.
    """
    size = stream.seek(0, os.SEEK_END)
    metadata = pq.read_metadata(stream)
    found = []
    for index in range(metadata.num_columns):
        column = metadata.schema.column(index)
        if columns is not None and column.path.partition(".")[0] not in columns and column.path not in columns:
            continue
        seen = _Column()
        for group in range(metadata.num_row_groups):
            chunk = metadata.row_group(group).column(index)
            _look_at(stream, chunk, column, _PAGE_BYTES + _PAGE_RATIO * size, seen)
        if not column.max_repetition_level:
            _check(column.path, seen.values, _VALUES + _VALUES_RATIO * size, "values")
        else:  # one row may hold them all
            _check(column.path, seen.bytes, _TABLE_BYTES + _TABLE_RATIO * size, "bytes in lists")
            seen.value_bytes = _VALUE_BYTES
        found.append(seen)
    _check("the largest page of each", sum(one.page_bytes for one in found), _PAGE_BYTES + _PAGE_RATIO * size, "bytes")
    return found


def _check(name: str, found: int, allowed: int, what: str) -> None:
    if found > allowed:
        raise pa.ArrowInvalid(f"column {name} has {found} {what}; {allowed} are allowed in a file of its size")


def _look_at(stream: BinaryIO, chunk: Any, column: Any, allowed: int, seen: _Column) -> None:
    """Adds the pages of one column in one row group."""
    longest = fixed = column.length  # 0, unless all values have the length that the schema says
    for page in _pages(stream, chunk):
        _check(column.path, page.bytes, allowed, "bytes in a page")
        if page.kind == _DICTIONARY:
            if column.physical_type == _BYTE_ARRAY:
                longest = _longest(stream, page, chunk.compression)
            seen.add(0, page.bytes, 0)
        elif page.encoding in _BY_DICTIONARY:
            seen.add(page.values, page.bytes, longest)
        elif page.encoding == _BY_PREFIX:
            seen.add(page.values, page.bytes, page.bytes)
        else:
            seen.add(page.values, page.bytes, max(fixed, -(-page.bytes // max(1, page.values))))


@dataclass(frozen=True)
class _Page:
    kind: int
    values: int
    encoding: int
    bytes: int  # unpacked
    start: int  # in the file, behind its header
    packed_bytes: int


def _pages(stream: BinaryIO, chunk: Any) -> Iterator[_Page]:
    """Yields the pages of a column in a row group that Arrow would read."""
    place = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < place:
        place = chunk.dictionary_page_offset
    if place < 0:
        raise pa.ArrowInvalid(f"the pages of column {chunk.path_in_schema} begin at byte {place}")
    end, values = place + chunk.total_compressed_size, 0
    while place < end and values < chunk.num_values:
        header, length = _page_header(stream, place)
        kind = _number(header, 1)
        inside = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0))
        fields = inside if isinstance(inside, dict) else {}
        has_values = kind in (_DATA, _DATA_V2)
        page = _Page(
            kind=kind,
            values=_number(fields, 1) if has_values else 0,
            encoding=_number(fields, 4 if kind == _DATA_V2 else 2) if has_values else 0,
            bytes=_number(header, 2),
            start=place + length,
            packed_bytes=_number(header, 3),
        )
        if min(page.kind, page.values, page.encoding, page.bytes, page.packed_bytes) < 0:
            raise pa.ArrowInvalid(f"the header of the page at byte {place} lacks a number, or has one below 0")
        if page.kind in (_DATA, _DATA_V2):
            values += page.values
        yield page
        place = page.start + page.packed_bytes


def _number(fields: dict[int, Any], number: int) -> int:
    found = fields.get(number)
    return found if isinstance(found, int) else -1


def _page_header(stream: BinaryIO, place: int) -> tuple[dict[int, Any], int]:
    """Returns the fields of the header of a page, and its length."""
    for length in _HEADER_BYTES:
        stream.seek(place)
        content = io.BytesIO(stream.read(length))
        with contextlib.suppress(EOFError):
            return _structure(content, 0), content.tell()
    raise pa.ArrowInvalid(f"the header of the page at byte {place} is damaged, or cut short")


def _longest(stream: BinaryIO, page: _Page, compression: str) -> int:
    """Returns how long the longest text of a dictionary is, or a number that is not less."""
    stream.seek(page.start)
    content = stream.read(page.packed_bytes)
    try:
        if compression != "UNCOMPRESSED":
            codec = _CODECS.get(compression, compression.lower())
            content = pa.decompress(content, page.bytes, codec, asbytes=True)
    except (pa.ArrowException, OSError, ValueError):
        return page.bytes
    place = longest = 0
    while place + 4 <= len(content):
        (length,) = struct.unpack_from("<I", content, place)
        longest = max(longest, length)
        place += 4 + length
    return min(longest, page.bytes)


def _structure(content: BinaryIO, depth: int) -> dict[int, Any]:
    """Reads a structure of Thrift's compact protocol: number of a field -> number, structure, or None for all else.

    Raises:
      EOFError: it does not end.
      pa.ArrowInvalid: it is none.
    """
    fields: dict[int, Any] = {}
    number = 0
    while head := _byte(content):
        number = number + (head >> 4) if head >> 4 else _signed(content)
        number = (number + (1 << 15)) % (1 << 16) - (1 << 15)  # 16 bits, as Thrift takes them
        fields[number] = _value(content, head & 15, depth)
    return fields


def _value(content: BinaryIO, kind: int, depth: int) -> Any:
    if kind == 5:  # 32 bits: all numbers of the header are
        return _signed(content)
    if kind in (4, 6):  # 16 and 64 bits: counts of the statistics
        while _byte(content) > 127:
            pass
        return None
    if kind == 12 and depth < _MAX_DEPTH:
        return _structure(content, depth + 1)
    if kind not in _SKIPPED:
        raise pa.ArrowInvalid(f"the header of a page has a field of type {kind}")
    length = _SKIPPED[kind]
    _skip(content, _unsigned(content) if length < 0 else length)
    return None


def _skip(content: BinaryIO, length: int) -> None:
    if length and len(content.read(length)) < length:
        raise EOFError


def _signed(content: BinaryIO) -> int:
    value = _unsigned(content)
    return (value >> 1) ^ -(value & 1)


def _unsigned(content: BinaryIO) -> int:
    value = shift = 0
    while (byte := _byte(content)) > 127:
        value |= (byte & 127) << shift
        shift += 7
        if shift > 28:
            break
    value |= (byte & 127) << shift
    if byte > 127 or value >> 32:
        raise pa.ArrowInvalid("the header of a page has a number of more than 32 bits")
    return value


def _byte(content: BinaryIO) -> int:
    found = content.read(1)
    if not found:
        raise EOFError
    return found[0]
