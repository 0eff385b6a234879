from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beam_jobs.dataset import tfrecord
from trainer.input.index import RecordIndex
from trainer.input.order import Order
from trainer.input.position import Host
from trainer.input.windowed_reader import ENDLESS, plan_data_service_windows, plan_windows, read_in_order, read_windows
from trainer.options import InputOptions

RECORDS, SHARDS = 1000, 5
ALONE, DEFAULTS = Host(), InputOptions()
PADDING = b"." * 1000  # so that not all of a shard fits into one read of the system


def payload(number: int) -> bytes:
    return b"record %d" % number + PADDING


def write_shards(directory: str, records: int = RECORDS, shards: int = SHARDS) -> RecordIndex:
    """Writes shards of unequal length and returns where their records lie."""
    files, shard, offset = [], [], []
    framed = [b"".join(tfrecord.frame(payload(number))) for number in range(records)]
    bounds = np.cumsum([0, *range(1, shards + 1)]) * records // sum(range(1, shards + 1))
    for place, (begin, end) in enumerate(itertools.pairwise(bounds)):
        files.append(f"{directory}/{place}.tfrecord")
        with tf.io.gfile.GFile(files[-1], "wb") as stream:
            stream.write(b"".join(framed[begin:end]))
        shard += [place] * (end - begin)
        offset += [0, *np.cumsum([len(record) for record in framed[begin : end - 1]])]
    return RecordIndex(
        files=tuple(files),
        shard=np.array(shard, np.int32),
        offset=np.array(offset, np.int64),
        label=np.zeros(records, np.int64),
        record_bytes=len(payload(100)) + 16.0,
    )


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> RecordIndex:
    return write_shards(str(tmp_path_factory.mktemp("shards")))


def order_of(records: int = RECORDS, lanes: int = 8, window: int = 32, run: int = 8, kind: str = "window") -> Order:
    return Order(records=records, lanes=lanes, window=window, run=run, seed=1, kind=kind)


def planned(order: Order, begin: int, end: int, host: Host = ALONE, make=plan_windows):
    """(record number, draw) of every position from one to another."""
    pairs = []
    for numbers, draws in make(order, begin, end, host).as_numpy_iterator():
        pairs += zip(numbers.tolist(), draws.tolist(), strict=True)
    return pairs


def whole(order: Order, epochs: int) -> list[tuple[int, int]]:
    """The endless sequence, as far as the end of some epochs."""
    pairs = []
    for epoch in range(epochs):
        numbers, draws = order.compute_epoch(tf.constant(epoch, tf.int64))
        pairs += zip(numbers.numpy().tolist(), draws.numpy().tolist(), strict=True)
    return pairs


def delivered(order: Order, index: RecordIndex, options: InputOptions = DEFAULTS) -> list[bytes]:
    """The records of an epoch, put into their order."""
    found = []
    for records, places, draws in read_windows(
        plan_windows(order, 0, order.records, Host()), index, options
    ).as_numpy_iterator():
        assert len(places) == len(draws)
        found += records[places].tolist()
    return found


@pytest.mark.parametrize("end", [255, 256])
def test_ending_earlier_leaves_out_exactly_the_rest(end):
    order = order_of()
    assert planned(order, 0, end) == whole(order, 3)[:end]
    assert planned(order, end, end) == []


@given(
    st.integers(1, 120),
    st.sampled_from([(0, 1), (0, 2), (1, 2), (3, 4), (6, 8)]),
    st.integers(1, 20),
    st.integers(0, 2),
    st.integers(0, 119),
    st.sampled_from(["window", "global", "none"]),
)
@example(97, (1, 2), 3, 1, 31, "window")
@settings(max_examples=12, deadline=None)
def test_hosts_take_turns_over_the_seams_of_epochs_wherever_they_start(records, host, window, epoch, skipped, kind):
    order = order_of(records, 8, window, max(1, window // 4), kind)
    first = epoch * records + min(skipped, records - 1)
    index, count = host
    mine = [pair for at, pair in enumerate(whole(order, 3)) if at >= first and at % count == index]
    assert planned(order, first, 3 * records, Host(index=index, count=count)) == mine


@pytest.mark.parametrize(
    ("order", "host"), [(order_of(), Host(index=3, count=4)), (order_of(333, window=5, kind="global"), Host())]
)
def test_a_service_is_dealt_the_same_windows(order, host):
    begin, end = order.records + 5, 3 * order.records - 2
    assert planned(order, begin, end, host, make=plan_data_service_windows) == planned(order, begin, end, host)


def test_a_service_can_go_on_forever():
    order = order_of(100, window=4)
    endless = plan_data_service_windows(order, 350, ENDLESS, Host()).take(9)
    numbers = [number for window in endless.as_numpy_iterator() for number in window.numbers.tolist()]
    assert numbers == [number for number, _ in whole(order, 7)[350 : 350 + len(numbers)]]
    assert len(numbers) > 200


@pytest.mark.parametrize(("kind", "shuffle_mb"), [("window", 0.1), ("global", 0)])
def test_what_is_read_are_the_records_of_the_order(index, kind, shuffle_mb):
    order = order_of(kind=kind)
    expected = [payload(number) for number, _ in whole(order, 1)]
    assert delivered(order, index, InputOptions(shuffle_mb=shuffle_mb)) == expected


def test_a_record_that_comes_twice_is_read_once_and_delivered_twice(index):
    order = Order(
        records=20,
        lanes=8,
        window=32,
        run=1,
        seed=1,
        kind="window",
        quota={0: 17, 1: 3},
        members={0: np.arange(5), 1: np.arange(5, 900)},
    )
    ((records, places, _),) = read_windows(
        plan_windows(order, 0, order.records, Host()), index, InputOptions()
    ).as_numpy_iterator()
    assert len(records) == 8
    expected = [payload(number) for number, _ in whole(order, 1)]
    assert records[places].tolist() == expected


def test_memory_stays_within_the_budget(index):
    windows = read_windows(plan_windows(order_of(window=125), 0, RECORDS, Host()), index, InputOptions(shuffle_mb=0.2))
    sizes = [len(records) for records, _, _ in windows.as_numpy_iterator()]
    assert sum(sizes) == RECORDS
    assert max(sizes) * index.record_bytes * 2 <= 0.2e6


def test_reading_in_order_gives_every_record_once(index):
    found = [record for records in read_in_order(index).as_numpy_iterator() for record in records.tolist()]
    assert found == [payload(number) for number in range(RECORDS)]


def reads_of_the_system() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["syscr"])


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="counts reads as Linux does")
@pytest.mark.parametrize(
    ("window", "run", "kind", "most"),
    [
        (125, 1, "window", 6 * SHARDS),  # one window: whatever its order, every shard is read from end to end
        (32, 16, "window", 500),  # runs of 16: about 70 pieces of 1000 records
    ],
)
def test_neighbours_are_read_in_one_go(index, window, run, kind, most):
    order = order_of(window=window, run=run, kind=kind)
    windows = read_windows(plan_windows(order, 0, order.records, Host()), index, InputOptions())
    before = reads_of_the_system()
    assert sum(len(records) for records, _, _ in windows) == RECORDS
    assert reads_of_the_system() - before < most


def test_remote_shards_give_the_same_records_with_several_readers():
    # TensorFlow's own file system in memory; like any path with a scheme it counts as remote.
    remote = write_shards("ram://windows", records=100)
    for kind in ("window", "global"):
        order = order_of(100, window=4, run=2, kind=kind)
        expected = [payload(number) for number, _ in whole(order, 1)]
        assert delivered(order, remote, InputOptions(readers=3)) == expected


def cut(directory: Path, bytes_left: int) -> RecordIndex:
    """Ten records of which only so many bytes are left."""
    index = write_shards(str(directory), records=10, shards=1)
    shard = Path(index.files[0])
    shard.write_bytes(shard.read_bytes()[:bytes_left])
    return index


def test_a_shard_that_ends_inside_a_record_is_an_error(tmp_path):
    index = cut(tmp_path, 8 * (len(payload(0)) + 16) + 100)
    with pytest.raises(tf.errors.DataLossError, match="truncated record"):
        delivered(order_of(10, 1, 3, 1, "none"), index)


@pytest.mark.parametrize("window", [10, 4])  # of the last, one begins where the shard ends
def test_a_shard_that_ends_between_two_records_is_an_error(tmp_path, window):
    index = cut(tmp_path, 8 * (len(payload(0)) + 16))
    with pytest.raises(tf.errors.InvalidArgumentError, match="a shard ends before its last record"):
        delivered(order_of(10, 1, window, 1, "none"), index)


def test_records_that_are_left_out_are_not_read(tmp_path):
    index = write_shards(str(tmp_path), records=10, shards=1).exclude({0, 4}).exclude({3})  # 0, 4 and 5
    expected = [payload(number) for number in (1, 2, 3, 6, 7, 8, 9)]
    assert delivered(order_of(7, 1, 10, 1, "none"), index) == expected
