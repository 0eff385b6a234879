from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from beam_jobs.dataset.divergence import common_edges, finite_part, histogram, jensen_shannon, sample_divergence, shares


def test_bins_are_deciles_of_both_samples_which_weigh_the_same():
    random = np.random.default_rng(0)
    many, few = np.sort(random.normal(0, 1, 90_000)), np.sort(random.normal(5, 1, 900))
    edges = common_edges(many, few)
    assert len(edges) == 9
    together = (shares(histogram(many, edges)) + shares(histogram(few, edges)))[:-1] / 2
    assert together == pytest.approx(np.full(10, 0.1), abs=0.002)


@pytest.mark.parametrize("size", [10, 70])
def test_a_decile_that_is_reached_exactly_is_where_its_bin_ends(size):
    values = np.arange(float(size))
    assert common_edges(values, values).tolist() == [place * size / 10 - 1 for place in range(1, 10)]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([8] * 5, [9] * 9, 1.0),
        ([1, 2], [1, 2, np.nan, np.nan], None),  # what is missing is a bin of its own
        ([-np.inf, 1, 2, np.inf], [1, 2], None),
        ([np.nan], [np.nan], 0.0),
    ],
)
def test_ties_and_missing_values(one, other, expected):
    one, other = np.array(one, float), np.array(other, float)
    edges = common_edges(finite_part(one), finite_part(other))
    found = jensen_shannon(shares(histogram(one, edges)), shares(histogram(other, edges)))
    if expected is None:
        expected = jensenshannon([0.5, 0.5, 0], [0.25, 0.25, 0.5], base=2) ** 2
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(("shift", "low", "high"), [(0, 0, 0.01), (0.5, 0.02, 0.2), (50, 1, 1)])
def test_the_divergence_grows_from_0_to_1(shift, low, high):
    random = np.random.default_rng(0)
    one, other = np.sort(random.normal(size=4000)), np.sort(random.normal(size=1000)) + shift
    assert low <= sample_divergence(one, other) <= high
    assert sample_divergence(one, other) == pytest.approx(sample_divergence(other, one))
