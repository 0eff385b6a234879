from __future__ import annotations

import sys
import threading

import pytest

from beam_jobs.common.concurrency import Progress, local


@pytest.fixture(autouse=True)
def _clean():
    local.reset()
    yield
    local.reset()


def test_progress_adds_up_part_by_part():
    assert Progress(1, 20, 300) + Progress(4, 5, 6) == Progress(5, 25, 306)


def test_what_is_counted_is_read_until_a_reset():
    assert local.read() == Progress(0, 0, 0)
    local.add(Progress(1, 100, 0))
    local.add(Progress(1, 50, 1))
    assert local.read() == Progress(2, 150, 1)
    local.reset()
    assert local.read() == Progress()


def test_nothing_is_lost_between_threads():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # changes hands between almost any two steps
    try:
        threads = [
            threading.Thread(target=lambda: [local.add(Progress(1, 3, 0)) for _ in range(20_000)]) for _ in "abcd"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert local.read() == Progress(80_000, 240_000, 0)
