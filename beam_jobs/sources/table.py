"""Tables: one row an image, columns named by the options. CSV, JSON lines and Parquet, streamed, local or remote."""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from beam_jobs import storage
from beam_jobs.errors import SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources.base import OnHidden, ignore
from beam_jobs.sources.row_reader import NUMBER, Row, RowReader, extra_kinds, refuse_other_buckets, value_kind
from beam_jobs.sources.webdataset import IMAGE_SUFFIXES
from beam_jobs.storage import parquet
from beam_jobs.types import ImageRef, Reject

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_EXCEL = re.compile(r"sep=.?\s*$", re.IGNORECASE)  # tells it what parts the cells
_QUOTE = "a quote is not closed, or should be written twice"
_MORE = "\0"  # where the csv module puts cells beyond the header; it lets no name hold this


@dataclass(frozen=True)
class Table(ABC):
    """A table of images.

    Image and mask paths are absolute, URLs, or relative to the table. They are the user's own word, so they may lead
    anywhere. An extra column gets the narrowest of int, float and text that fits all of its cells, found in a pass of
    its own.

    Attributes:
      path: of the table.
      columns: which column holds what.
      buckets: that cells may name, see `buckets.allowed`.
    """

    path: str
    columns: TableColumns
    buckets: Set[str] = frozenset()

    unit: ClassVar[str] = "line"  # what the numbers of `rows` count

    @abstractmethod
    def header(self) -> list[str]:
        """Returns the names of the columns.

        Raises:
          OSError, ValueError, csv.Error, pyarrow.ArrowException: the file cannot be read.
        """

    @abstractmethod
    def rows(self) -> Iterator[tuple[int, Row]]:
        """Yields the number of each row, from 1, and column -> cell: text, a number, a list of one of them, or None.

        Raises:
          SourceError: the table breaks off half way, with the place.
        """

    @property
    def base(self) -> str:
        """Directory that relative image paths start from."""
        return os.path.dirname(self.path) or "."

    @property
    def label_kind(self) -> str:
        """What the named columns say of the class of an image."""
        return self.columns.label_kind

    @property
    def kind(self) -> str:
        """What the format is called in errors."""
        return type(self).__name__.removesuffix("Table").upper()

    def check(self) -> None:
        """Raises `SourceError` unless every named column exists, once, and there is at least one row."""
        try:
            header = self.header()
        except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
            raise SourceError(f"{self.path} cannot be read as a {self.kind} table: {_told(error)}") from error
        named = self.columns.named()
        counts = Counter(header)
        twice = sorted(name for name in set(named.values()) if counts[name] > 1)
        if twice:
            raise SourceError(f"{self.path} has the column {twice[0]!r} more than once; rename all but one")
        for role, column in named.items():
            if column not in header:
                known = ", ".join(map(repr, header)) or "none"
                raise SourceError(f"{self.path} has no column {column!r} for the {role}; it has {known:.1000}")
        if next(self.rows(), None) is None:
            raise SourceError(f"{self.path} has columns and no row; add one row an image")

    def entries(self, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject a row; none is hidden.

        Raises:
          SourceError: the table breaks off half way, with the place, or names images in other buckets.
        """
        yield from refuse_other_buckets(self._entries(), self.path, self.buckets)

    def _entries(self) -> Iterator[ImageRef | Reject]:
        kinds = extra_kinds((row for _, row in self.rows()), self.columns.extra, self._kind_of)
        reader = RowReader(columns=self.columns, base=self.base, kinds=kinds)
        for number, row in self.rows():
            yield reader.entry(row, f"{self.unit} {number}", self._fault(row))

    def _fault(self, row: Row) -> str:
        """Returns what is wrong with a row as a whole; empty when nothing is."""
        return ""

    def _kind_of(self, value: Any) -> type:
        try:
            return value_kind(value)
        except SourceError as error:
            raise SourceError(f"{self.path}: {error}") from error


class CsvTable(Table):
    """A UTF-8 CSV file with a header row, its cells parted by commas, semicolons or tabs.

    A byte order mark and quoted cells are fine.
    """

    def header(self) -> list[str]:
        """See `Table`."""
        with self._open() as stream:
            return list(self._reader(stream).fieldnames or [])

    def rows(self) -> Iterator[tuple[int, Row]]:
        """See `Table`; the number is that of the last line of a row."""
        last = 0
        with self._open() as stream:
            try:
                reader = self._reader(stream)
                last = reader.line_num if reader.fieldnames else 0
                for row in reader:
                    if reader.line_num > last + 1:
                        self._check_quotes(row, last + 1, reader.line_num)
                    last = reader.line_num
                    yield last, row
            except (UnicodeDecodeError, csv.Error, OSError) as error:
                raise SourceError(f"{self.path} cannot be read past line {last}: {_told(error)}") from error

    @functools.cached_property
    def _delimiter(self) -> str:
        with self._open() as stream:
            first = next(lines(stream, self.path), "")
        if _EXCEL.match(first):
            raise SourceError(f"{self.path} begins with {first.strip()!r}, which is for Excel alone; remove that line")
        return delimiter_of(first, self.columns.image)

    def _check_quotes(self, row: Row, first: int, last: int) -> None:
        if line := swallowed_row(row, self.columns.image, self.base, self._delimiter):
            where = f"{self.path} has a cell between the lines {first} and {last}"
            raise SourceError(f"{where} that holds the row {line[:60]!r}; {_QUOTE}")

    def _reader(self, stream: io.TextIOBase) -> csv.DictReader:
        # Strict: otherwise a quote that is never closed takes the rest of the table into its cell.
        return csv.DictReader(
            _without_nul(lines(stream, self.path)), restkey=_MORE, delimiter=self._delimiter, strict=True
        )

    def _open(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(storage.open_read(self.path), encoding="utf-8-sig", newline="")

    def _fault(self, row: Row) -> str:
        # Which cell is missing or too many is unknown, so each of them may be in the wrong column.
        names = len(row) - (_MORE in row)
        cells = names + len(row.get(_MORE, ())) - sum(value is None for value in row.values())
        if cells == names:
            return ""
        delimiter = DELIMITERS[self._delimiter]
        return f"the row has {cells} cells, the header {names}; quote cells that hold {delimiter}"

    def _kind_of(self, value: Any) -> type:
        # A leading zero or an underscore makes a code of it, not a number.
        cell = value.strip()
        if _INTEGER.fullmatch(cell):
            return super()._kind_of(int(cell))
        return float if NUMBER.fullmatch(cell) else str


class JsonlTable(Table):
    """A UTF-8 file with one JSON object a line; its columns are the names of the first object."""

    def header(self) -> list[str]:
        """See `Table`."""
        first = next(self.rows(), None)
        return list(first[1]) if first else []

    def rows(self) -> Iterator[tuple[int, Row]]:
        """See `Table`."""
        number = 0
        with io.TextIOWrapper(storage.open_read(self.path), encoding="utf-8-sig") as stream:
            try:
                for number, line in enumerate(lines(stream, self.path), 1):
                    if line.strip():
                        yield number, self._object(line, number)
            except (UnicodeDecodeError, OSError) as error:
                raise SourceError(f"{self.path} cannot be read past line {number}: {_told(error)}") from error

    def _object(self, line: str, number: int) -> Row:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{self.path} line {number} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise SourceError(f"{self.path} line {number} holds {line.strip()[:40]!r}; it must hold one object")
        return values


class ParquetTable(Table):
    """A Parquet file; only the named columns are read, as many rows at a time as memory allows."""

    unit: ClassVar[str] = "row"

    def header(self) -> list[str]:
        """See `Table`."""
        with storage.open_read(self.path) as stream:
            return list(pq.read_schema(stream).names)

    def rows(self) -> Iterator[tuple[int, Row]]:
        """See `Table`."""
        number = 0
        try:
            with storage.open_read(self.path) as stream:
                for batch in parquet.batches(stream, self._names, self._batch_rows):
                    for row in batch.to_pylist():
                        number += 1
                        yield number, row
        # Arrow does not look at values until they are made Python's: text may not be UTF-8, times of no calendar.
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise SourceError(f"{self.path} cannot be read past row {number}: {_told(error)}") from error

    @property
    def _names(self) -> list[str]:
        return sorted(set(self.columns.named().values()))

    @functools.cached_property
    def _batch_rows(self) -> int:
        with storage.open_read(self.path) as stream:
            return parquet.batch_rows(stream, self._names)


def _without_nul(text: Iterator[str]) -> Iterator[str]:
    """Yields the lines; from Python 3.11 the csv module takes one with a null character, which is no text."""
    for line in text:
        if "\0" in line:
            raise csv.Error("line contains NUL")
        yield line


def _told(error: Exception) -> str:
    """Returns what an error says in one line, of which Arrow takes several."""
    remedy = ""
    if isinstance(error, UnicodeDecodeError):
        remedy = "; save it as UTF-8"
    elif isinstance(error, csv.Error) and "NUL" not in str(error):
        remedy = f"; {_QUOTE}"
    return " ".join(str(error).split()) + remedy


TABLES: dict[str, type[Table]] = {"csv": CsvTable, "jsonl": JsonlTable, "parquet": ParquetTable}


DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_MAX_LINE = 16 << 20  # characters; lines of polygons have a few hundred thousand


def lines(stream: io.TextIOBase, path: str) -> Iterator[str]:
    """Yields the lines of a table, one in memory at a time.

    Args:
      stream: its text.
      path: of the table, for errors.

    Raises:
      SourceError: a line is too long to be one; it is not read to its end.
    """
    number = 0
    while line := stream.readline(_MAX_LINE + 1):
        number += 1
        if len(line) > _MAX_LINE:
            raise SourceError(
                f"{path} line {number} has more than {_MAX_LINE} characters; it is no table, or its lines are not ended"
            )
        yield line


def delimiter_of(header: str, column: str) -> str:
    """Returns what parts the cells of a table, by its first line.

    It is the one of `DELIMITERS` with which the line has the column; without such a one, that which parts it most.

    Args:
      header: the line.
      column: that the table has to have.
    """
    cells = {mark: _cells(header, mark) for mark in DELIMITERS}
    return next((mark for mark in DELIMITERS if column in cells[mark]), max(cells, key=lambda mark: len(cells[mark])))


def swallowed_row(row: Mapping[str, Any], column: str, base: str, delimiter: str) -> str:
    """Returns the first line inside a quoted cell that is a row of its own, or begins one; empty when there is none.

    A quote that is not closed reaches to the next one, and the images of the rows between them would be lost without a
    word. Texts of several lines are fine; a line that names an image where rows do is none of a text.

    Args:
      row: column -> cell; cells beyond the header are a list.
      column: the image column.
      base: directory that the paths of images are relative to.
      delimiter: what parts the cells of the table.
    """
    place = list(row).index(column)
    for text in row.values():
        for line in text.splitlines()[1:] if isinstance(text, str) else ():
            cells = _cells(line, delimiter)
            if len(cells) >= min(2, len(row)) and _names_image(cells, place, base):
                return line
    return _second_row(row, place, base, delimiter)


def _second_row(row: Mapping[str, Any], place: int, base: str, delimiter: str) -> str:
    """Returns the last line of a cell that parts what was read as one row into two whole ones."""
    beyond = [cell for cells in row.values() if isinstance(cells, list) for cell in cells]
    named = [cell for cell in row.values() if isinstance(cell, str)]
    width, cells = len(row) - bool(beyond), [*named, *beyond]
    for number, text in enumerate(cells):
        first, *_, last = text.splitlines() if "\n" in text.strip() else ("", "")
        # Neither holds a quoted cell: its quotes would have ended this one.
        both = ([*cells[:number], *first.split(delimiter)], [*last.split(delimiter), *cells[number + 1 :]])
        if all(len(one) == width and _names_image(one, place, base) for one in both):
            return last
    return ""


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # reading the table raises it, with the place
        return []


def _names_image(cells: list[str], place: int, base: str) -> bool:
    path = cells[place].strip(' "') if len(cells) > place else ""
    suffix = path.rpartition(".")[2].lower()
    return suffix in IMAGE_SUFFIXES or (bool(path) and os.path.isfile(storage.join(base, path)))
