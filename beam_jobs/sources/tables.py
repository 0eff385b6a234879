"""Tables: one row an image, columns named by the options. CSV, JSON lines and Parquet, streamed."""

from __future__ import annotations

import csv
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from beam_jobs.errors import SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources.local import reference
from beam_jobs.types import ExtraValue, ImageRef, Reject

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][+-]?[0-9]+)?(?<=[0-9.])")
_WIDER: tuple[type, ...] = (int, float, str)  # each can hold what stands before it
_PARQUET_BATCH_ROWS = 4096

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table(ABC):
    """A table of images.

    Image paths are absolute or relative to the table. They are the user's own word, so they may lead anywhere. An extra
    column gets the narrowest of int, float and text that fits all of its cells, found in a pass of its own.

    Attributes:
      path: of the table.
      columns: which column holds what.
    """

    path: str
    columns: TableColumns

    @abstractmethod
    def header(self) -> list[str]:
        """Returns the names of the columns.

        Raises:
          OSError, ValueError, csv.Error, pyarrow.ArrowException: the file cannot be read.
        """

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """Yields column -> cell; a cell is text, a number, a list of one of them, or None.

        Raises:
          SourceError: the table breaks off half way, with the place.
        """

    @property
    def base(self) -> str:
        """Directory that relative image paths start from."""
        return os.path.dirname(self.path) or "."

    def check(self) -> None:
        """Raises `SourceError` unless every named column exists, once, and there is at least one row."""
        try:
            header = self.header()
        except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
            raise SourceError(f"{self.path} cannot be read as a {self.kind} table: {error}") from error
        named = self.columns.named()
        twice = sorted({name for name in header if header.count(name) > 1} & set(named.values()))
        if twice:
            raise SourceError(f"{self.path} has the column {twice[0]!r} more than once; rename all but one")
        for role, column in named.items():
            if column not in header:
                known = ", ".join(map(repr, header)) or "none"
                raise SourceError(f"{self.path} has no column {column!r} for the {role}; it has {known}")
        if next(self.rows(), None) is None:
            raise SourceError(f"{self.path} has columns and no row; add one row an image")

    def entries(self) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject a row.

        Raises:
          SourceError: the table breaks off half way, with the place.
        """
        kinds = self._extra_kinds()
        for row in self.rows():
            yield self._entry(row, kinds)

    @property
    def kind(self) -> str:
        """What the format is called in errors."""
        return type(self).__name__.removesuffix("Table").upper()

    def _entry(self, row: Row, kinds: Mapping[str, type]) -> ImageRef | Reject:
        columns = self.columns
        image = _text(row, columns.image)
        ref = ImageRef(
            key=_text(row, columns.key) or image,
            uri=image,
            label=_text(row, columns.label),
            group=_text(row, columns.group),
            split=_text(row, columns.split),
            extra={name: _convert(kind, row[name]) for name, kind in kinds.items() if not _is_empty(row.get(name))},
        )
        return reference(os.path.join(self.base, image), ref)

    def _extra_kinds(self) -> dict[str, type]:
        kinds: dict[str, type] = dict.fromkeys(self.columns.extra, int)
        if not kinds:
            return kinds
        for row in self.rows():
            for name, kind in kinds.items():
                if not _is_empty(row.get(name)):
                    kinds[name] = _wider(kind, self._kind_of(row[name]))
        return kinds

    def _kind_of(self, value: Any) -> type:
        if isinstance(value, list):
            return max((self._kind_of(item) for item in value), key=_WIDER.index)
        if not isinstance(value, (bool, int, float, str)):
            raise SourceError(
                f"{self.path} holds {value!r} in an extra column; only numbers, text and lists of them fit"
            )
        if isinstance(value, (bool, int)):
            return int if -(1 << 63) <= value < 1 << 63 else str
        return float if isinstance(value, float) else str


class CsvTable(Table):
    """A UTF-8 CSV file with a header row; a byte order mark and quoted commas are fine."""

    def header(self) -> list[str]:
        """See `Table`."""
        with open(self.path, encoding="utf-8-sig", newline="") as stream:
            return list(csv.DictReader(stream).fieldnames or [])

    def rows(self) -> Iterator[Row]:
        """See `Table`."""
        with open(self.path, encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            try:
                yield from reader
            except (UnicodeDecodeError, csv.Error) as error:
                raise SourceError(f"{self.path} cannot be read past line {reader.line_num}: {error}") from error

    def _kind_of(self, value: Any) -> type:
        # A leading zero or an underscore makes a code of it, not a number.
        cell = value.strip()
        if _INTEGER.fullmatch(cell):
            return super()._kind_of(int(cell))
        return float if _NUMBER.fullmatch(cell) else str


class JsonlTable(Table):
    """A UTF-8 file with one JSON object a line; its columns are the names of the first object."""

    def header(self) -> list[str]:
        """See `Table`."""
        first = next(self.rows(), None)
        return list(first) if first else []

    def rows(self) -> Iterator[Row]:
        """See `Table`."""
        number = 0
        with open(self.path, encoding="utf-8-sig") as stream:
            try:
                for number, line in enumerate(stream, 1):
                    if line.strip():
                        yield self._object(line, number)
            except UnicodeDecodeError as error:
                raise SourceError(f"{self.path} cannot be read past line {number}: {error}") from error

    def _object(self, line: str, number: int) -> Row:
        try:
            values = json.loads(line)
        except ValueError as error:
            raise SourceError(f"{self.path} line {number} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise SourceError(f"{self.path} line {number} holds {line.strip()[:40]!r}; it must hold one object")
        return values


class ParquetTable(Table):
    """A Parquet file; only the named columns are read, a few thousand rows at a time."""

    def header(self) -> list[str]:
        """See `Table`."""
        return list(pq.read_schema(self.path).names)

    def rows(self) -> Iterator[Row]:
        """See `Table`."""
        names = sorted(set(self.columns.named().values()))
        try:
            with pq.ParquetFile(self.path) as table:
                for batch in table.iter_batches(_PARQUET_BATCH_ROWS, columns=names):
                    yield from batch.to_pylist()
        except pa.ArrowException as error:
            raise SourceError(f"{self.path} cannot be read to its end: {error}") from error


TABLES: dict[str, type[Table]] = {"csv": CsvTable, "jsonl": JsonlTable, "parquet": ParquetTable}


def _text(row: Row, column: str) -> str:
    value = row.get(column) if column else None
    return "" if value is None else str(value).strip()


def _is_empty(value: Any) -> bool:
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def _wider(one: type, other: type) -> type:
    return max(one, other, key=_WIDER.index)


def _convert(kind: type, value: Any) -> ExtraValue:
    if isinstance(value, list):
        return [_convert(kind, item) for item in value]  # type: ignore[return-value]
    return kind(value.strip() if isinstance(value, str) else value)
