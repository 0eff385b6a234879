from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from beam_jobs.dataset import manifest
from beam_jobs.errors import CorruptDataset
from tests.trainer.batches import (
    RANDOM,
    SMALL,
    flat,
    options,
    order,
    order_of,
    read,
)
from tests.trainer.conftest import keys_of, rows_of
from trainer.input import index as record_index
from trainer.input.order import make_order
from trainer.input.position import Position
from trainer.input_fn import epoch_records, make_dataset


@pytest.mark.parametrize(("shuffle_mb", "parse_batch"), [(0, 1), (0, 64), (0.02, 4), (64, 64)])
def test_a_record_that_cannot_be_read_costs_its_window_and_no_record_before(shades, tmp_path, shuffle_mb, parse_batch):
    directory = _copy_with_torn_shard(shades, tmp_path, number=2)
    given = options(parse_batch=parse_batch, shuffle_mb=shuffle_mb)
    stream = flat(make_dataset(str(directory), "train", given, training=False))
    keys = []
    with pytest.raises(tf.errors.DataLossError, match="truncated record"):
        keys.extend(seen.key for seen in stream)
    assert keys == keys_of(shades, "train")[: len(keys)]
    good = sum(row["shard"] <= 2 for row in rows_of(shades, "train")) - 1
    window = 1 if shuffle_mb == 0 else min(96, order_of(shades, given).window_positions)
    assert len(keys) == good // window * window


def _copy_with_torn_shard(source: Path, tmp_path: Path, number: int) -> Path:
    directory = Path(shutil.copytree(source, tmp_path / "torn"))
    shard = sorted((directory / "Split-train").iterdir())[number]
    shard.write_bytes(shard.read_bytes()[:-5])
    return directory


@pytest.mark.parametrize("training", [True, False])
def test_a_torn_shard_is_an_error_and_no_stall(shades, tmp_path, training):
    directory = _copy_with_torn_shard(shades, tmp_path, number=3)
    with pytest.raises(tf.errors.DataLossError):
        read(directory, options(), training)


@pytest.mark.parametrize("training", [True, False])
def test_a_damaged_record_is_an_error(dataset, training):
    shard = sorted((dataset / "Split-train").iterdir())[1]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 0xFF
    shard.write_bytes(data)
    with pytest.raises(tf.errors.DataLossError, match="corrupted record"):
        read(dataset, options(), training)


def test_a_missing_shard_is_an_error(dataset):
    shard = min((dataset / "Split-train").iterdir())
    shard.unlink()
    with pytest.raises(tf.errors.NotFoundError, match=re.escape(shard.name)):
        read(dataset, options())


# --- damaged records


@pytest.fixture
def damaged(noise, tmp_path) -> tuple[Path, dict]:
    """A copy of `noise` in which one byte of one record is another; and the row of that record."""
    directory = Path(shutil.copytree(noise, tmp_path / "damaged"))
    row = rows_of(noise, "train")[30]
    _damage(directory, row)
    return directory, row


def _damage(directory: Path, row: dict) -> None:
    shard = sorted((directory / "Split-train").iterdir())[row["shard"]]
    data = bytearray(shard.read_bytes())
    data[row["offset"] + 100] ^= 0xFF
    shard.write_bytes(data)


def test_a_damaged_record_within_the_budget_is_left_out_and_the_order_is_that_of_the_rest(damaged):
    directory, row = damaged
    given = options(train_ops=RANDOM, max_corrupt_records=1, **SMALL)
    rest = [key for key in keys_of(directory, "train") if key != row["key"]]
    assert order(directory, given, training=False) == rest
    assert epoch_records(str(directory), "train", given, training=True) == 60
    dataset = manifest.load(str(directory))
    kept = record_index.load(str(directory), dataset, "train").without({30})
    numbers, _ = make_order(kept, dataset.labels, given, True).epoch(tf.constant(0, tf.int64))
    whole = read(directory, given, epochs=2)
    assert [seen.key for seen in whole[:60]] == [rest[number] for number in numbers.numpy()]
    assert read(directory, given, epochs=2, start=Position(records=50)) == whole[50:]


def test_one_damaged_record_more_than_the_budget_is_an_error_that_names_it(damaged):
    directory, row = damaged
    other = rows_of(directory, "train")[7]
    _damage(directory, other)
    with pytest.raises(CorruptDataset) as caught:
        make_dataset(str(directory), "train", options(max_corrupt_records=1), training=True)
    assert str(caught.value).startswith("2 records of train are damaged, max_corrupt_records allows 1: ")
    for bad in (row, other):
        shard = sorted((directory / "Split-train").iterdir())[bad["shard"]]
        assert f"{shard} offset {bad['offset']}: the record of {bad['key']!r}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_budget_costs_nothing_where_nothing_is_damaged(noise):
    assert read(noise, options(max_corrupt_records=3)) == read(noise, options())
