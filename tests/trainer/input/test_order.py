from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beam_jobs.errors import OptionError
from trainer.input.windowed_reader import WINDOWS_HELD, Order, RecordIndex, make_order
from trainer.options import InputOptions

LABELS = ("cat", "dog", "owl")


def order_of(records: int, lanes: int = 8, window: int = 4, run: int = 2, seed: int = 0, kind: str = "window") -> Order:
    return Order(records=records, lanes=lanes, window=window, run=run, seed=seed, kind=kind)


def numbers(order: Order, epoch: int = 0) -> list[int]:
    return order.epoch(tf.constant(epoch, tf.int64))[0].numpy().tolist()


def index_of(labels: list[int], record_bytes: float = 1000.0) -> RecordIndex:
    count = len(labels)
    return RecordIndex(
        files=("one",),
        shard=np.zeros(count, np.int32),
        offset=np.arange(count, dtype=np.int64) * int(record_bytes),
        label=np.array(labels, np.int64),
        record_bytes=record_bytes,
    )


def test_a_global_shuffle_is_a_permutation_and_no_shuffle_is_none():
    assert sorted(numbers(order_of(65, kind="global"), 3)) == list(range(65))
    assert numbers(order_of(65, kind="none"), 3) == list(range(65))


@given(st.integers(1, 300), st.integers(1, 16), st.integers(1, 64), st.integers(1, 64), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
@example(1, 16, 64, 64, 2**32 - 1)
@example(65, 8, 4, 2, 0)  # one lane is longer by a record, and its last window is not full
def test_whatever_the_sizes_each_record_comes_once(records, lanes, window, run, seed):
    assert sorted(numbers(order_of(records, lanes, window, run, seed), 1)) == list(range(records))


@pytest.mark.parametrize("kind", ["window", "global"])
def test_the_order_is_a_function_of_seed_and_epoch_alone(kind):
    first = order_of(200, kind=kind, seed=3)
    tf.random.set_seed(11)
    eager = numbers(first, 2)
    tf.random.set_seed(12)
    assert numbers(order_of(200, kind=kind, seed=3), 2) == eager
    in_graph = tf.data.Dataset.range(2, 3).map(lambda epoch: first.epoch(epoch)[0])
    assert next(in_graph.as_numpy_iterator()).tolist() == eager


@pytest.mark.parametrize("kind", ["window", "global"])
def test_other_seeds_and_other_epochs_give_other_orders(kind):
    orders = [numbers(order_of(200, kind=kind, seed=seed), epoch) for seed in range(4) for epoch in range(4)]
    assert len({tuple(order) for order in orders}) == 16
    # Not only shifted or cut: hardly any record keeps its place.
    kept = [np.mean(np.array(a) == np.array(b)) for a in orders for b in orders if a is not b]
    assert max(kept) < 0.06


def test_windows_and_runs_of_one_record_are_mixed_too():
    assert numbers(order_of(64, lanes=1, window=1, run=1)) != list(range(64))


@pytest.mark.parametrize(("records", "lanes", "window", "run"), [(999, 3, 40, 5), (130, 4, 8, 3)])
def test_a_window_of_a_lane_holds_few_runs_so_it_is_read_in_few_pieces(records, lanes, window, run):
    order = np.array(numbers(order_of(records, lanes, window, run)))
    for lane in range(lanes):
        mine = order[lane::lanes]
        for begin in range(0, len(mine), window):
            picked = np.sort(mine[begin : begin + window])
            pieces = 1 + np.count_nonzero(np.diff(picked) > 1)
            assert pieces <= math.ceil(len(picked) / run) + 1


def test_lanes_share_no_run_but_those_cut_at_their_edges():
    records, lanes, run = 1000, 8, 5
    order = np.array(numbers(order_of(records, lanes, 25, run)))
    runs = [set((order[lane::lanes] // run).tolist()) for lane in range(lanes)]
    shared = sum(len(runs[a] & runs[b]) for a in range(lanes) for b in range(a))
    assert shared <= lanes - 1


def test_records_of_a_window_are_mixed_and_neighbours_part():
    order = np.array(numbers(order_of(4096, lanes=8, window=64, run=8)))
    gaps = np.abs(np.diff(order))
    assert np.mean(gaps <= 8) < 0.05


def test_draws_of_an_epoch_are_the_epoch_unless_a_record_comes_twice():
    for kind in ("window", "global", "none"):
        assert set(order_of(20, kind=kind).epoch(tf.constant(6, tf.int64))[1].numpy()) == {6}


@pytest.mark.parametrize(
    ("records", "lanes", "shuffle_mb", "window", "run"),
    [
        (1000, 8, 64, 125, 1),  # one window holds everything
        (1000, 8, 0, 1, 1),
        (1000, 8, 0.4, 25, 3),  # 400 kB / 2 held / 1 kB a record / 8 lanes
        (1000, 1, 0.4, 200, 25),
        (1001, 8, 64, 126, 1),
    ],
)
def test_windows_and_runs_follow_from_the_byte_budget(records, lanes, shuffle_mb, window, run):
    order = make_order(index_of([0] * records), LABELS, InputOptions(lanes=lanes, shuffle_mb=shuffle_mb), True)
    assert (order.window, order.run, order.records, order.lanes) == (window, run, records, lanes)
    if shuffle_mb:
        assert order.window_positions * 1000 * WINDOWS_HELD <= max(shuffle_mb * 1e6, 2 * 1000 * (records + lanes))


def test_evaluation_keeps_the_order_and_the_shares():
    order = make_order(index_of([0, 1] * 10), LABELS, InputOptions(balance="uniform", shuffle="global"), False)
    assert numbers(order) == list(range(20))
    assert order.quota == {}


def balanced(labels: list[int], balance: object, seed: int = 0) -> Order:
    return make_order(index_of(labels), LABELS, InputOptions(balance=balance, seed=seed), True)


def drawn(order: Order, epoch: int = 0) -> list[tuple[int, int]]:
    """(record number, what its draws take for the epoch), in order."""
    found, draws = order.epoch(tf.constant(epoch, tf.int64))
    return list(zip(found.numpy().tolist(), draws.numpy().tolist(), strict=True))


@pytest.mark.parametrize(
    ("balance", "counts"),
    [
        ("uniform", [34, 33, 33]),
        ({"cat": 0.2, "owl": 0.8}, [20, 0, 80]),
        ({"cat": 0.333, "dog": 0.333, "owl": 0.334}, [33, 33, 34]),
        ({"dog": 1.0, "cat": 0}, [0, 100, 0]),
    ],
)
def test_every_class_gets_exactly_its_quota_of_every_epoch(balance, counts):
    labels = np.array([0] * 80 + [1] * 17 + [2] * 3)
    order = balanced(labels.tolist(), balance)
    for epoch in (0, 4):
        found = np.bincount(labels[numbers(order, epoch)], minlength=3)
        assert found.sum() == 100
        assert found.tolist() == counts or (balance == "uniform" and sorted(found) == sorted(counts))


def test_common_classes_come_without_repetition_and_rare_ones_evenly():
    labels = np.array([0] * 80 + [1] * 17 + [2] * 3)
    found = np.bincount(numbers(balanced(labels.tolist(), "uniform")), minlength=100)
    assert set(found[labels == 0]) == {0, 1}
    assert set(found[labels == 1]) <= {1, 2}
    assert set(found[labels == 2]) == {11}


def test_other_epochs_take_other_records_of_a_common_class():
    order = balanced([0] * 90 + [1] * 10, "uniform")
    first, second = ({number for number in numbers(order, epoch) if number < 90} for epoch in (0, 1))
    assert len(first) == len(second) == 50
    assert first != second


def test_every_copy_of_a_record_draws_apart_in_this_epoch_and_in_the_next_ones():
    order = balanced([0] * 97 + [1] * 3, "uniform")
    pairs = [pair for epoch in range(5) for pair in drawn(order, epoch)]
    assert len(set(pairs)) == len(pairs) == 500


def test_classes_are_mixed_over_the_epoch():
    labels = np.array([0] * 90 + [1] * 10)
    half = labels[numbers(balanced(labels.tolist(), "uniform"))][:50]
    assert 12 < half.sum() < 38


def test_a_balanced_order_is_a_function_of_seed_and_epoch():
    labels, balance = [0] * 60 + [1] * 40, "uniform"
    assert drawn(balanced(labels, balance, 1), 2) == drawn(balanced(labels, balance, 1), 2)
    seen = {tuple(drawn(balanced(labels, balance, seed), epoch)) for seed in range(3) for epoch in range(3)}
    assert len(seen) == 9


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=3),
    st.lists(st.integers(1, 100), min_size=3, max_size=3),
)
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
        ([0, 1], {"cat": 0.5, "cow": 0.5}, "^balance names cow, of which the split has no image; it has cat, dog$"),
        ([0, 1], {"cat": 0.5, "owl": 0.5}, "^balance names owl, of which the split has no image; it has cat, dog$"),
        ([-1, -1], "uniform", "^balance needs images of one label each, and this dataset has none$"),
    ],
)
def test_a_balance_that_the_split_cannot_give_is_refused(labels, balance, message):
    with pytest.raises(OptionError, match=message):
        balanced(labels, balance)
