from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from trainer.evaluation.intervals import Tally, figure, spread, validation_spreads, wilson

VALUES = np.array([0.1, 0.7, 0.2, 0.9, 0.4, 0.4, 1.3])


def tally_of(right: int, count: int) -> Tally:
    return Tally.from_values(np.arange(count) < right)


# Newcombe 1998, Statistics in Medicine 17, 857-872, table I, method 3.
def test_the_interval_of_a_share_is_wilsons():
    right, count, low, high = 81, 263, 0.2553, 0.3662
    assert wilson(right / count, count) == pytest.approx((low, high), abs=5e-5)
    found = figure(tally_of(right, count))
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
    assert (found.value, found.count, found.method) == (right / count, count, "wilson")
    assert found.error == pytest.approx(math.sqrt(right / count * (1 - right / count) / count))


@pytest.mark.parametrize("count", [1, 26])
def test_the_interval_of_a_share_is_that_of_scipy_around_it(count):
    for right in range(count + 1):
        expected = stats.binomtest(right, count).proportion_ci(method="wilson")
        low, high = wilson(right / count, count)
        assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
        assert 0 <= low <= right / count <= high <= 1


def test_nothing_seen_is_nothing_known():
    assert wilson(0.0, 0) == (0.0, 1.0)


def test_another_mean_has_the_error_of_its_sample():
    found = figure(
        Tally.from_values(VALUES) + Tally.from_values(np.array([1.0, 0.0]))
    )  # one part of shares makes no share of the whole
    assert (found.method, found.count) == ("normal", 9)
    found = figure(Tally.from_values(VALUES))
    error = statistics.stdev(VALUES) / math.sqrt(len(VALUES))
    assert found.value == pytest.approx(statistics.fmean(VALUES))
    assert found.error == pytest.approx(error)
    assert (found.low, found.high) == pytest.approx((found.value - 1.959964 * error, found.value + 1.959964 * error))
    assert found.method == "normal"


def test_more_confidence_is_a_wider_interval():
    found = figure(Tally.from_values(VALUES), confidence=0.99)
    assert found.high - found.value == pytest.approx(2.575829 * found.error, rel=1e-6)


def test_the_parts_add_up_to_the_whole():
    whole = Tally()
    for part in np.split(VALUES + 1e6, [2, 2, 5]):  # far from 0, where a plain sum of squares has nothing left
        whole += Tally.from_values(part)
    found, wanted = figure(whole), figure(Tally.from_values(VALUES + 1e6))
    assert found.value == pytest.approx(wanted.value, rel=1e-15)
    assert found.error == pytest.approx(wanted.error, rel=1e-6)
    assert found.count == len(VALUES)


def test_an_image_of_weight_two_counts_as_two_images():
    values, weights = np.array([1.0, 0.0, 1.0, 0.5]), np.array([2.0, 2.0, 0.0, 2.0])
    found, wanted = figure(Tally.from_values(values, weights)), figure(Tally.from_values(values[[0, 1, 3]]))
    assert (found.value, found.error, found.count) == (wanted.value, pytest.approx(wanted.error), 3)
    mixed = figure(Tally.from_values(np.array([1.0, 0.0]), np.array([3.0, 1.0])))
    assert mixed.value == 0.75
    assert (mixed.low, mixed.high) == wilson(0.75, 16 / 10)  # effective: (3 + 1)^2 / (9 + 1)


def test_no_image_and_one_image_say_what_they_do_not_know():
    nothing = figure(Tally())
    assert (nothing.count, math.isnan(nothing.value), math.isnan(nothing.low)) == (0, True, True)
    one = figure(Tally.from_values(np.array([0.4])))
    assert (one.value, math.isnan(one.error), math.isnan(one.high)) == (0.4, True, True)


def test_repeated_evaluations_have_a_mean_and_a_spread():
    found = spread([0.5, 0.7, 0.6])
    assert (found.mean, found.deviation) == pytest.approx((0.6, 0.1))
    assert (found.least, found.most, found.count) == (0.5, 0.7, 3)
    assert spread([0.5]).deviation == 0


def test_the_last_evaluations_of_a_history_have_a_spread():
    history = {"loss": [3.0, 2.0], "val_accuracy": [0.0] * 5 + [0.5, 0.75] * 5, "val_loss": [2.0], "val_auc": []}
    found = validation_spreads(history)
    assert found.keys() == {"val_accuracy", "val_loss"}
    assert (found["val_accuracy"].mean, found["val_accuracy"].least, found["val_accuracy"].count) == (0.625, 0.5, 10)
    assert str(found["val_accuracy"]) == (
        "0.6250 on average, 0.5000 to 0.7500 over the last 10 epochs; this is the variation of the training, not "
        "the uncertainty of the figure"
    )
    assert str(found["val_loss"]) == "2.0000 in 1 epoch"


def test_an_evaluation_that_is_no_number_has_no_spread():
    found = spread([0.5, math.nan, 0.7])
    assert (math.isnan(found.mean), math.isnan(found.deviation), found.count) == (True, True, 3)
