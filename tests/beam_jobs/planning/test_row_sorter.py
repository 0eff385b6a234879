"""Rows are sorted by place, hash and key, in memory or through a file, within the limits of a batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from beam_jobs.errors import DiskError
from beam_jobs.planning import row_sorter
from beam_jobs.planning.row_sorter import RowSorter

PLACES = 3


def rows(count: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "place": random.integers(0, PLACES, count),
            "order_hash": random.integers(0, 2**64, count, np.uint64),
            "key": [f"key-{number}" for number in random.permutation(count)],
            "values": [["a"] * (number % 3) for number in range(count)],
        }
    )


def parts_of(tables: list[pa.Table], path, images: int, table_bytes: int, memory_bytes: int) -> list[list[pa.Table]]:
    """Returns the parts of the sorted rows of each place."""
    with (
        ThreadPoolExecutor(2) as pool,
        closing(RowSorter(str(path), images, table_bytes, memory_bytes, pool)) as sorter,
    ):
        for table in tables:
            sorter.add(table)
        sorter.finish()
        return [list(sorter.read(place)) for place in range(PLACES)]


def sort(tables: list[pa.Table], path, memory_bytes: int = 1 << 30) -> list[pa.Table]:
    """Returns the sorted rows of each place."""
    found = parts_of(tables, path, sum(map(len, tables)), 0, memory_bytes)
    return [pa.concat_tables([tables[0].slice(0, 0), *parts]) for parts in found]


@pytest.mark.parametrize("written", ["none", "some", "all"])
def test_rows_of_each_place_are_in_the_order_of_hash_and_key(written, tmp_path, monkeypatch):
    tables = [rows(1000, seed) for seed in range(5)]
    monkeypatch.setattr(row_sorter, "_GATHER_BYTES", tables[0].nbytes // 3)
    memory = tables[0].nbytes * {"none": 21, "some": 8, "all": 1}[written]
    keys = [(name, "ascending") for name in ("place", "order_hash", "key")]
    expected = pa.concat_tables(tables).sort_by(keys)
    assert pa.concat_tables(sort(tables, tmp_path / "rows", memory)).equals(expected)
    assert (tmp_path / "rows").exists() is (written != "none")


def test_equal_hashes_are_ordered_by_key(tmp_path):
    table = pa.table({"place": [0] * 3, "order_hash": pa.array([7] * 3, pa.uint64()), "key": ["c", "a", "b"]})
    assert sort([table], tmp_path / "rows")[0]["key"].to_pylist() == ["a", "b", "c"]


def test_no_rows_and_no_rows_of_a_place(tmp_path):
    table = rows(10).filter(pc.equal(rows(10)["place"], 1))
    assert [len(part) for part in sort([table], tmp_path / "rows")] == [0, len(table), 0]


@pytest.mark.parametrize("is_known", [True, False], ids=["size", "first rows"])
def test_few_rows_are_sorted_at_once(tmp_path, is_known):
    table = rows(20_000)
    images, table_bytes = (0, table.nbytes) if is_known else (len(table), 0)
    found = parts_of([table], tmp_path / "rows", images, table_bytes, table.nbytes // 2)
    assert max(part.nbytes for parts in found for part in parts) < table.nbytes / 10


def written_sizes(monkeypatch, path, memory_bytes: int) -> list[int]:
    """Returns the size of each part of 10,000 rows that is written to the file."""
    sizes = []
    append = RowSorter._append
    monkeypatch.setattr(RowSorter, "_append", lambda self, part: sizes.append(part.nbytes) or append(self, part))
    tables = [rows(500, seed) for seed in range(20)]
    parts_of(tables, path, 10_000, sum(table.nbytes for table in tables), memory_bytes)
    return sizes


def test_with_little_memory_the_file_has_few_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(row_sorter, "_MAX_DIVISIONS", 4)
    monkeypatch.setattr(row_sorter, "_MAX_RANGES", 5)
    assert 0 < len(written_sizes(monkeypatch, tmp_path / "rows", 1000)) <= 4 * 5 * PLACES


def test_with_much_memory_no_batch_is_too_large_for_arrow(tmp_path, monkeypatch):
    monkeypatch.setattr(row_sorter, "_MAX_BYTES", 50_000)
    assert 0 < max(written_sizes(monkeypatch, tmp_path / "rows", 1 << 50)) < 2 * 50_000


def test_a_full_disk_is_one_line():
    with pytest.raises(DiskError, match="No space left on device while planning"):
        sort([rows(10_000)], "/dev/full", 1 << 16)
