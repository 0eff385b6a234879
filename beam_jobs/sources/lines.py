"""Lines of tables, and rows that a quote out of place has swallowed."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping
from typing import Any

from beam_jobs import storage
from beam_jobs.errors import SourceError
from beam_jobs.sources.webdataset import IMAGE_SUFFIXES

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

    A quote that nobody closed reaches to the next one, and the images of the rows between them would be lost without a
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
    held = [cell for cell in row.values() if isinstance(cell, str)]
    width, cells = len(row) - bool(beyond), [*held, *beyond]
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
    except csv.Error:  # whoever reads the table says so, and where
        return []


def _names_image(cells: list[str], place: int, base: str) -> bool:
    path = cells[place].strip(' "') if len(cells) > place else ""
    suffix = path.rpartition(".")[2].lower()
    return suffix in IMAGE_SUFFIXES or (bool(path) and os.path.isfile(storage.join(base, path)))
