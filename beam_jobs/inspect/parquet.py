"""A Parquet table, such as the rejects of an ingest: its columns and its first rows."""

from __future__ import annotations

from collections import Counter
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from beam_jobs import storage
from beam_jobs.common import strings
from beam_jobs.common.strings import plural
from beam_jobs.dataset.schemas import REJECTS
from beam_jobs.errors import CorruptDataset
from beam_jobs.inspect.summary import shown_value
from beam_jobs.inspect.view import View
from beam_jobs.storage import parquet

COLUMNS = ("column", "type")
_MAGIC = b"PAR1"
_BATCH_ROWS = 64  # images may be among the columns
_SHOWN_CHARACTERS = 300  # enough for the sentences in the details of a reject
_SHOWN_ITEMS = 8


def is_parquet(path: str) -> bool:
    """Returns whether a file starts with the magic bytes of Parquet; False also when it cannot be read."""
    try:
        with storage.open_read(path) as stream:
            return bool(stream.read(len(_MAGIC)) == _MAGIC)
    except OSError:
        return False


def view_table(path: str, shown: int) -> View:
    """Returns the view of a Parquet file.

    Args:
      path: path of the file.
      shown: number of first rows to show.

    Raises:
      CorruptDataset: the file cannot be read.
    """
    try:
        with storage.open_read(path) as stream:
            table = pq.ParquetFile(stream)
            rows, schema = table.metadata.num_rows, table.schema_arrow
            reasons = _count_reasons(stream) if schema.equals(REJECTS) else {}
            first_rows = _first_rows(stream, shown)
        size = storage.size(path)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise CorruptDataset(f"{path} cannot be read as Parquet: {' '.join(str(error).split())}") from error
    columns = list(zip(_column_names(schema), map(str, schema.types), strict=True))
    reasons_text = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    return View(
        headline=f"{plural(rows, 'row')}, {size:,} bytes, Parquet",
        properties=[("reasons", reasons_text)] if reasons else [],
        features=columns,
        feature_columns=COLUMNS,
        records=first_rows,
        values={
            "path": path,
            "rows": rows,
            "bytes": size,
            "columns": dict(columns),
            "reasons": reasons,
            "first": [{name: shown_value(values) for name, values in row.items()} for row in first_rows],
        },
    )


def _column_names(schema: pa.Schema) -> list[str]:
    """Returns the names of all columns; the second column with the same name is shown as `name (2)`."""
    names: dict[str, None] = {}
    for name in schema.names:
        number, shown_name = 1, name
        while shown_name in names:
            number += 1
            shown_name = f"{name} ({number})"
        names[shown_name] = None
    return list(names)


def _count_reasons(stream: BinaryIO) -> dict[str, int]:
    """Returns reason -> number of rejects, the most frequent first."""
    counts: Counter[str] = Counter()
    for batch in parquet.batches(stream, ["reason"]):
        counts.update({str(count["values"]): count["counts"] for count in batch.column(0).value_counts().to_pylist()})
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _first_rows(stream: BinaryIO, shown: int) -> list[dict[str, list[Any]]]:
    rows: list[dict[str, list[Any]]] = []
    if not shown:
        return rows
    for batch in parquet.batches(stream, rows=min(shown, _BATCH_ROWS, parquet.batch_rows(stream))):
        names, count = _column_names(batch.schema), min(batch.num_rows, shown - len(rows))
        rows += (
            {name: _cell_values(column[index]) for name, column in zip(names, batch.columns, strict=True)}
            for index in range(count)
        )
        if len(rows) == shown:
            break
    return rows


def _cell_values(cell: pa.Scalar) -> list[Any]:
    """Returns a cell as a list, like the values of a feature: empty for null, a number, or a line of text."""
    if not cell.is_valid:
        return []
    value = _to_python(cell)
    if isinstance(value, int | float):
        return [value]
    text = strings.line(str(value))
    return [text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"]


def _to_python(cell: pa.Scalar) -> Any:
    """Returns a cell as a Python value; lists are shortened before the conversion: they may have millions of items."""
    if not cell.is_valid:
        return None
    if isinstance(cell, pa.StructScalar):
        return {name: _to_python(cell[name]) for name in cell}
    if isinstance(cell, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        items = [_to_python(cell[index]) for index in range(min(len(cell), _SHOWN_ITEMS))]
        return [*items, *(["..."] if len(cell) > _SHOWN_ITEMS else [])]
    value = cell.as_py()
    return shown_value([value]) if isinstance(value, bytes) else value
