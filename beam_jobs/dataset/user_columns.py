"""User columns: whether those that options name exist, and which of their numbers a record holds as they are."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs.common.strings import unknown
from beam_jobs.dataset import record, schemas
from beam_jobs.errors import OptionError
from beam_jobs.storage import bounded_json

_FLOAT64_WHOLE = 2**53  # the first whole number that a float64 cannot tell from the next one


def check_column(name: str, known: Collection[str], where: str) -> None:
    """Checks that a user column exists.

    Args:
      name: of the column, without `extra/`.
      known: user columns of the dataset, without `extra/`.
      where: the option that names it, such as `transform.columns`.

    Raises:
      OptionError: it does not.
    """
    if name in known:
        return
    if known:
        raise OptionError(f"{where}: {unknown('user column', name, sorted(known))}")
    plain = name.removeprefix(record.EXTRA_PREFIX)
    raise OptionError(
        f"{where}: there is no user column {name!r}, the images have none; name it in ingest.columns.extra: [{plain}]"
    )


def is_whole(number: float) -> bool:
    """Returns whether a number is a whole one that no float64 has rounded: 2**53 may stand for its neighbour."""
    return isinstance(number, int) or (number.is_integer() and abs(number) < _FLOAT64_WHOLE)


def fits_float32(number: float) -> bool:
    """Returns whether a float32, in which a record holds fractions, keeps a number.

    It keeps a whole number that it is equal to, and a fraction that it is printed as, such as 0.1. NaN is kept.
    """
    nearest = _float32(number)
    if nearest == number or math.isnan(number):
        return True
    return not is_whole(number) and float(str(np.float32(nearest))) == number


@dataclass(kw_only=True)
class Float32Changes:
    """What float32 does to the numbers of a user column.

    Attributes:
      changed: numbers that it changes.
      numbers: all of them.
      example: the first that it changes, as the source has it.
    """

    changed: int = 0
    numbers: int = 0
    example: float = 0.0

    def warning(self, name: str) -> str:
        """Returns the sentence about the column of this name."""
        return (
            f"float32, in which records hold fractions, changes {self.changed:,} of {self.numbers:,} numbers of the "
            f"user column {name!r}, such as {self.example!r} to {_float32(self.example)!r}; "
            "write identifiers as text, and round or scale other numbers"
        )


def float32_changes(cells: Iterable[str]) -> dict[str, Float32Changes]:
    """Returns what float32 changes, by user column; columns of which it changes nothing are left out.

    Args:
      cells: of the column `extra` of a table of images.
    """
    columns: dict[str, Float32Changes] = {}
    for text, images in Counter(cells).items():
        for name, value in schemas.cell(text).items():
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, float):
                    _count(columns.setdefault(name, Float32Changes()), number, images)
    return {name: column for name, column in sorted(columns.items()) if column.changed}


def mismatch(cells: Any, values: Mapping[str, list]) -> str:
    """Returns how the user columns of a record differ from those of its row; empty when they agree.

    They agree when the record holds the nearest float32 of each fraction and equals the row in all else.

    Args:
      cells: of the column `extra` of the row, as it was read.
      values: feature name -> values of the user columns of the record.
    """
    try:
        expected = {
            record.EXTRA_PREFIX + name: record.extra_feature(name, one)
            for name, one in bounded_json.parse(cells).items()
        }
    except (TypeError, ValueError, AttributeError):
        return f"it has {cells!r:.60} for user columns, which no ingest writes"
    for name in sorted(values.keys() | expected.keys()):
        kind, wanted = expected.get(name, ("", ()))
        stored = [_float32(number) for number in wanted] if kind == "float" else [*wanted]
        # As text, because NaN differs from itself, and 1 does not from 1.0.
        if repr(found := values.get(name, [])) != repr(stored):
            return f"it has {[*wanted]!r:.60} for {name!r}, the record {found!r:.60}"
    return ""


def _count(column: Float32Changes, number: float, images: int) -> None:
    column.numbers += images
    if not fits_float32(number):
        column.example = column.example if column.changed else number
        column.changed += images


def _float32(number: Any) -> float:
    return array("f", (number,))[0]
