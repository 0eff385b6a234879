from __future__ import annotations

import itertools
import resource
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs import near

BASE = 0x5A5A3C3CA5A5C3C3  # half of its bits are set
COLOUR = (100.0, 100.0, 100.0)


def looks(hashes, sizes=None, colours=None) -> near.Looks:
    count = len(hashes)
    height, width = np.array(sizes or [(60, 80)] * count).reshape(-1, 2).T
    signed = np.array(hashes, np.uint64).view(np.int64)
    return near.looks(signed, height, width, np.array(colours or [COLOUR] * count, np.float32).reshape(-1, 3))


def flipped(value: int, bits) -> int:
    for bit in bits:
        value ^= 1 << int(bit)
    return value


def random_hashes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def chains(hashes, distance: int) -> list[int]:
    """Returns the first member of the cluster of each hash, found by comparing every two."""
    roots = list(range(len(hashes)))
    for one, other in itertools.combinations(range(len(hashes)), 2):
        both = hashes[one], hashes[other]
        if (both[0] ^ both[1]).bit_count() <= distance and all(8 <= value.bit_count() <= 56 for value in both):
            low, high = sorted((roots[one], roots[other]))
            roots = [low if root == high else root for root in roots]
    return roots


# Few bases and few flipped bits, so that pairs, chains and near misses all come up.
HASHES = st.lists(
    st.builds(
        flipped,
        st.sampled_from([BASE, BASE ^ 0xFF, ~BASE & (2**64 - 1), 0, 0b1111111, 0b11111111]),
        st.lists(st.integers(0, 63), max_size=12),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(HASHES, st.integers(0, 8))
def test_clusters_are_the_chains_of_a_comparison_of_all_pairs(hashes, distance):
    assert near.find(looks(hashes), distance).tolist() == chains(hashes, distance)


@pytest.mark.parametrize("distance", [1, 3, 8])
def test_every_planted_pair_among_many_is_found_in_seconds(distance):
    random = np.random.default_rng(1)
    hashes = random_hashes(100_000)
    for planted in range(500):
        bits = random.choice(64, random.integers(0, distance + 1), replace=False)
        hashes[planted + 50_000] = flipped(int(hashes[planted]), bits)
    started = time.monotonic()
    roots = near.find(looks(hashes), distance)
    assert time.monotonic() - started < 30  # seconds; comparing every two would take minutes
    assert roots[50_000:50_500].tolist() == list(range(500))
    assert (np.bincount(roots) > 1).sum() <= 505  # chance alone makes about one pair at 8 bits


def test_hashes_a_bit_too_far_apart_are_not_alike():
    hashes = [BASE, flipped(BASE, [1, 20, 40, 63])]
    assert near.find(looks(hashes), 3).tolist() == [0, 1]
    assert near.find(looks(hashes), 4).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("sizes", "alike"),
    [
        ([(60, 80), (600, 800)], True),
        ([(60, 80), (60, 82)], True),
        ([(60, 80), (60, 89)], False),
        ([(60, 80), (80, 60)], False),
    ],
)
def test_images_of_another_shape_are_not_alike(sizes, alike):
    assert near.find(looks([BASE, BASE], sizes=sizes), 3).tolist() == [0, 0 if alike else 1]


@pytest.mark.parametrize(
    ("colours", "alike"),
    [
        ([(100, 100, 100), (116, 84, 100)], True),
        ([(100, 100, 100), (100, 100, 132)], False),
        ([(0, 0, 0), (255, 255, 255)], False),
        ([(0, 0, 0), (0, 0, 0)], True),  # as of facts that were not measured
    ],
)
def test_images_of_another_colour_are_not_alike(colours, alike):
    assert near.find(looks([BASE, BASE], colours=colours), 3).tolist() == [0, 0 if alike else 1]


@pytest.mark.parametrize(
    ("bits", "alike"), [(0, False), (7, False), (8, True), (32, True), (56, True), (57, False), (64, False)]
)
def test_images_that_are_all_but_flat_look_like_no_other(bits, alike):
    assert near.find(looks([(1 << bits) - 1] * 2), 0).tolist() == [0, 0 if alike else 1]


def test_ends_of_a_chain_are_in_one_cluster():
    hashes = [BASE, flipped(BASE, [5, 6]), flipped(BASE, [5, 6, 30, 31])]
    assert near.find(looks(hashes), 2).tolist() == [0, 0, 0]
    assert near.find(looks([hashes[0], hashes[2]]), 2).tolist() == [0, 1]


def dense(count: int, bits: int) -> list[int]:
    """Returns hashes that differ in the same few bits alone."""
    random = np.random.default_rng(2)
    places = random.choice(64, bits, replace=False)
    return [flipped(BASE, places[row]) for row in random.random((count, bits)) < 0.5]


def test_hashes_that_crowd_together_are_found_by_more_bands(monkeypatch):
    hashes = dense(400, 24)
    monkeypatch.setattr(near, "_CROWD", 12)
    sizes = []
    monkeypatch.setattr(
        near, "_masks", lambda bands, equal, real=near._masks: sizes.append(bands) or real(bands, equal)
    )
    assert near.find(looks(hashes), 3).tolist() == chains(hashes, 3)
    assert sizes[:2] == [4, 5]


@pytest.mark.parametrize("distance", [0, 3, 8])
@pytest.mark.parametrize(
    "crowd",
    [
        lambda count: ([0] * count, None),
        lambda count: ([BASE] * count, None),
        lambda count: ([BASE] * count, np.random.default_rng(3).uniform(0, 256, (count, 3)).tolist()),
        lambda count: (dense(count, 18), None),
    ],
    ids=["constant", "one hash", "one hash of many colours", "one neighbourhood"],
)
def test_crowds_cost_neither_minutes_nor_gigabytes(crowd, distance):
    hashes, colours = crowd(30_000)
    images = looks(hashes, colours=colours)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    roots = near.find(images, distance)
    left_out = near.surplus(images, roots, distance, np.zeros(len(roots), bool), np.ones(len(roots), bool))
    assert time.monotonic() - started < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB
    assert left_out.any() == (hashes[0] != 0)


def test_no_hash_is_compared_with_a_whole_crowd():
    hashes = np.array(dense(20_000, 16), np.uint64)
    for distance in (0, 3, 8):
        follows = [follow for _, follow in near._tables(hashes, np.arange(len(hashes)), distance)]
        assert max(follow.max() for follow in follows) < near._CROWD
        assert follows[-1].any()


def left_out(hashes, distance=2, written=(), fresh=None) -> list[int]:
    images = looks(hashes)
    stays, may_go = np.zeros(len(hashes), bool), np.zeros(len(hashes), bool)
    stays[list(written)] = True
    may_go[list(range(len(hashes)) if fresh is None else fresh)] = True
    found = near.surplus(images, near.find(images, distance), distance, stays, may_go & ~stays)
    return np.flatnonzero(found).tolist()


CHAIN = [flipped(BASE, range(2 * step)) for step in range(5)]  # each looks like the one before and the one after


def test_an_image_is_left_out_for_one_that_stays_and_not_for_a_chain():
    assert left_out(CHAIN[:2]) == [1]
    assert left_out(CHAIN) == [1, 3]
    assert left_out([CHAIN[2], *CHAIN[:2], *CHAIN[3:]]) == [2, 3]


def test_written_images_stay_and_send_others_away():
    assert left_out(CHAIN, written=[0, 1]) == [2, 4]
    assert left_out(CHAIN[:2], written=[0]) == [1]
    assert left_out(CHAIN[:2], written=[0, 1]) == []


def test_images_that_were_left_out_before_send_nobody_away():
    assert left_out(CHAIN[:3], written=[0], fresh=[2]) == []
    assert left_out(CHAIN[:2], written=[], fresh=[1]) == []


def test_a_large_cluster_is_dealt_with_in_pieces(monkeypatch):
    monkeypatch.setattr(near, "_PIECE", 100)
    hashes = [BASE] * 50 + dense(1000, 16)
    images = looks(hashes)
    gone = near.surplus(images, near.find(images, 8), 8, np.zeros(1050, bool), np.ones(1050, bool))
    stay = np.flatnonzero(~gone)
    assert len(stay) < 35  # 5 in one piece; 40 in pieces of hashes that are not sorted
    assert all(images.alike(image, stay[stay < image], 8).any() for image in np.flatnonzero(gone))


@settings(max_examples=50, deadline=None)
@given(HASHES, st.integers(0, 8))
def test_what_stays_does_not_look_alike_and_what_goes_looks_like_something_that_stays(hashes, distance):
    images = looks(hashes)
    gone = left_out(hashes, distance)
    stay = [place for place in range(len(hashes)) if place not in gone]
    structured = np.flatnonzero(images.structured)
    assert all(images.alike(place, np.array(stay), distance).any() for place in gone)
    pairs = itertools.combinations(sorted(set(stay) & set(structured.tolist())), 2)
    assert not any((hashes[one] ^ hashes[other]).bit_count() <= distance for one, other in pairs)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_bits_are_counted(values):
    assert near.bit_count(np.array(values, np.uint64)).tolist() == [value.bit_count() for value in values]
