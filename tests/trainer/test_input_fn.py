from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs import manifest
from beam_jobs.errors import CorruptDataset, OptionError, SourceError
from beam_jobs.manifest import Shard, SplitInfo
from tests.trainer.conftest import keys_of, rows_of
from trainer.input_fn import FOREVER, KEY, make_dataset, shuffle_records
from trainer.ops import IMAGE
from trainer.options import InputOptions


def options(**values) -> InputOptions:
    return InputOptions(**{"image_side_px": 8, "batch_size": 1, "threads": 2, **values})


def read(directory: Path, given: InputOptions, training=True, split="train", **more) -> list[tuple[str, bytes, int]]:
    """(key, pixels, label) of every record, in order."""
    return list(flat(make_dataset(str(directory), split, given, training, **more)))


def flat(dataset: tf.data.Dataset):
    for features, labels in dataset.as_numpy_iterator():
        for key, image, label in zip(features[KEY], features[IMAGE], labels, strict=True):
            yield key.decode(), image.tobytes(), int(label)


def order(directory: Path, given: InputOptions, **more) -> list[str]:
    return [key for key, _, _ in read(directory, given, **more)]


def graph(dataset: tf.data.Dataset) -> list[tf.compat.v1.NodeDef]:
    text = tf.raw_ops.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(dataset)).numpy()
    return list(tf.compat.v1.GraphDef.FromString(text).node)


def test_evaluation_reads_every_record_once_in_the_order_of_the_table(shades):
    batches = list(make_dataset(str(shades), "train", options(batch_size=7), training=False))
    assert [int(label.shape[0]) for _, label in batches] == [7] * 13 + [5]
    assert order(shades, options(batch_size=7), training=False) == keys_of(shades, "train")
    assert order(shades, options(batch_size=7), training=False, epochs=2) == 2 * keys_of(shades, "train")


def test_each_record_comes_with_its_own_key_pixels_and_label(shades):
    for training in (False, True):
        seen = read(shades, options(), training)
        assert len(seen) == 96
        for key, pixels, label in seen:
            grey = int(key[-7:-4])
            assert pixels == bytes([grey]) * (8 * 8 * 3)
            assert (key.split("/")[0], label) == (("dark", 0) if grey < 48 else ("light", 1))


def test_training_reads_every_record_once_an_epoch_in_another_order(shades):
    epochs = [order(shades, options(), first_epoch=epoch) for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == sorted(keys_of(shades, "train"))
    assert len({tuple(epoch) for epoch in epochs} | {tuple(keys_of(shades, "train"))}) == 4


def test_two_runs_and_two_iterations_give_the_same_batches(dataset):
    given = options(batch_size=4)
    stream = make_dataset(str(dataset), "train", given, training=True, epochs=2)
    first = list(flat(stream))
    assert list(flat(stream)) == first
    assert read(dataset, given, epochs=2) == first


@pytest.mark.parametrize(
    "change",
    [{"threads": 1}, {"threads": 5}, {"parse_batch": 1}, {"parse_batch": 7}, {"prefetch_batches": 5}],
    ids=str,
)
def test_speed_settings_change_no_record_and_no_pixel(shades, dataset, change):
    part = {"shuffle_mb": 0.005, "readers": 3}
    assert read(shades, options(**part, **change)) == read(shades, options(**part))
    assert read(dataset, options(**change)) == read(dataset, options())


def test_the_batch_size_changes_no_record_and_no_pixel(dataset):
    singles = read(dataset, options())
    assert read(dataset, options(batch_size=5)) == singles[: len(singles) // 5 * 5]


def test_the_global_seed_of_tensorflow_changes_nothing(shades):
    orders = []
    for number in (1, 2, 1):
        tf.random.set_seed(number)
        orders.append(read(shades, options()))
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize("change", [{"seed": 1}, {"seed": 7}, {"readers": 1}, {"shuffle_mb": 0}], ids=str)
def test_seed_readers_and_shuffle_memory_decide_the_order(shades, change):
    small = {"shuffle_mb": 0.005}
    assert order(shades, options(**{**small, **change})) != order(shades, options(**small))
    assert sorted(order(shades, options(**{**small, **change}))) == sorted(keys_of(shades, "train"))


def test_without_memory_one_reader_shuffles_whole_shards(shades):
    shards = [[row["key"] for row in rows] for _, rows in itertools.groupby(rows_of(shades, "train"), _shard)]
    seen = set()
    for epoch in range(6):
        keys = order(shades, options(shuffle_mb=0, readers=1), first_epoch=epoch)
        picked = []
        while keys:
            shard = next(index for index, members in enumerate(shards) if members[0] == keys[0])
            assert keys[: len(shards[shard])] == shards[shard]
            keys = keys[len(shards[shard]) :]
            picked.append(shard)
        seen.add(tuple(picked))
    assert len(seen) > 1


def _shard(row):
    return row["shard"]


def test_continuing_at_an_epoch_gives_what_was_left(dataset):
    whole = read(dataset, options(), epochs=3)
    one = len(whole) // 3
    assert read(dataset, options(), first_epoch=1, epochs=2) == whole[one:]
    endless = make_dataset(str(dataset), "train", options(), training=True, epochs=FOREVER, first_epoch=2)
    assert list(itertools.islice(flat(endless), one)) == whole[2 * one :]


def test_a_draw_depends_on_seed_epoch_and_key_alone(dataset):
    by_key = [
        {key: pixels for key, pixels, _ in read(dataset, given, first_epoch=epoch)}
        for given, epoch in [
            (options(), 0),
            (options(shuffle_mb=0, readers=1, parse_batch=3), 0),
            (options(), 1),
            (options(seed=1), 0),
        ]
    ]
    assert by_key[0] == by_key[1]
    for other in by_key[2:]:
        same = [key for key in by_key[0] if by_key[0][key] == other[key]]
        assert len(same) <= 1


def test_records_of_one_epoch_draw_apart(shades, tmp_path):
    # Equal pixels under different keys: only the draw tells them apart.
    given = options(train_ops="decode|resize(8)|pad_reflect(1)|random_crop(8)|flip")
    assert len({pixels for _, pixels, _ in read(shades, given)}) == 96


@pytest.mark.parametrize("training", [True, False])
def test_shapes_and_types_are_known_before_anything_is_read(dataset, training):
    rows = 4 if training else None
    spec = make_dataset(str(dataset), "train", options(batch_size=4), training).element_spec
    assert spec == (
        {IMAGE: tf.TensorSpec((rows, 8, 8, 3), tf.uint8), KEY: tf.TensorSpec((rows,), tf.string)},
        tf.TensorSpec((rows,), tf.int64),
    )


def test_training_drops_only_the_ragged_end_of_all_epochs(shades):
    assert len(read(shades, options(batch_size=10))) == 90
    assert len(read(shades, options(batch_size=10), epochs=2)) == 190
    one, two = order(shades, options(), epochs=1), order(shades, options(batch_size=10), epochs=2)
    assert two[:96] == one  # the tenth batch holds records of both epochs


def test_forever_goes_on_past_the_first_epochs(shades):
    stream = flat(make_dataset(str(shades), "train", options(), training=True, epochs=FOREVER))
    assert [key for key, _, _ in itertools.islice(stream, 3 * 96)] == order(shades, options(), epochs=3)


@pytest.mark.parametrize(
    ("shuffle_mb", "expected"), [(0, 1), (0.05, 1), (0.1, 1), (1, 10), (2.55, 25), (10, 100), (64, 100)]
)
def test_the_shuffle_budget_is_counted_in_records_of_average_size(shades, shuffle_mb, expected):
    halves = tuple(Shard(name=name, records=50, bytes=5_000_000, sha256="") for name in ("a", "b"))
    splits = {"train": SplitInfo(shards=halves, classes={"x": 100})}
    dataset = dataclasses.replace(manifest.load(str(shades)), splits=splits)
    assert shuffle_records(dataset, "train", options(shuffle_mb=shuffle_mb)) == expected


def test_ops_of_training_and_evaluation_are_those_of_the_options(dataset):
    given = options(train_ops="decode|resize(8)", eval_ops="decode|center_crop(8)")
    for training, size in ((True, "resize(8)"), (False, "center_crop(8)")):
        expected = read(dataset, options(train_ops=f"decode|{size}", eval_ops=f"decode|{size}"), False)
        found = read(dataset, given, training)
        assert sorted(found) == sorted(expected)


def test_threads_and_buffers_are_bounded_as_asked_for(shades):
    stream = make_dataset(str(shades), "train", options(threads=3, prefetch_batches=4, parse_batch=9), training=True)
    set_options = stream.options()
    assert set_options.threading.private_threadpool_size == 3
    assert set_options.autotune.enabled is False
    assert set_options.deterministic is True
    nodes = {node.name: node for node in graph(stream)}
    prefetches = [node for node in nodes.values() if node.op == "PrefetchDataset"]
    assert [nodes[node.input[1]].attr["value"].tensor.int64_val[:] for node in prefetches] == [[4]]
    maps = [node for node in nodes.values() if node.op == "ParallelMapDatasetV2"]
    assert [nodes[node.input[-1]].attr["value"].tensor.int64_val[:] for node in maps] == [[3]]


def test_a_record_that_cannot_be_read_costs_its_parse_batch_and_no_record_before(shades, tmp_path):
    directory = _copy_with_torn_shard(shades, tmp_path, number=2)
    delivered = {}
    for size in (1, 10, 64):
        stream = flat(make_dataset(str(directory), "train", options(parse_batch=size), training=False))
        keys = []
        with pytest.raises(tf.errors.DataLossError, match="truncated record"):
            keys.extend(key for key, _, _ in stream)
        assert keys == keys_of(shades, "train")[: len(keys)]
        delivered[size] = len(keys)
    good = sum(row["shard"] <= 2 for row in rows_of(shades, "train")) - 1
    assert delivered == {1: good, 10: good // 10 * 10, 64: good // 64 * 64}


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


def test_what_cannot_be_read_is_refused_before_any_batch(dataset, tmp_path):
    with pytest.raises(SourceError, match=rf"{re.escape(str(tmp_path / 'none'))} is not a dataset.*dataset\.json"):
        make_dataset(str(tmp_path / "none"), "train", options(), training=True)
    with pytest.raises(OptionError, match=r"no split 'valid'; it has train, eval"):
        make_dataset(str(dataset), "valid", options(), training=True)
    with pytest.raises(OptionError, match=r"no op 'flop'; did you mean flip"):
        make_dataset(str(dataset), "train", options(train_ops="decode|flop"), training=True)
    (dataset / "dataset.json").write_text("{")
    with pytest.raises(CorruptDataset, match=r"dataset\.json cannot be used"):
        make_dataset(str(dataset), "train", options(), training=True)


@pytest.mark.parametrize("op", ["decode_random_crop(8)", "decode|random_crop(8)", "decode|resize(8)|flip"])
def test_evaluation_refuses_random_ops(dataset, op):
    with pytest.raises(OptionError, match=re.escape(op)):
        make_dataset(str(dataset), "eval", options(eval_ops=op), training=False)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("chain", ["decode|resize(16)", "decode|resize_short(8)", "decode"])
def test_ops_that_do_not_end_at_the_side_of_the_options_are_refused(shades, training, chain):
    given = options(train_ops=chain, eval_ops=chain)
    with pytest.raises(OptionError, match=re.escape(f"{chain!r} end at the shape")):
        make_dataset(str(shades), "train", given, training)


def test_every_stage_keeps_images_as_bytes_until_the_model(dataset):
    features, label = next(iter(make_dataset(str(dataset), "eval", options(batch_size=3), training=False)))
    assert (features[IMAGE].dtype, features[KEY].dtype, label.dtype) == (tf.uint8, tf.string, tf.int64)
    assert np.ptp(features[IMAGE].numpy()) > 50
