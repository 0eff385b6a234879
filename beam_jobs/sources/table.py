"""Tables with a row per image, CSV, JSON lines or Parquet, local or remote; the options name the columns to use."""

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
from beam_jobs.rejects import Reject
from beam_jobs.sources.base import OnHidden, ignore
from beam_jobs.sources.row_reader import NUMBER, Row, RowReader, extra_kinds, refuse_other_buckets, value_kind
from beam_jobs.sources.webdataset import IMAGE_SUFFIXES
from beam_jobs.storage import parquet
from beam_jobs.types import ImageRef

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_EXCEL_LINE = re.compile(r"sep=.?\s*$", re.IGNORECASE)  # sets the delimiter in Excel
_QUOTE_ADVICE = "a quote is not closed, or should be written twice"
_EXTRA_CELLS = "\0"  # key for cells beyond the header; the csv module allows no such column name


@dataclass(frozen=True)
class Table(ABC):
    """A table of images.

    Image and mask paths are absolute, URLs, or relative to the table. The user provides them, so they may point
    anywhere. A first pass over the rows determines the types of extra columns; see `row_reader.extra_kinds`.

    Attributes:
      path: path of the table.
      columns: column names by role.
      buckets: the buckets that image and mask cells may name, see `row_reader.allowed_buckets`.
    """

    path: str
    columns: TableColumns
    buckets: Set[str] = frozenset()

    number_name: ClassVar[str] = "line"  # name of the numbers of `rows`, in messages

    @abstractmethod
    def header(self) -> list[str]:
        """Returns the names of the columns.

        Raises:
          OSError, ValueError, csv.Error, pyarrow.ArrowException: the file cannot be read.
        """

    @abstractmethod
    def rows(self) -> Iterator[tuple[int, Row]]:
        """Yields the number of each row, from 1, and column -> cell: text, a number, a list of these, or None.

        Raises:
          SourceError: the table is damaged or truncated; the message gives the position.
        """

    @property
    def base(self) -> str:
        """Directory of relative image paths."""
        return os.path.dirname(self.path) or "."

    @property
    def label_kind(self) -> str:
        """Kind of the labels, which the columns determine; one of `types.LABEL_KINDS`."""
        return self.columns.label_kind

    @property
    def kind(self) -> str:
        """Name of the format in messages."""
        return type(self).__name__.removesuffix("Table").upper()

    def check(self) -> None:
        """Raises `SourceError` unless every named column exists, once, and there is at least one row."""
        try:
            header = self.header()
        except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
            raise SourceError(f"{self.path} cannot be read as a {self.kind} table: {_one_line(error)}") from error
        names_by_role = self.columns.named()
        counts = Counter(header)
        duplicates = sorted(name for name in set(names_by_role.values()) if counts[name] > 1)
        if duplicates:
            raise SourceError(f"{self.path} has the column {duplicates[0]!r} more than once; rename all but one")
        for role, column in names_by_role.items():
            if column not in header:
                names = ", ".join(map(repr, header)) or "none"
                option = f"--{role}-column".replace(" ", "-") if "extra" not in role else "--extra-column"
                raise SourceError(
                    f"{self.path} has no column {column!r} for the {role}; it has {names:.1000}; "
                    f"name the right column with {option}{', or no column with an empty name' * (role == 'label')}"
                )
        if next(self.rows(), None) is None:
            raise SourceError(f"{self.path} has columns and no row; add one row per image")

    def entries(self, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject for each row; does not call `on_hidden`.

        Raises:
          SourceError: the table is damaged or truncated, with the position, or names images in other buckets.
        """
        yield from refuse_other_buckets(self._entries(), self.path, self.buckets)

    def _entries(self) -> Iterator[ImageRef | Reject]:
        kinds = extra_kinds((row for _, row in self.rows()), self.columns.extra, self._cell_kind)
        reader = RowReader(columns=self.columns, base=self.base, kinds=kinds)
        for number, row in self.rows():
            yield reader.entry(row, f"{self.number_name} {number}", self._fault(row))

    def _fault(self, row: Row) -> str:
        """Returns the fault of a complete row; empty when it has none."""
        return ""

    def _cell_kind(self, value: Any) -> type:
        return value_kind(value, self.path)


class CsvTable(Table):
    """A UTF-8 CSV file with a header row, delimited by commas, semicolons or tabs.

    A byte order mark and quoted cells are supported.
    """

    def header(self) -> list[str]:
        """See `Table`."""
        with self._open() as stream:
            return list(self._reader(stream).fieldnames or [])

    def rows(self) -> Iterator[tuple[int, Row]]:
        """See `Table`; the number is that of the last line of the row."""
        last_line = 0
        with self._open() as stream:
            try:
                reader = self._reader(stream)
                last_line = reader.line_num if reader.fieldnames else 0
                for row in reader:
                    if reader.line_num > last_line + 1:
                        self._check_quotes(row, last_line + 1, reader.line_num)
                    last_line = reader.line_num
                    yield last_line, row
            except (UnicodeDecodeError, csv.Error, OSError) as error:
                raise SourceError(f"{self.path} cannot be read past line {last_line}: {_one_line(error)}") from error

    @functools.cached_property
    def _delimiter(self) -> str:
        with self._open() as stream:
            header = next(lines(stream, self.path), "")
        if _EXCEL_LINE.match(header):
            raise SourceError(f"{self.path} begins with {header.strip()!r}, which only Excel reads; remove that line")
        return detect_delimiter(header, self.columns.image)

    def _check_quotes(self, row: Row, first_line: int, last_line: int) -> None:
        if line := enclosed_row(row, self.columns.image, self.base, self._delimiter):
            cell = f"{self.path} has a cell between the lines {first_line} and {last_line}"
            raise SourceError(f"{cell} that contains the row {line[:60]!r}; {_QUOTE_ADVICE}")

    def _reader(self, stream: io.TextIOBase) -> csv.DictReader:
        # Strict: otherwise a cell with an unclosed quote would contain all following rows.
        return csv.DictReader(
            _without_nul(lines(stream, self.path)), restkey=_EXTRA_CELLS, delimiter=self._delimiter, strict=True
        )

    def _open(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(storage.open_read(self.path), encoding="utf-8-sig", newline="")

    def _fault(self, row: Row) -> str:
        # It is unknown which cell is missing or surplus, so every cell may be in the wrong column.
        width = len(row) - (_EXTRA_CELLS in row)
        cells = width + len(row.get(_EXTRA_CELLS, ())) - sum(value is None for value in row.values())
        if cells == width:
            return ""
        delimiter = DELIMITERS[self._delimiter]
        return f"the row has {cells} cells, the header {width}; quote cells that hold {delimiter}"

    def _cell_kind(self, value: Any) -> type:
        # A cell with a leading zero or an underscore is a code, not a number.
        cell = value.strip()
        if _INTEGER.fullmatch(cell):
            return super()._cell_kind(int(cell))
        return float if NUMBER.fullmatch(cell) else str


class JsonlTable(Table):
    """A UTF-8 file with a JSON object per line; its columns are the keys of the first object."""

    def header(self) -> list[str]:
        """See `Table`."""
        first_row = next(self.rows(), None)
        return list(first_row[1]) if first_row else []

    def rows(self) -> Iterator[tuple[int, Row]]:
        """See `Table`."""
        number = 0
        with io.TextIOWrapper(storage.open_read(self.path), encoding="utf-8-sig") as stream:
            try:
                for number, line in enumerate(lines(stream, self.path), 1):
                    if line.strip():
                        yield number, self._parse_object(line, number)
            except (UnicodeDecodeError, OSError) as error:
                raise SourceError(f"{self.path} cannot be read past line {number}: {_one_line(error)}") from error

    def _parse_object(self, line: str, number: int) -> Row:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{self.path} line {number} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise SourceError(f"{self.path} line {number} holds {line.strip()[:40]!r}; it must hold a JSON object")
        return values


class ParquetTable(Table):
    """A Parquet file; only the named columns are read, in batches of limited memory."""

    number_name: ClassVar[str] = "row"

    def header(self) -> list[str]:
        """See `Table`."""
        with storage.open_read(self.path) as stream:
            return list(pq.read_schema(stream).names)

    def rows(self) -> Iterator[tuple[int, Row]]:
        """See `Table`."""
        number = 0
        try:
            with storage.open_read(self.path) as stream:
                for row in parquet.rows_of(stream, self._used_columns, self._batch_rows):
                    number += 1
                    yield number, row
        # Arrow checks values when it converts them to Python: text may not be UTF-8, times may be out of range.
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise SourceError(f"{self.path} cannot be read past row {number}: {_one_line(error)}") from error

    @property
    def _used_columns(self) -> list[str]:
        return sorted(set(self.columns.named().values()))

    @functools.cached_property
    def _batch_rows(self) -> int:
        with storage.open_read(self.path) as stream:
            return parquet.batch_rows(stream, self._used_columns)


def _without_nul(text: Iterator[str]) -> Iterator[str]:
    """Yields the lines; raises `csv.Error` for a null character, which the csv module accepts from Python 3.11 on."""
    for line in text:
        if "\0" in line:
            raise csv.Error("line contains NUL")
        yield line


def _one_line(error: Exception) -> str:
    """Returns the message of an error as a single line, with advice; messages of Arrow have several lines."""
    advice = ""
    if isinstance(error, UnicodeDecodeError):
        advice = "; save it as UTF-8"
    elif isinstance(error, csv.Error) and "NUL" not in str(error):
        advice = f"; {_QUOTE_ADVICE}"
    return " ".join(str(error).split()) + advice


TABLES: dict[str, type[Table]] = {"csv": CsvTable, "jsonl": JsonlTable, "parquet": ParquetTable}
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_MAX_LINE = 16 << 20  # characters; lines of polygons have a few hundred thousand


def lines(stream: io.TextIOBase, path: str) -> Iterator[str]:
    """Yields the lines of a table, one in memory at a time.

    Args:
      stream: text of the table.
      path: path of the table, for errors.

    Raises:
      SourceError: a line is longer than allowed; it is not read to its end.
    """
    number = 0
    while line := stream.readline(_MAX_LINE + 1):
        number += 1
        if len(line) > _MAX_LINE:
            raise SourceError(
                f"{path} line {number} has more than {_MAX_LINE} characters; end each row of a table with a line end"
            )
        yield line


def detect_delimiter(header: str, column: str) -> str:
    """Returns the delimiter of a table: the one with which the header has `column`, else the one with the most cells.

    Args:
      header: first line of the table.
      column: name of a column that the table must have.
    """
    cells = {mark: _split_cells(header, mark) for mark in DELIMITERS}
    return next((mark for mark in DELIMITERS if column in cells[mark]), max(cells, key=lambda mark: len(cells[mark])))


def enclosed_row(row: Mapping[str, Any], column: str, base: str, delimiter: str) -> str:
    """Returns the first line inside a quoted cell that is, or starts, another row; empty without such a line.

    An unclosed quote extends to the next quote, and the images of the rows between them would be lost silently. A cell
    may have several lines, but a line with an image in the image column is a row.

    Args:
      row: column -> cell; cells beyond the header are a list.
      column: name of the image column.
      base: directory of relative image paths.
      delimiter: delimiter of the table.
    """
    image_index = list(row).index(column)
    for text in row.values():
        for line in text.splitlines()[1:] if isinstance(text, str) else ():
            cells = _split_cells(line, delimiter)
            if len(cells) >= min(2, len(row)) and _names_image(cells, image_index, base):
                return line
    return _second_row(row, image_index, base, delimiter)


def _second_row(row: Mapping[str, Any], image_index: int, base: str, delimiter: str) -> str:
    """Returns the last line of a cell whose line end splits the row into two complete rows; empty without one."""
    extra_cells = [cell for cells in row.values() if isinstance(cells, list) for cell in cells]
    named_cells = [cell for cell in row.values() if isinstance(cell, str)]
    width, cells = len(row) - bool(extra_cells), [*named_cells, *extra_cells]
    for index, text in enumerate(cells):
        first_line, *_, last_line = text.splitlines() if "\n" in text.strip() else ("", "")
        # Neither row has a quoted cell, whose quotes would have ended this cell.
        new_rows = ([*cells[:index], *first_line.split(delimiter)], [*last_line.split(delimiter), *cells[index + 1 :]])
        if all(len(candidate) == width and _names_image(candidate, image_index, base) for candidate in new_rows):
            return last_line
    return ""


def _split_cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # reading the table raises the error, with the line number
        return []


def _names_image(cells: list[str], image_index: int, base: str) -> bool:
    path = cells[image_index].strip(' "') if len(cells) > image_index else ""
    suffix = path.rpartition(".")[2].lower()
    return suffix in IMAGE_SUFFIXES or (bool(path) and os.path.isfile(storage.join(base, path)))
