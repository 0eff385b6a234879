"""A Parquet file that would run code where it is opened: one that does is made, and every reader refuses it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.dataset import schemas
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import CorruptDataset, SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources.table import ParquetTable
from tests import image_table
from tests.command import python

_METADATA = {b"ARROW:extension:name": b"arrow.py_extension_type"}


class Touch:
    """When it is unpickled, a file appears."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


@pytest.fixture
def trap(tmp_path) -> tuple[Path, Path]:
    """A table whose column brings a pickle along, and the file that appears when it is unpickled."""
    proof = tmp_path / "it ran"
    metadata = {**_METADATA, b"ARROW:extension:metadata": pickle.dumps(Touch(proof), 0)}
    column = pa.field("image", pa.binary(), metadata=metadata)
    pq.write_table(pa.table([pa.array([b"a.jpg"])], schema=pa.schema([column])), tmp_path / "table.parquet")
    return tmp_path / "table.parquet", proof


_READ = """
from beam_jobs.options import TableColumns
from beam_jobs.sources.table import ParquetTable
import sys
try:
    ParquetTable(sys.argv[1], TableColumns()).header()
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    "code", [_READ, "import apache_beam" + _READ, _READ.replace("import sys", "import sys, apache_beam")]
)
def test_it_is_refused_whether_beam_comes_first_later_or_not_at_all(trap, code):
    path, proof = trap
    printed = python(code, path).stdout
    assert printed.startswith("ArrowInvalid a column has a pickled Python type, which would run code;")
    assert not proof.exists()


def test_a_source_and_a_table_of_a_dataset_are_refused_in_one_line(trap):
    path, proof = trap
    table = ParquetTable(str(path), TableColumns())
    with pytest.raises(SourceError, match=r"cannot be read as a PARQUET table: a column has a pickled Python type.*$"):
        table.check()
    with pytest.raises(SourceError, match=r"cannot be read past row 0: a column has a pickled Python type.*$"):
        list(table.rows())
    with pytest.raises(CorruptDataset, match=r"cannot be read: a column has a pickled Python type.*$"):
        list(schemas.read_rejects(str(path)))
    assert not proof.exists()


def test_a_dataset_with_such_a_table_is_verified_without_running_it(dataset, trap):
    path, proof = trap
    table = image_table.files(dataset)[0]
    table.write_bytes(path.read_bytes())
    (problem,) = verify(str(dataset)).problems
    assert problem.startswith(f"{table} has changed since it was published")
    assert not proof.exists()
