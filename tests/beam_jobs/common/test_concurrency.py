from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from beam_jobs.common.system import Progress, chunk_size, chunks_by_size, local_progress, map_chunks, map_ordered


@pytest.mark.parametrize(("threads", "chunk"), [(1, 1), (2, 3), (7, 100)])
def test_results_come_in_the_order_of_the_items(threads, chunk):
    assert list(map_ordered(lambda n: n * n, range(50), threads, chunk)) == [n * n for n in range(50)]


def test_nothing_gives_nothing():
    assert list(map_ordered(str, [], 3)) == []


def test_a_slow_item_does_not_let_later_ones_pass():
    second_is_done = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert second_is_done.wait(30)  # the first item ends after the second
        if number == 1:
            second_is_done.set()
        return number

    assert list(map_ordered(work, range(4), 2)) == [0, 1, 2, 3]


@pytest.mark.parametrize(("threads", "chunk"), [(1, 5), (3, 1)])
def test_no_more_than_two_chunks_a_thread_are_taken_ahead(threads, chunk):
    taken = []

    def items():
        for number in range(1000):
            taken.append(number)
            yield number

    results = map_ordered(str, items(), threads, chunk)
    for wanted in range(20):
        assert next(results) == str(wanted)
        assert len(taken) <= wanted + 2 * threads * chunk
    results.close()
    assert len(taken) < 20 + 2 * threads * chunk


def test_the_work_is_done_by_as_many_threads_as_asked_for():
    together = threading.Barrier(3, timeout=30)  # breaks, and fails the test, with fewer

    def work(number: int) -> str:
        together.wait()
        return threading.current_thread().name

    names = set(map_ordered(work, range(3), 3))
    assert len(names) == 3
    assert all(name.startswith("feedline") for name in names)


def test_a_chunk_is_worked_off_by_one_thread():
    together = threading.Barrier(2, timeout=30)

    def work(number: int) -> str:
        if number % 3 == 0:
            together.wait()  # both chunks have begun, each on a thread of its own
        return threading.current_thread().name

    names = list(map_ordered(work, range(6), 2, 3))
    assert names[0] == names[1] == names[2] != names[3] == names[4] == names[5]


@pytest.mark.parametrize("chunk", [1, 4])
def test_an_exception_is_raised_in_its_place_and_stops_the_work(chunk):
    started = []

    def work(number: int) -> int:
        started.append(number)
        if number == 5:
            raise ValueError("five is wrong")
        return number

    results = map_ordered(work, range(1000), 2, chunk)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="^five is wrong$"):
        next(results)
    assert len(started) <= 5 + 2 * 2 * chunk


def test_an_exception_of_the_source_is_passed_on():
    def items():
        yield from range(3)
        raise ValueError("the table breaks off")

    results = map_ordered(str, items(), 1)
    with pytest.raises(ValueError, match="^the table breaks off$"):
        list(results)


@pytest.mark.parametrize(("mean_bytes", "images"), [(0, 1), (65_536, 16), (65_537, 15)])
def test_small_images_go_in_lots_of_a_megabyte_at_most(mean_bytes, images):
    assert chunk_size(mean_bytes) == images


def test_who_presses_ctrl_c_does_not_wait_for_what_is_under_way():
    release, begun, gave_up = threading.Event(), threading.Event(), threading.Event()

    def work(number: int) -> int:
        begun.set()
        if not release.wait(20):
            gave_up.set()
        return number

    def items():
        yield 0
        assert begun.wait(30)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(map_ordered(work, items(), 2))
    waited = gave_up.is_set()
    release.set()
    assert not waited


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ([0] * 40, 16, [16, 16, 8]),
        ([0] * 40, 30, [30, 10]),
        ([1 << 20, 5, 1 << 30, 1 << 19, 1 << 19, 7], 16, [1, 2, 2, 1]),
        ([1 << 20, 5, 1 << 30, 1 << 19, 1 << 19, 7], 32, [3, 3]),
    ],
)
def test_lots_are_bounded_in_number_and_weight(sizes, most, expected):
    found = list(chunks_by_size(enumerate(sizes), lambda item: item[1], most))
    assert [len(lot) for lot in found] == expected
    assert [item for lot in found for item in lot] == list(enumerate(sizes))


def test_a_lot_is_handed_over_before_the_next_item_is_read():
    read = []
    first = next(chunks_by_size((read.append(n) or n for n in range(100)), lambda _: 1 << 20))
    assert (first, read) == ([0], [0])


@pytest.mark.parametrize(
    ("threads", "function"), [(1, lambda items: items[1:]), (2, lambda items: [*items, 0])], ids=["fewer", "more"]
)
def test_another_number_of_results_than_of_items_is_an_error(threads, function):
    results = map_chunks(function, range(6), threads, 3)
    with pytest.raises(RuntimeError, match="[24] results of 3 items"):
        list(results)


def test_nothing_is_lost_between_threads():
    local_progress.reset()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # changes hands between almost any two steps
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: [local_progress.add(Progress(1, 3, 0)) for _ in range(20_000)], "abcd"))
        assert local_progress.read() == Progress(80_000, 240_000, 0)
    finally:
        sys.setswitchinterval(interval)
        local_progress.reset()
