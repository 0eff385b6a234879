from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beam_jobs.errors import OptionError
from trainer.input.index import RecordIndex
from trainer.input.order import WINDOWS_IN_MEMORY, Order, make_order
from trainer.options import InputOptions

LABELS = ("cat", "dog", "owl")


def order_of(records: int, lanes: int = 8, window: int = 4, run: int = 2, seed: int = 0, kind: str = "window") -> Order:
    return Order(records=records, lanes=lanes, window=window, run=run, seed=seed, kind=kind)


def numbers(order: Order, epoch: int = 0) -> list[int]:
    return order.compute_epoch(tf.constant(epoch, tf.int64))[0].numpy().tolist()


def index_of(labels: list[int], record_bytes: float = 1000.0) -> RecordIndex:
    count = len(labels)
    return RecordIndex(
        files=("one",),
        shard=np.zeros(count, np.int32),
        offset=np.arange(count, dtype=np.int64) * int(record_bytes),
        label=np.array(labels, np.int64),
        record_bytes=record_bytes,
    )


@given(st.integers(1, 300), st.integers(1, 16), st.integers(1, 64), st.integers(1, 64), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
@example(1, 16, 64, 64, 2**32 - 1)
@example(65, 8, 4, 2, 0)  # one lane is longer by a record, and its last window is not full
def test_whatever_the_sizes_each_record_comes_once(records, lanes, window, run, seed):
    assert sorted(numbers(order_of(records, lanes, window, run, seed), 1)) == list(range(records))


@given(st.integers(1, 300), st.integers(1, 8), st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
@example(100, 4, 2, 3, 0)
def test_windows_of_whole_runs_divide_none_but_the_last_of_a_lane(records, lanes, runs, run, seed):
    order = dataclasses.replace(order_of(records, lanes, runs * run, run, seed), whole_runs=True)
    found = numbers(order, 1)
    assert sorted(found) == list(range(records))
    complete = records // lanes // order.window * order.window
    for lane in range(lanes):
        of_lane = found[lane::lanes][:complete]
        for first in range(0, complete, order.window):
            window = sorted(of_lane[first : first + order.window])
            assert window == [start + step for start in window[::run] for step in range(run)]
            assert all(start % run == 0 for start in window[::run])


@pytest.mark.parametrize(("shuffle_mb", "window", "run"), [(64, 40, 40), (256, 156, 26), (4, 2, 2), (2000, 250, 1)])
def test_runs_of_a_store_are_worth_a_request(shuffle_mb, window, run):
    index = dataclasses.replace(index_of([0] * 2000, 100_000), files=("gs://bucket/one",))
    order = make_order(index, LABELS, InputOptions(lanes=8, shuffle_mb=shuffle_mb), True)
    assert (order.window, order.run, order.whole_runs) == (window, run, window < 250)


@pytest.mark.parametrize(
    ("shuffle_mb", "window", "run"),
    [
        (64, 125, 1),  # one window holds everything
        (0, 1, 1),
        (0.4, 25, 3),  # 400 kB / 2 windows / 1 kB a record / 8 lanes
    ],
)
def test_windows_and_runs_follow_from_the_byte_budget(shuffle_mb, window, run):
    order = make_order(index_of([0] * 1000), LABELS, InputOptions(lanes=8, shuffle_mb=shuffle_mb), True)
    assert (order.window, order.run, order.records, order.lanes) == (window, run, 1000, 8)
    if shuffle_mb:
        assert order.window_positions * 1000 * WINDOWS_IN_MEMORY <= max(shuffle_mb * 1e6, 2 * 1000 * (1000 + 8))


def test_evaluation_keeps_the_order_and_the_shares():
    order = make_order(index_of([0, 1] * 10), LABELS, InputOptions(balance="uniform", shuffle="global"), False)
    assert numbers(order) == list(range(20))
    assert order.quota == {}


def balanced(labels: list[int], balance: object) -> Order:
    return make_order(index_of(labels), LABELS, InputOptions(balance=balance), True)


@pytest.mark.parametrize(
    ("balance", "counts"),
    [({"cat": share, "owl": share}, [5000, 0, 5000]) for share in (0.4996, 0.5, 0.5004)]
    # Divided by their sum, 1 - 1e-16, the last ones would give 15 and 8985: another order than in earlier releases.
    + [("uniform", [3334, 3333, 3333]), ({"dog": 1.0, "cat": 0}, [0, 10_000, 0])]
    + [({"cat": 0.00145, "dog": 0.89855, "owl": 0.1}, [14, 8986, 1000])],
)
def test_every_class_has_exactly_its_share_of_every_epoch(balance, counts):
    labels = np.repeat([0, 1, 2], [8000, 1700, 300])
    order = balanced(labels.tolist(), balance)
    for epoch in (0, 4):
        assert np.bincount(labels[numbers(order, epoch)], minlength=3).tolist() == counts


@given(st.lists(st.integers(1, 50), min_size=1, max_size=3), st.lists(st.integers(1, 100), min_size=3, max_size=3))
@settings(max_examples=15, deadline=None)
def test_quotas_add_up_to_the_epoch_and_miss_a_share_by_less_than_one(counts, weights):
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    shares = np.array(weights[: len(counts)]) / sum(weights[: len(counts)])
    order = balanced(labels, {LABELS[label]: float(share) for label, share in enumerate(shares)})
    assert sum(order.quota.values()) == len(labels)
    for label, share in enumerate(shares):
        assert abs(order.quota.get(label, 0) - share * len(labels)) < 1
    assert len(numbers(order)) == len(labels)


@pytest.mark.parametrize(
    ("labels", "balance", "message"),
    [
        ([0, 1], {"cat": 0.5, "cow": 0.5}, "^balance contains cow, but the split has only images of cat, dog$"),
        ([0, 1], {"cat": 0.5, "owl": 0.5}, "^balance contains owl, but the split has only images of cat, dog$"),
        ([-1, -1], "uniform", "^balance needs images of one label each, and this dataset has none$"),
    ],
)
def test_a_balance_that_the_split_cannot_give_is_refused(labels, balance, message):
    with pytest.raises(OptionError, match=message):
        balanced(labels, balance)
