from __future__ import annotations

import itertools
import os
import re
import shutil
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs import manifest
from beam_jobs.errors import CorruptDataset, OptionError, SourceError
from tests.trainer.batches import RANDOM, Seen, batches, flat, graph, merged, options, order, read, together
from tests.trainer.conftest import keys_of, rows_of
from trainer import index as record_index
from trainer.input_fn import DRAW, FOREVER, KEY, VALID, check_options, epoch_records, make_dataset
from trainer.ops import IMAGE
from trainer.options import InputOptions
from trainer.order import Order, make_order
from trainer.position import Host, Position

SMALL = {"shuffle_mb": 0.03, "lanes": 4}  # several windows an epoch


def order_of(directory: Path, given: InputOptions) -> Order:
    dataset = manifest.load(str(directory))
    return make_order(record_index.load(str(directory), dataset, "train"), dataset.labels, given, True)


def test_evaluation_reads_every_record_once_in_the_order_of_the_table(shades):
    batches = list(make_dataset(str(shades), "train", options(batch_size=7), training=False))
    assert [int(label.shape[0]) for _, label in batches] == [7] * 13 + [5]
    assert order(shades, options(batch_size=7), training=False) == keys_of(shades, "train")
    assert order(shades, options(batch_size=7), training=False, epochs=2) == 2 * keys_of(shades, "train")


def test_each_record_comes_with_its_own_key_pixels_and_label(shades):
    for training in (False, True):
        seen = read(shades, options(**SMALL), training)
        assert len(seen) == 96
        for key, pixels, _, label in seen:
            grey = int(key[-7:-4])
            assert pixels == bytes([grey]) * (8 * 8 * 3)
            assert (key.split("/")[0], label) == (("dark", 0) if grey < 48 else ("light", 1))


def test_training_reads_every_record_once_an_epoch_in_another_order(shades):
    epochs = [order(shades, options(), start=Position(epoch=epoch)) for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == sorted(keys_of(shades, "train"))
    assert len({tuple(epoch) for epoch in epochs} | {tuple(keys_of(shades, "train"))}) == 4


def test_training_follows_the_order_that_was_computed(noise):
    keys = keys_of(noise, "train")
    for change in ({}, {"shuffle": "global"}, {"shuffle": "none"}, {"balance": "uniform"}):
        given = options(**SMALL, **change)
        numbers, _ = order_of(noise, given).epoch(tf.constant(2, tf.int64))
        assert order(noise, given, start=Position(epoch=2)) == [keys[number] for number in numbers.numpy()]


def test_two_runs_and_two_iterations_give_the_same_batches(dataset):
    given = options(batch_size=4)
    stream = make_dataset(str(dataset), "train", given, training=True, epochs=2)
    first = list(flat(stream))
    assert list(flat(stream)) == first
    assert read(dataset, given, epochs=2) == first


@pytest.fixture(scope="module")
def as_they_are(shades, noise):
    return read(shades, options(shuffle_mb=0.005)), read(noise, options(train_ops=RANDOM))


@pytest.mark.parametrize(
    "change",
    [{"threads": 5}, {"parse_batch": 1}, {"parse_batch": 7}, {"threads": 1, "prefetch_batches": 5, "readers": 1}],
    ids=str,
)
def test_speed_settings_change_no_record_and_no_pixel(shades, noise, as_they_are, change):
    assert read(shades, options(shuffle_mb=0.005, **change)) == as_they_are[0]
    assert read(noise, options(train_ops=RANDOM, **change)) == as_they_are[1]


def test_the_batch_size_changes_no_record_and_no_pixel(dataset):
    singles = read(dataset, options())
    assert read(dataset, options(batch_size=5)) == singles[: len(singles) // 5 * 5]


def test_the_global_seed_of_tensorflow_changes_nothing(shades):
    orders = []
    for number in (1, 2, 1):
        tf.random.set_seed(number)
        orders.append(read(shades, options()))
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"seed": 7}, {"lanes": 2}, {"shuffle_mb": 0}, {"shuffle": "global"}], ids=str
)
def test_seed_lanes_shuffle_and_its_memory_decide_the_order(noise, change):
    assert order(noise, options(**{**SMALL, **change})) != order(noise, options(**SMALL))
    assert sorted(order(noise, options(**{**SMALL, **change}))) == sorted(keys_of(noise, "train"))


def test_a_draw_depends_on_seed_epoch_and_key_alone(dataset):
    by_key = [
        {seen.key: (seen.pixels, seen.draw) for seen in read(dataset, given, start=Position(epoch=epoch))}
        for given, epoch in [
            (options(), 0),
            (options(shuffle_mb=0, lanes=3, parse_batch=3), 0),
            (options(), 1),
            (options(seed=1), 0),
        ]
    ]
    assert by_key[0] == by_key[1]
    for other in by_key[2:]:
        same = [key for key in by_key[0] if by_key[0][key][0] == other[key][0]]
        assert len(same) <= 1
        assert not [key for key in by_key[0] if by_key[0][key][1] == other[key][1]]


def test_records_of_one_epoch_draw_apart(shades):
    # Equal pixels under different keys: only the draw tells them apart.
    seen = read(shades, options(train_ops=RANDOM))
    assert len({pixels for _, pixels, _, _ in seen}) == 96
    assert len({draw for _, _, draw, _ in seen}) == 96


@pytest.mark.parametrize("training", [True, False])
def test_shapes_and_types_are_known_before_anything_is_read(dataset, training):
    rows = 4 if training else None
    spec = make_dataset(str(dataset), "train", options(batch_size=4), training).element_spec
    assert spec == (
        {
            IMAGE: tf.TensorSpec((rows, 8, 8, 3), tf.uint8),
            KEY: tf.TensorSpec((rows,), tf.string),
            DRAW: tf.TensorSpec((rows, 2), tf.int32),
        },
        tf.TensorSpec((rows,), tf.int64),
    )


def test_training_drops_only_the_ragged_end_of_all_epochs(shades):
    assert len(read(shades, options(batch_size=10))) == 90
    assert len(read(shades, options(batch_size=10), epochs=2)) == 190
    one, two = order(shades, options(), epochs=1), order(shades, options(batch_size=10), epochs=2)
    assert two[:96] == one  # the tenth batch holds records of both epochs


def test_forever_goes_on_past_the_first_epochs(shades):
    stream = flat(make_dataset(str(shades), "train", options(), training=True, epochs=FOREVER))
    assert [seen.key for seen in itertools.islice(stream, 3 * 96)] == order(shades, options(), epochs=3)


def test_a_rare_class_is_repeated_with_different_pixels(noise):
    seen = read(noise, options(train_ops=RANDOM, balance={"cat": 0.5, "owl": 0.5}))
    assert sorted(np.bincount([image.label for image in seen], minlength=3)) == [0, 30, 31]
    owls = [image for image in seen if image.label == 2]
    assert len({image.key for image in owls}) == 6
    assert len({image.pixels for image in owls}) > 25


# --- resuming


# The beginning, inside of a window, at its edge, inside of a batch, in the second epoch and in the last batch.
STARTS = [(0, 0), (0, 5), (0, 12), (0, 13), (0, 60), (1, 0), (1, 33), (2, 59)]


@pytest.fixture(scope="module")
def three_epochs(noise):
    return read(noise, options(train_ops=RANDOM, **SMALL), epochs=3)


def test_the_starts_lie_in_different_windows(noise):
    assert order_of(noise, options(**SMALL)).window_positions == 12


@pytest.mark.parametrize(("epoch", "records"), STARTS)
def test_continuing_anywhere_gives_exactly_the_rest(noise, three_epochs, epoch, records):
    given = options(train_ops=RANDOM, batch_size=4, **SMALL)
    rest = three_epochs[61 * epoch + records :]
    start = Position(epoch=epoch, records=records)
    assert read(noise, given, epochs=3 - epoch, start=start) == rest[: len(rest) // 4 * 4]


@pytest.mark.parametrize("change", [{"shuffle": "global"}, {"shuffle": "none"}, {"balance": "uniform"}], ids=str)
def test_every_kind_of_order_can_be_continued(noise, change):
    given = options(train_ops=RANDOM, **SMALL, **change)
    expected = read(noise, given, epochs=2)[40:]
    assert read(noise, given, epochs=2, start=Position(records=40)) == expected


def test_forever_can_be_continued(noise, three_epochs):
    given = options(train_ops=RANDOM, **SMALL)
    stream = make_dataset(str(noise), "train", given, True, epochs=FOREVER, start=Position(epoch=1, records=20))
    assert list(itertools.islice(flat(stream), 100)) == three_epochs[81:181]


def test_the_length_of_an_epoch_turns_steps_into_a_position(noise, three_epochs):
    given = options(train_ops=RANDOM, batch_size=4, **SMALL)
    length = epoch_records(str(noise), "train", given, training=True)
    assert length == 61
    assert read(noise, given, epochs=2, start=Position.after(17 * 4, length)) == three_epochs[68:180]
    assert epoch_records(str(noise), "train", options(balance="uniform"), training=True) == 61


# --- several hosts


@pytest.mark.parametrize("hosts", [2, 8])
def test_hosts_together_deliver_the_same_global_batches_over_the_seams_of_epochs(noise, hosts):
    given = options(train_ops=RANDOM, batch_size=8, shuffle_mb=0.03)
    expected = [sorted(batch) for batch in batches(make_dataset(str(noise), "train", given, True, epochs=3))]
    assert len(expected) == 22  # 3 x 61 records, which neither 8 lanes nor batches of 8 divide
    assert together(noise, given, hosts, epochs=3) == expected


@pytest.mark.parametrize("change", [{"shuffle": "global"}, {"balance": "uniform"}, {"cache": "memory"}], ids=str)
def test_hosts_share_every_kind_of_order(noise, change):
    given = options(train_ops=RANDOM, batch_size=8, **change)
    expected = [sorted(batch) for batch in batches(make_dataset(str(noise), "train", given, True, epochs=2))]
    assert together(noise, given, 4, epochs=2) == expected


@pytest.fixture(scope="module")
def two_hosts(noise):
    """Two epochs on two hosts, which `test_two_hosts_can_be_continued_by_four` goes on with."""
    return together(noise, options(train_ops=RANDOM, batch_size=8, **SMALL), 2, epochs=2)


@pytest.mark.parametrize("steps", [5, 8])  # in the first epoch, and in the second, which batches of 8 do not meet
def test_two_hosts_can_be_continued_by_four(noise, two_hosts, steps):
    start = Position.after(steps * 8, 61)
    given = options(train_ops=RANDOM, batch_size=8, **SMALL)
    assert together(noise, given, 4, epochs=2 - start.epoch, start=start) == two_hosts[steps:]


@pytest.mark.parametrize("start", [Position(epoch=1), Position(records=5)], ids=str)
def test_hosts_can_start_between_two_batches(noise, three_epochs, start):
    given = options(train_ops=RANDOM, batch_size=8, **SMALL)
    rest = three_epochs[start.epoch * 61 + start.records : (start.epoch + 1) * 61]
    expected = [sorted(rest[at : at + 8]) for at in range(0, len(rest) // 8 * 8, 8)]
    assert together(noise, given, 2, start=start) == expected


@pytest.mark.parametrize(
    ("given", "hosts", "message"),
    [
        ({"batch_size": 9}, 2, "batch_size is 9; 2 hosts must be able to share it equally"),
        ({"batch_size": 12, "lanes": 8}, 3, "lanes is 8; 3 hosts must be able to share them equally"),
        ({"batch_size": 6, "lanes": 4}, 2, "batch_size is 6; with several hosts lanes, 4, must divide it"),
    ],
)
def test_what_hosts_cannot_share_equally_is_refused(noise, given, hosts, message):
    with pytest.raises(OptionError, match=f"^{message}$"):
        make_dataset(str(noise), "train", options(**given), True, host=Host(index=0, count=hosts))


# --- evaluation


@pytest.mark.parametrize("hosts", [2, 3, 5])
def test_hosts_together_evaluate_every_record_once_in_the_order_of_the_table(noise, hosts):
    parts = []
    for host in range(hosts):
        stream = make_dataset(str(noise), "train", options(batch_size=8), False, host=Host(index=host, count=hosts))
        images = -(-8 // hosts)
        assert {features[IMAGE].shape for features, _ in stream} == {(images, 8, 8, 3)}
        parts.append(batches(stream))
    assert len({len(part) for part in parts}) == 1
    keys = [seen.key for part in parts for batch in part for seen in batch]
    assert keys == keys_of(noise, "train")


def test_hosts_evaluate_the_same_pixels_and_draws_as_one(noise):
    shared = together(noise, options(batch_size=8), 3, training=False)
    assert merged(shared) == sorted(read(noise, options(), training=False))


def test_a_host_without_a_record_pads_all_of_its_batches(noise):
    sizes = [
        len(record_index.load(str(noise), manifest.load(str(noise)), "train").part(Host(index=host, count=64)))
        for host in range(64)
    ]
    stream = make_dataset(str(noise), "train", options(batch_size=64), False, host=Host(index=sizes.index(0), count=64))
    assert [features[VALID].numpy().tolist() for features, _ in stream] == [[0.0]]


def test_padding_is_marked_and_empty(noise):
    stream = make_dataset(str(noise), "train", options(batch_size=8, pad_batches=True), False)
    assert stream.element_spec[0][IMAGE].shape == (8, 8, 8, 3)
    *_, (features, label) = stream
    assert features[VALID].numpy().tolist() == [1.0] * 5 + [0.0] * 3
    assert features[VALID].dtype == tf.float32
    assert not features[IMAGE].numpy()[5:].any()
    assert features[KEY].numpy()[5:].tolist() == [b""] * 3
    assert [seen.key for seen in flat(stream)] == keys_of(noise, "train")
    assert label.shape == (8,)


def test_batches_that_fill_up_are_not_padded(shades):
    stream = make_dataset(str(shades), "train", options(batch_size=8, pad_batches=True), False)
    assert [float(tf.reduce_sum(features[VALID])) for features, _ in stream] == [8.0] * 12


def test_training_and_unpadded_evaluation_have_no_mask(noise):
    for training in (True, False):
        spec = make_dataset(str(noise), "train", options(batch_size=8), training).element_spec
        assert VALID not in spec[0]


def test_evaluation_between_the_steps_never_changes_the_training(noise):
    given = options(train_ops=RANDOM, batch_size=4, **SMALL)
    train = make_dataset(str(noise), "train", given, True, epochs=2)
    evaluation = make_dataset(str(noise), "train", given, False)
    expected = batches(train)
    found = []
    for step, batch in enumerate(train):
        found.append(list(flat(tf.data.Dataset.from_tensors(batch))))
        if step % 7 == 0:
            assert [seen.key for seen in flat(evaluation)] == keys_of(noise, "train")
    assert found == expected


# --- several images of one


# Two crops and their mirror images of each record; eight records are spread among each other.
CROPS = {"train_ops": "decode|multi_crop(2, 8)|flip", "shuffle_mb": 0.0065, "lanes": 4}


def crops(noise: Path, start: int, count: int) -> list[Seen]:
    length = epoch_records(str(noise), "train", options(**CROPS), training=True)
    assert length == 4 * 61
    start = Position.after(start, length)
    stream = make_dataset(str(noise), "train", options(**CROPS), True, epochs=FOREVER, start=start)
    return list(itertools.islice(flat(stream), count))


def test_images_made_of_one_are_delivered_far_apart_each_once_and_with_a_draw_of_its_own(noise):
    seen = crops(noise, 0, 4 * 56)  # seven groups
    places: dict[str, list[int]] = {}
    for place, image in enumerate(seen):
        places.setdefault(image.key, []).append(place)
    assert len(places) == 56
    for found in places.values():
        assert np.diff(found).tolist() == [8, 8, 8]
    assert len({image.draw for image in seen}) == len(seen)
    assert len({image.pixels for image in seen}) > 150  # flipping what is mirrored gives some twice


@pytest.mark.parametrize("start", [1, 47, 4 * 61, 4 * 61 + 30])
def test_images_made_of_one_can_be_continued_anywhere(noise, start):
    assert crops(noise, start, 100) == crops(noise, 0, start + 100)[start:]


@pytest.mark.parametrize("start", [Position(epoch=1), Position(epoch=1, records=7), Position(records=50)], ids=str)
def test_a_number_of_epochs_of_images_made_of_one_can_be_continued(noise, start):
    whole = read(noise, options(**CROPS), epochs=2)
    assert len(whole) == 2 * 244
    rest = whole[start.epoch * 244 + start.records :]
    assert read(noise, options(**CROPS), epochs=2 - start.epoch, start=start) == rest


def test_hosts_share_images_made_of_one(noise):
    given = options(batch_size=8, **CROPS)
    expected = [sorted(batch) for batch in batches(make_dataset(str(noise), "train", given, True, epochs=2))]
    found = together(noise, given, 2, epochs=2)
    assert len(found) in (len(expected), len(expected) - 1)
    assert found[:60] == expected[:60]  # the last group of 122 records holds two


# --- ops and buffers


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
    assert set_options.experimental_optimization.inject_prefetch is False
    whole = graph(stream)
    nodes = {node.name: node for node in whole.node}
    prefetches = [node for node in nodes.values() if node.op == "PrefetchDataset"]
    # One window is read ahead, and the finished batches.
    assert sorted(nodes[node.input[1]].attr["value"].tensor.int64_val[0] for node in prefetches) == [1, 4]
    maps = [node for node in nodes.values() if node.op == "ParallelMapDatasetV2"]
    assert [nodes[node.input[-1]].attr["value"].tensor.int64_val[:] for node in maps] == [[3]] * len(maps)
    assert len(maps) >= 2
    # No stage keeps records of its own beside the windows.
    every = [node.op for node in whole.node] + [
        node.op for function in whole.library.function for node in function.node_def
    ]
    assert not [op for op in every if "Shuffle" in op and "Dataset" in op]
    assert not [op for op in every if op.startswith("CacheDataset")]


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


def test_what_cannot_be_read_is_refused_before_any_batch(dataset, tmp_path):
    with pytest.raises(SourceError, match=rf"{re.escape(str(tmp_path / 'none'))} is not a dataset.*dataset\.json"):
        make_dataset(str(tmp_path / "none"), "train", options(), training=True)
    with pytest.raises(OptionError, match=r"no split 'valid'; it has train, eval"):
        make_dataset(str(dataset), "valid", options(), training=True)
    with pytest.raises(OptionError, match=r"no op 'flop'; did you mean flip"):
        make_dataset(str(dataset), "train", options(train_ops="decode|flop"), training=True)
    (dataset / "images.parquet").unlink()
    with pytest.raises(CorruptDataset, match=r"images\.parquet cannot be read"):
        make_dataset(str(dataset), "train", options(), training=True)
    (dataset / "dataset.json").write_text("{")
    with pytest.raises(CorruptDataset, match=r"dataset\.json cannot be used"):
        make_dataset(str(dataset), "train", options(), training=True)


@pytest.mark.parametrize("op", ["decode_random_crop(8)", "decode|random_crop(8)", "decode|resize(8)|flip"])
def test_evaluation_refuses_random_ops(dataset, op):
    with pytest.raises(OptionError, match=re.escape(op)):
        make_dataset(str(dataset), "eval", options(eval_ops=op), training=False)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("chain", ["decode|resize(16)", "decode|resize_short(8)", "decode"])
def test_ops_that_do_not_end_at_the_side_of_the_options_are_refused(dataset, training, chain):
    given = options(train_ops=chain, eval_ops=chain)
    with pytest.raises(OptionError, match=re.escape(f"{chain!r} end at the shape")):
        make_dataset(str(dataset), "train", given, training)


@pytest.mark.parametrize("chain", ["decode|resize(16)", "decode|resize_short(8)"])
@pytest.mark.parametrize("name", ["train_ops", "eval_ops"])
def test_ops_of_another_side_are_refused_without_a_dataset(name, chain):
    with pytest.raises(OptionError, match=f"^{name} {re.escape(repr(chain))} end at the shape"):
        check_options(options(**{name: chain}))


def test_device_ops_of_another_side_are_refused_without_a_dataset():
    with pytest.raises(OptionError, match=r"^device_ops 'random_crop\(6\)' end at 6 pixels; image_side_px is 8"):
        check_options(options(device_ops="random_crop(6)"))


def test_options_that_fit_pass_without_a_dataset():
    check_options(InputOptions())
    check_options(options(train_ops=RANDOM))


def test_every_stage_keeps_images_as_bytes_until_the_model(dataset):
    features, label = next(iter(make_dataset(str(dataset), "eval", options(batch_size=3), training=False)))
    assert (features[IMAGE].dtype, features[KEY].dtype, label.dtype) == (tf.uint8, tf.string, tf.int64)
    assert np.ptp(features[IMAGE].numpy()) > 50


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


# --- many shards


class OpenFiles(threading.Thread):
    """Looks all the time how many files are open: a window is read between two batches."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.looks, self.stopped = 0, 0, threading.Event()

    def run(self) -> None:
        while not self.stopped.is_set():
            self.most, self.looks = max(self.most, open_files()), self.looks + 1

    def __enter__(self) -> OpenFiles:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.join()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts open files as Linux does")
@pytest.mark.parametrize("change", [{}, {"balance": "uniform"}, {"shuffle": "global"}], ids=str)
def test_open_files_do_not_grow_with_the_number_of_shards(many, change):
    stream = make_dataset(str(many), "train", options(batch_size=10, readers=4, **change), True, epochs=3)
    before = open_files()
    with OpenFiles() as watched:
        assert sum(len(label) for _, label in stream) == 1800
    assert watched.looks > 100
    assert watched.most - before <= 4 + 2


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """600 tiny images in 500 shards."""
    from beam_jobs.ingest import run
    from beam_jobs.options import IngestOptions
    from tests.make_images import encode

    source, out = tmp_path_factory.mktemp("many"), tmp_path_factory.mktemp("many_dataset")
    random = np.random.default_rng(0)
    for number in range(600):
        folder = source / ("dark" if number < 500 else "light")
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.png").write_bytes(encode(random.integers(0, 256, (8, 8, 3), np.uint8), "PNG"))
    run(IngestOptions(source=str(source), out=str(out), splits={"train": 1}, shards=500))
    assert len(list((out / "Split-train").iterdir())) == 500
    return out


def test_without_an_order_every_record_still_comes_once_an_epoch(shades):
    given = options(ordered=False, batch_size=4)
    stream = make_dataset(str(shades), "train", given, training=True, epochs=2)
    assert stream.options().deterministic is False
    keys = [one.key for one in read(shades, given, epochs=2)]
    assert Counter(keys) == Counter(2 * keys_of(shades, "train"))


def test_tf_data_chooses_on_demand_within_a_budget(shades):
    given = options(autotune=True, shuffle_mb=7, batch_size=4)
    stream = make_dataset(str(shades), "train", given, training=True)
    assert (stream.options().autotune.enabled, stream.options().autotune.ram_budget) == (True, 7_000_000)
    nodes = {node.name: node for node in graph(stream).node}
    maps = [node for node in nodes.values() if node.op == "ParallelMapDatasetV2"]
    assert {nodes[node.input[-1]].attr["value"].tensor.int64_val[0] for node in maps} == {tf.data.AUTOTUNE}
    assert read(shades, given) == read(shades, options(shuffle_mb=7, batch_size=4))


@pytest.mark.parametrize("chain", ["decode", "decode|flip", "decode|random_crop(8)"])
def test_chains_over_stored_pixels_are_checked_by_their_size(chain):
    check_options(options(train_ops=chain, eval_ops="decode"), raw_side=8)
    with pytest.raises(OptionError, match="end at the shape"):
        check_options(options(train_ops=chain, eval_ops="decode"), raw_side=16 if "crop" not in chain else None)
