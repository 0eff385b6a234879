from __future__ import annotations

import pytest

from components.evaluation import wilson_interval


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [
        # Published examples of the score interval, to four places.
        (26, 26, 0.8713, 1.0),
        (0, 10, 0.0, 0.2775),
        (50, 100, 0.4038, 0.5962),
        (15, 148, 0.0624, 0.1605),
        (1, 1, 0.2065, 1.0),
        (1, 2, 0.0945, 0.9055),
        (9500, 10000, 0.9456, 0.9541),
    ],
)
def test_the_interval_is_that_of_wilson(right, count, low, high):
    assert wilson_interval(right / count, count) == pytest.approx((low, high), abs=5e-5)


def test_nothing_seen_is_nothing_known():
    assert wilson_interval(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("count", [1, 3, 10, 1000])
def test_the_interval_stays_inside_zero_to_one_around_the_share(count):
    for right in range(count + 1):
        low, high = wilson_interval(right / count, count)
        assert 0 <= low <= right / count + 1e-12
        assert right / count - 1e-12 <= high <= 1
