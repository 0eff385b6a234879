"""CSV tables: one row an image, columns named by the options."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

from beam_jobs.errors import SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources.local import reference
from beam_jobs.types import ImageRef, Reject

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][+-]?[0-9]+)?(?<=[0-9.])")


@dataclass(frozen=True)
class CsvTable:
    """A UTF-8 CSV file with a header row; a byte order mark and quoted commas are fine.

    Image paths are absolute or relative to the table. They are the user's own word, so they may lead anywhere.
    """

    path: str
    columns: TableColumns

    def check(self) -> None:
        """Raises `SourceError` unless every named column exists and there is at least one row."""
        try:
            with self._open() as stream:
                reader = csv.DictReader(stream)
                header = reader.fieldnames or []
                first = next(reader, None)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise SourceError(f"{self.path} cannot be read as a UTF-8 CSV table: {error}") from error
        twice = sorted({name for name in header if header.count(name) > 1} & set(self.columns.named().values()))
        if twice:
            raise SourceError(f"{self.path} has the column {twice[0]!r} more than once; rename all but one")
        for role, column in self.columns.named().items():
            if column not in header:
                known = ", ".join(map(repr, header)) or "none"
                raise SourceError(f"{self.path} has no column {column!r} for the {role}; it has {known}")
        if first is None:
            raise SourceError(f"{self.path} has a header and no row; add one row an image")

    @property
    def base(self) -> str:
        """Directory that relative image paths start from."""
        return os.path.dirname(self.path) or "."

    def entries(self) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject a row.

        Raises:
          SourceError: the table breaks off half way, with the line.
        """
        types = self._extra_types()
        for row in self._rows():
            yield self._entry(row, types)

    def _entry(self, row: dict[str, str], types: dict[str, type]) -> ImageRef | Reject:
        columns = self.columns
        image = _cell(row, columns.image)
        ref = ImageRef(
            key=_cell(row, columns.key) or image,
            uri=image,
            label=_cell(row, columns.label),
            group=_cell(row, columns.group),
            split=_cell(row, columns.split),
            extra={name: kind(_cell(row, name)) for name, kind in types.items() if _cell(row, name)},
        )
        return reference(os.path.join(self.base, image), ref)

    def _extra_types(self) -> dict[str, type]:
        """Returns the narrowest of int, float and str that fits every cell of each extra column, in one pass."""
        types: dict[str, type] = dict.fromkeys(self.columns.extra, int)
        if not types:
            return types
        for row in self._rows():
            for name, kind in types.items():
                if cell := _cell(row, name):
                    types[name] = _widen(kind, cell)
        return types

    def _rows(self) -> Iterator[dict[str, str]]:
        with self._open() as stream:
            reader = csv.DictReader(stream)
            try:
                yield from reader
            except (UnicodeDecodeError, csv.Error) as error:
                raise SourceError(f"{self.path} cannot be read past line {reader.line_num}: {error}") from error

    def _open(self) -> TextIO:
        return open(self.path, encoding="utf-8-sig", newline="")


def _cell(row: dict[str, str], column: str) -> str:
    return (row[column] or "").strip() if column else ""


def _widen(kind: type, cell: str) -> type:
    # A leading zero or an underscore makes a code of it, not a number, and a record holds no integer beyond int64.
    if kind is int and _INTEGER.fullmatch(cell) and -(1 << 63) <= int(cell) < 1 << 63:
        return int
    return float if kind is not str and _NUMBER.fullmatch(cell) and not _is_large_integer(cell) else str


def _is_large_integer(cell: str) -> bool:
    return bool(_INTEGER.fullmatch(cell)) and not -(1 << 63) <= int(cell) < 1 << 63
