from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.dataset import shards


def cut(sizes: list[int], count: int, batch: int = 1 << 20) -> list[int]:
    """Returns `count + 1` edges: run i is `[edges[i], edges[i + 1])`."""
    cutter = shards.Cutter(len(sizes), sum(sizes), count)
    starts = range(0, len(sizes), batch)
    cuts = [start + cut for start in starts for cut in cutter.cut(np.array(sizes[start : start + batch]))]
    return [0, *cuts, len(sizes)]


# The golden values below are on disks already. If one of them changes, images move between splits and shards of
# existing datasets, so the change needs a new FORMAT_VERSION in beam_jobs/dataset/manifest.py.


@pytest.mark.parametrize(
    ("purpose", "seed", "text", "expected"),
    [
        (shards.ORDER, 0, "a", 6938488549510239100),
        ("split", 0, "a", 12432390541663060534),
        ("order", 1, "a", 8780822803651758518),
        ("order", 0, "ä/猫.jpg", 11820312846310284257),
        ("split", 10**70, "a", 13823361277005500005),  # the key is longer than blake2b takes
    ],
)
def test_hashes64_gives_the_values_that_are_on_disk(purpose, seed, text, expected):
    assert shards.hashes64(purpose, seed, [text]).tolist() == [expected]


@pytest.mark.parametrize("count", [0, 8192, 8193])
def test_the_texts_of_a_column_come_in_order(count):
    texts = [f"text {number}" for number in range(count)]
    assert list(shards.texts(pa.array(["before", *texts])[1:])) == texts


@pytest.mark.parametrize(
    ("index", "count", "name"),
    [(15, 16, "data-00015-of-00016.tfrecord"), (99_999, 100_000, "data-99999-of-100000.tfrecord")],
)
def test_a_shard_is_named_by_its_place(index, count, name):
    assert shards.shard_name(index, count) == name


@pytest.mark.parametrize(("index", "count"), [(16, 16), (-1, 16), (0, 0)])
def test_no_shard_is_named_past_the_count(index, count):
    with pytest.raises(ValueError, match=rf"^shard index {index} is not in 0\.\.{count - 1}$"):
        shards.shard_name(index, count)


@pytest.mark.parametrize(
    ("total_bytes", "records", "shard_bytes", "expected"),
    [
        (0, 0, 128e6, 1),
        (128_000_000, 1000, 128e6, 1),
        (128_000_001, 1000, 128e6, 2),
        (10**12, 3, 128e6, 3),  # no shard without a record
        (147_102_760_960, 1_281_167, 1e9, 148),
    ],
)
def test_shard_count_fills_shards_of_about_the_aimed_size(total_bytes, records, shard_bytes, expected):
    assert shards.shard_count(total_bytes, records, shard_bytes) == expected


@pytest.mark.parametrize(
    ("sizes", "count", "edges"),
    [
        ([5], 1, [0, 1]),
        ([1, 1, 1, 1, 1], 2, [0, 3, 5]),
        ([9, 1, 1, 1], 2, [0, 1, 4]),
        ([1, 1, 1, 9], 2, [0, 3, 4]),
        ([1, 1, 1, 100], 4, [0, 1, 2, 3, 4]),
        ([0, 0, 0], 2, [0, 1, 3]),
    ],
)
def test_cut_balances_bytes(sizes, count, edges):
    assert cut(sizes, count) == edges


@pytest.mark.parametrize(("sizes", "count"), [([1], 2), ([1, 1], 0)])
def test_cut_refuses_runs_without_records(sizes, count):
    with pytest.raises(ValueError, match=rf"^{len(sizes)} records cannot fill {count} shards$"):
        cut(sizes, count)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=60), st.data())
def test_cut_leaves_no_run_empty_and_every_run_within_one_record_of_its_share(sizes, data):
    count = data.draw(st.integers(1, len(sizes)))
    edges = cut(sizes, count)
    assert cut(sizes, count, batch=data.draw(st.integers(1, len(sizes)))) == edges
    assert len(edges) == count + 1
    assert (edges[0], edges[-1]) == (0, len(sizes))
    runs = list(itertools.pairwise(edges))
    assert all(start < stop for start, stop in runs)
    # Times count, so that the comparison stays in integers.
    assert all(abs(sum(sizes[start:stop]) * count - sum(sizes)) <= max(sizes) * count for start, stop in runs)
