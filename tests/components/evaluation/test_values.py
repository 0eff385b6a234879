from __future__ import annotations

import pytest

from components.evaluation import wilson_interval


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [
        # Published examples of the score interval, to four places.
        (26, 26, 0.8713, 1.0),
        (0, 10, 0.0, 0.2775),
        (15, 148, 0.0624, 0.1605),
        (1, 2, 0.0945, 0.9055),
    ],
)
def test_the_interval_is_that_of_wilson(right, count, low, high):
    assert wilson_interval(right / count, count) == pytest.approx((low, high), abs=5e-5)


def test_nothing_seen_is_nothing_known():
    assert wilson_interval(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("right", [0, 1, 3])
def test_the_interval_stays_inside_zero_to_one_around_the_share(right):
    low, high = wilson_interval(right / 3, 3)
    assert 0 <= low <= right / 3 + 1e-12
    assert right / 3 - 1e-12 <= high <= 1
