from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.planning import near_duplicates

COUNT = 100_000
NUMBERS = np.arange(COUNT)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), max_size=20), st.integers(0, 20))
def test_sets_are_named_after_their_smallest_member(links, cut):
    expected = list(range(15))
    for one, other in links:
        low, high = sorted((expected[one], expected[other]))
        expected = [low if root == high else root for root in expected]
    roots = np.arange(15)
    for some in (links[:cut], links[cut:]):
        pairs = np.array(some, np.int64).reshape(-1, 2)
        roots = near_duplicates.join_sets(roots, pairs[:, 0], pairs[:, 1])
    assert roots.tolist() == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (NUMBERS[:-1], NUMBERS[1:]),
        (NUMBERS[:-1], np.full(COUNT - 1, COUNT - 1)),
        (np.random.default_rng(0).permutation(COUNT), np.arange(COUNT)),
    ],
    ids=["chain", "star", "circles"],
)
def test_long_and_wide_sets_take_no_time(one, other):
    roots = near_duplicates.join_sets(NUMBERS, one, other)
    assert (roots[one] == roots[other]).all()
    assert (roots <= NUMBERS).all()
    assert (roots[roots] == roots).all()


def test_the_sets_handed_over_are_left_alone():
    roots = np.arange(3)
    near_duplicates.join_sets(roots, np.array([0]), np.array([2]))
    assert roots.tolist() == [0, 1, 2]
