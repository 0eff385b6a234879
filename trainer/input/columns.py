"""Ops of Transform on user columns, such as `price: scale` and `city: vocabulary(100)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from pydantic import PlainSerializer
from pydantic.dataclasses import dataclass as pydantic_dataclass

from beam_jobs import errors
from beam_jobs.common.settings import STRICT, Options
from beam_jobs.common.strings import parse_call, unknown
from beam_jobs.dataset.schemas import check_column
from beam_jobs.errors import OptionError

CONFIG_KEY = "transform"


@dataclass(frozen=True)
class Scale:
    """Scales numbers to float32 0-1: minimum and maximum of the training split become 0 and 1; others are clipped."""


@dataclass(frozen=True)
class Zscore:
    """Converts numbers to float32: (x - mean) / population standard deviation, both of the training split."""


@dataclass(frozen=True)
class Bucketise:
    """Converts numbers to int64 0 to `buckets` - 1, by quantiles of the training split."""

    buckets: int


@dataclass(frozen=True)
class Vocabulary:
    """Converts text or integers to int64: rank among the `top` most frequent, others hashed to `oov` more numbers."""

    top: int
    oov: int = 1


@dataclass(frozen=True)
class Hashed:
    """Converts text or whole numbers to int64 0 to `buckets` - 1, by a hash that does not depend on the data."""

    buckets: int


ColumnOp: TypeAlias = Scale | Zscore | Bucketise | Vocabulary | Hashed
COLUMN_OPS: dict[str, type[ColumnOp]] = {
    "scale": Scale,
    "zscore": Zscore,
    "bucketise": Bucketise,
    "vocabulary": Vocabulary,
    "hashed": Hashed,
}
_MINIMUMS = {"buckets": 2, "top": 1, "oov": 1}


@pydantic_dataclass(frozen=True, kw_only=True, config=STRICT)
class TransformOptions(Options):
    """Options of Transform.

    Attributes:
      columns: name of a user column, without `extra/` -> one of `COLUMN_OPS` with its arguments, such as
        `vocabulary(100, oov=4)`.

    Raises:
      OptionError: an op is unknown or does not fit its arguments; the message names the column.
    """

    columns: Annotated[
        Mapping[str, str], PlainSerializer(lambda columns: dict(sorted(columns.items())), when_used="json")
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, spec in self.columns.items():
            parse_column(name, spec)

    def ops(self) -> dict[str, ColumnOp]:
        """Returns column -> op, in order of the names."""
        return {name: parse_column(name, self.columns[name]) for name in sorted(self.columns)}

    def check(self, available: Collection[str]) -> None:
        """Checks that the columns exist.

        Args:
          available: user columns of the dataset, without `extra/`.

        Raises:
          OptionError: a column does not exist.
        """
        for name in self.columns:
            check_column(name, available, "transform.columns")


def parse_column(name: str, spec: object) -> ColumnOp:
    """Parses an op such as `hashed(1000)`.

    Args:
      name: name of the column, for the message.
      spec: name of the op, with its arguments in parentheses if it has any.

    Raises:
      OptionError: there is no such op, or the arguments do not fit it.
    """
    setting = f"transform.columns.{name}"
    try:
        op_name, positional, named = parse_call(str(spec))
    except ValueError as error:
        ops = ", ".join(COLUMN_OPS)
        message = f"{setting} is {spec!r}; it must be one of {ops}, with arguments as in vocabulary(100)"
        raise OptionError(message) from error
    if op_name not in COLUMN_OPS:
        raise OptionError(f"{setting}: {unknown('op', op_name, COLUMN_OPS)}")
    try:
        op = COLUMN_OPS[op_name](*positional, **named)
    except TypeError as error:
        arguments = ", ".join(item.name for item in dataclasses.fields(COLUMN_OPS[op_name])) or "no argument"
        raise OptionError(f"{setting}: {spec!r} does not fit; {op_name} takes {arguments}") from error
    for argument, value in dataclasses.asdict(op).items():
        errors.check_whole(f"{setting}: {argument} of {op_name}", value, _MINIMUMS[argument])
    return op
