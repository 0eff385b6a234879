"""Tables as sources: CSV, JSON lines, Parquet and COCO json. The first byte of an input says which it is."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.beam_jobs.make_rows import parse_ref
from tests.fuzz import drive

with drive.instrumented(__name__):
    from beam_jobs.dataset import schemas
    from beam_jobs.errors import SourceError
    from beam_jobs.options import TableColumns
    from beam_jobs.sources.coco import CocoSource
    from beam_jobs.sources.table import CsvTable, JsonlTable, ParquetTable
    from beam_jobs.types import ImageRef

_ALL = TableColumns(weight="weight", mask="mask", group="group", split="split", key="key", extra=("age",))
_MANY = TableColumns(labels="labels", extra=("age", "size"))
_COCO = TableColumns(label="", weight="weight", extra=("age",))
KINDS = {
    ord("a"): (CsvTable, TableColumns()),
    ord("b"): (CsvTable, _ALL),
    ord("c"): (JsonlTable, _ALL),
    ord("d"): (JsonlTable, _MANY),
    ord("e"): (ParquetTable, TableColumns(extra=("age",))),
    ord("f"): (ParquetTable, _MANY),
    ord("g"): (CocoSource, _COCO),
}
_FOLDER = tempfile.TemporaryDirectory(prefix="feedline-fuzz-")


def target(data: bytes) -> None:
    """Reads a table; each of its rows becomes a reference that can be stored and read again, or a reject."""
    if not data or data[0] not in KINDS:
        return
    kind, columns = KINDS[data[0]]
    path = Path(_FOLDER.name) / "table"
    path.write_bytes(data[1:])
    source = kind(str(path), columns)
    try:
        source.check()
        entries = list(source.entries())
    except SourceError:
        return
    for entry in entries:
        if isinstance(entry, ImageRef):
            row = schemas.ref_row(entry)
            schemas.pa.Table.from_pylist([row], schemas.REFS)
            assert schemas.ref_row(parse_ref(row)) == row, row
        else:
            schemas.pa.Table.from_pylist([schemas.reject_row(entry)], schemas.REJECTS)


if __name__ == "__main__":
    drive.main(target)
