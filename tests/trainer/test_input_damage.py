from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from beam_jobs.dataset import manifest
from tests.make_images import flipped
from tests.trainer.batches import RANDOM, SMALL, flat, index_of, options, order, order_of, read
from tests.trainer.conftest import keys_of, rows_of
from trainer.input.order import make_order
from trainer.input.position import Position
from trainer.input_fn import epoch_records, make_dataset


@pytest.mark.parametrize(("shuffle_mb", "parse_batch"), [(0, 64), (0.02, 4)])
def test_a_record_that_cannot_be_read_costs_its_window_and_no_record_before(shades, tmp_path, shuffle_mb, parse_batch):
    directory = Path(shutil.copytree(shades, tmp_path / "torn"))
    shard = sorted((directory / "Split-train").iterdir())[2]
    shard.write_bytes(shard.read_bytes()[:-5])
    given = options(parse_batch=parse_batch, shuffle_mb=shuffle_mb)
    stream = flat(make_dataset(str(directory), "train", given, training=False))
    keys = []
    with pytest.raises(tf.errors.DataLossError, match="truncated record"):
        keys.extend(seen.key for seen in stream)
    assert keys == keys_of(shades, "train")[: len(keys)]
    good = sum(row["shard"] <= 2 for row in rows_of(shades, "train")) - 1
    window = 1 if shuffle_mb == 0 else min(96, order_of(shades, given).window_positions)
    assert len(keys) == good // window * window


def test_a_damaged_record_within_the_budget_is_left_out_and_the_order_is_that_of_the_rest(noise, tmp_path):
    directory = Path(shutil.copytree(noise, tmp_path / "damaged"))
    row = rows_of(noise, "train")[30]
    shard = sorted((directory / "Split-train").iterdir())[row["shard"]]
    shard.write_bytes(flipped(shard.read_bytes(), row["offset"] + 100))
    given = options(train_ops=RANDOM, max_corrupt_records=1, **SMALL)
    rest = [key for key in keys_of(directory, "train") if key != row["key"]]
    assert order(directory, given, training=False) == rest
    assert epoch_records(str(directory), "train", given, training=True) == 60
    kept = index_of(directory).exclude({30})
    labels = manifest.load(str(directory)).labels
    numbers, _ = make_order(kept, labels, given, True).compute_epoch(tf.constant(0, tf.int64))
    whole = read(directory, given, epochs=2)
    assert [seen.key for seen in whole[:60]] == [rest[number] for number in numbers.numpy()]
    assert read(directory, given, epochs=2, start=Position(records=50)) == whole[50:]
