from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from beam_jobs.dataset import schemas
from beam_jobs.rejects import Reject
from beam_jobs.stages import reject_table
from beam_jobs.stages.reject_table import first_rows, from_rejects, write_sorted

REJECT = Reject(key="b", uri="b.jpg", stage="examine", reason="too_small", detail="7x7 pixels")


def keys_of(path) -> list[tuple[str, str]]:
    return [(row["key"], row["uri"]) for rows in schemas.read_rejects(str(path)) for row in rows.to_pylist()]


@pytest.fixture(params=["in memory", "on a disk"])
def _sorting(request, monkeypatch):
    if request.param == "on a disk":
        monkeypatch.setattr(reject_table, "_MEMORY_BYTES", 1)


@pytest.mark.usefixtures("_sorting")
def test_rejects_of_all_stages_are_in_the_order_of_key_and_uri(tmp_path):
    path = str(tmp_path / "rejects.parquet")
    names = [("c", "1"), ("a", "2"), ("\u00e4", "x"), ("Z", "x"), ("a", "1")]
    tables = [from_rejects([REJECT]), from_rejects([replace(REJECT, key=key, uri=uri) for key, uri in names])]
    write_sorted(path, tables)
    assert keys_of(path) == sorted([*names, ("b", "b.jpg")])
    assert [row["key"] for row in first_rows(path, 3)] == ["Z", "a", "a"]


@pytest.mark.usefixtures("_sorting")
def test_reasons_are_counted_most_frequent_first(tmp_path):
    reasons = ("too_small", "no_label", "no_label", "animated", "too_small")
    rejects = [replace(REJECT, key=str(number), reason=reason) for number, reason in enumerate(reasons)]
    tables = [from_rejects([reject]) for reject in reversed(rejects)]
    counts = write_sorted(str(tmp_path / "rejects.parquet"), tables)
    assert list(counts.items()) == [("too_small", 2), ("no_label", 2), ("animated", 1)]


def test_a_database_sorts_as_memory_does(tmp_path, monkeypatch):
    order = np.random.default_rng(0).permutation(3000)
    rows = from_rejects([replace(REJECT, key=f"{number:06}", bytes=int(number)) for number in order])
    tables = [rows.slice(0, 1000), rows.slice(1000)]
    write_sorted(str(tmp_path / "few"), tables)
    monkeypatch.setattr(reject_table, "_MEMORY_BYTES", 1)
    write_sorted(str(tmp_path / "many"), tables)
    assert schemas.read(str(tmp_path / "many")).equals(schemas.read(str(tmp_path / "few")))


def test_long_names_need_a_larger_database_and_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(reject_table, "_MEMORY_MB", 50)
    monkeypatch.setattr(reject_table, "_MEMORY_BYTES", 1)
    names = [f"{number:06}" + "x" * 3000 for number in np.random.default_rng(0).permutation(20_000)]
    tables = (
        from_rejects([replace(REJECT, key=name) for name in names[at : at + 2000]]) for at in range(0, 20_000, 2000)
    )
    path = str(tmp_path / "rejects.parquet")
    assert write_sorted(path, tables) == {"too_small": 20_000}
    keys = pa.chunked_array([column for table in schemas.read_groups(path) for column in table["key"].chunks])
    assert keys.to_pylist() == sorted(names)


def test_a_file_is_written_from_itself(tmp_path):
    path = str(tmp_path / "rejects.parquet")
    write_sorted(path, [from_rejects([REJECT])])
    write_sorted(path, [from_rejects([replace(REJECT, key="a")]), *schemas.read_groups(path)])
    assert [key for key, _ in keys_of(path)] == ["a", "b"]


def test_without_rejects_there_is_an_empty_file(tmp_path):
    path = str(tmp_path / "rejects.parquet")
    assert write_sorted(path, []) == {}
    assert pa.concat_tables(schemas.read_rejects(path)).equals(schemas.REJECTS.empty_table())
