from __future__ import annotations

import io
import itertools
import math
import resource
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from beam_jobs.images import perceptual_hash
from beam_jobs.planning import near_duplicates
from tests.make_images import encode

BASE = 0x5A5A3C3CA5A5C3C3  # half of its bits are set
COLOUR = (100.0, 100.0, 100.0)


def looks(hashes, sizes=None, colours=None, variances=None, measured=True) -> near_duplicates.Appearances:
    count = len(hashes)
    height, width = np.array(sizes or [(60, 80)] * count).reshape(-1, 2).T
    signed = np.array(hashes, np.uint64).view(np.int64)
    mean, variance = (
        np.array(rows, np.float32).reshape(-1, 3)
        for rows in (colours or [COLOUR] * count, variances or [(400.0,) * 3] * count)
    )
    return near_duplicates.measure(signed, height, width, mean, variance if measured else None)


def clusters_of(images, distance: int) -> list[int]:
    found = near_duplicates.find(images, distance)
    assert not found.unsearched.any()
    return found.roots.tolist()


def flipped(value: int, bits) -> int:
    for bit in bits:
        value ^= 1 << int(bit)
    return value


def random_hashes(count: int) -> np.ndarray:
    """Returns hashes of which half of the bits are set."""
    values = np.random.default_rng(0).integers(0, 2**64, 12 * count, dtype=np.uint64)
    return values[near_duplicates.bit_count(values) == 32][:count]


def chains(images: near_duplicates.Appearances, distance: int) -> list[int]:
    """Returns the first member of the cluster of each image, found by comparing every two."""
    hashes, places = images.hashes.tolist(), range(len(images.hashes))
    traits, moments, finer_moments = (
        rows.tolist() for rows in (images.traits, images.moments[:, :6], images.moments[:, 6:])
    )
    roots = list(places)
    for one, other in itertools.combinations(places, 2):
        apart = (hashes[one] ^ hashes[other]).bit_count()
        bits = min(min(count, 64 - count) for count in (hashes[place].bit_count() for place in (one, other)))
        close = apart <= min(distance, 8 if bits >= 24 else 3 if bits >= 16 else 2)
        for rows in (traits, *([moments] if bits < 24 else []), *([finer_moments] if bits < 16 else [])):
            close = close and all(abs(a - b) <= 1 for a, b in zip(rows[one], rows[other], strict=True))
        if close:
            low, high = sorted((roots[one], roots[other]))
            roots = [low if root == high else root for root in roots]
    return roots


@pytest.mark.parametrize("mean", [1 << 19, 1 << 20, 3e38, -np.inf, np.nan])
def test_a_damaged_mean_is_not_like_another(mean):
    images = looks([BASE, BASE], colours=[(0.0,) * 3, (mean,) * 3])
    assert clusters_of(images, 3) == [0, 1]


# Few bases and few flipped bits, so that pairs, chains and near misses all come up.
HASHES = st.lists(
    st.builds(
        flipped,
        st.sampled_from([BASE, BASE ^ 0xFF, ~BASE & (2**64 - 1), 0, 2**15 - 1, 2**16 - 1, 2**24 - 1]),
        st.lists(st.integers(0, 63), max_size=12),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(HASHES, st.integers(0, 8), st.randoms(use_true_random=False))
def test_clusters_are_the_chains_of_a_comparison_of_all_pairs(hashes, distance, random):
    colours = [[random.choice((100, 100.5, 101.5, 103)) for _ in range(3)] for _ in hashes]
    variances = [[random.choice((0, 6, 15)) for _ in range(3)] for _ in hashes]
    images = looks(hashes, colours=colours or None, variances=variances or None)
    assert clusters_of(images, distance) == chains(images, distance)


# Hashes that differ in few bits of a few places alone; a search by neighbours in sorted order misses pairs of these.
def test_no_pair_of_a_crowd_is_missed():
    count = 2000
    images = looks(dense(count, 28, 0.1, 48))
    bits_apart = near_duplicates.bit_count(images.hashes[:, None] ^ images.hashes[None, :])
    one, other = np.nonzero(bits_apart <= 4)
    assert clusters_of(images, 4) == near_duplicates.join_sets(np.arange(count), one, other).tolist()


@pytest.mark.parametrize("distance", [3, 8])
def test_every_planted_pair_among_many_is_found_in_seconds(distance):
    random = np.random.default_rng(1)
    hashes = random_hashes(100_000)
    for planted in range(500):
        bits = random.choice(64, random.integers(0, distance + 1), replace=False)
        hashes[planted + 50_000] = flipped(int(hashes[planted]), bits)
    started = time.monotonic()
    roots = near_duplicates.find(looks(hashes), distance).roots
    assert time.monotonic() - started < 30  # seconds; comparing every two would take minutes
    assert roots[50_000:50_500].tolist() == list(range(500))
    assert (np.bincount(roots) > 1).sum() <= 520  # chance alone makes a few pairs at 8 bits


SHAPES = [([(60, 80), (600, 820)], True), ([(60, 80), (60, 89)], False), ([(60, 80), (80, 60)], False)]
COLOURS = [([COLOUR, (116, 84, 100)], True), ([COLOUR, (100, 100, 132)], False)]


@pytest.mark.parametrize(
    ("facts", "alike"),
    [({"sizes": two}, alike) for two, alike in SHAPES] + [({"colours": two}, alike) for two, alike in COLOURS],
)
def test_images_of_another_shape_or_colour_are_not_alike(facts, alike):
    assert clusters_of(looks([BASE, BASE], **facts), 3) == [0, 0 if alike else 1]


@pytest.mark.parametrize(
    ("colours", "variances", "least"),
    [
        ([(100.5, 100.5, 100.5), (100.5, 100.5, 102.5)], None, 24),
        (None, [(400,) * 3, (400, 400, 40**2)], 24),
        ([(100.0,) * 3, (100, 100, 101)], None, 16),
        (None, [(400,) * 3, (400, 400, 26**2)], 16),
    ],
    ids=["mean", "deviation", "small step of mean", "small step of deviation"],
)
def test_images_with_weak_hashes_look_alike_when_their_moments_do_too(colours, variances, least):
    for bits in range(65):
        hashes = [(1 << bits) - 1] * 2
        assert clusters_of(looks(hashes), 0) == [0, 0]
        alike = least <= bits <= 64 - least
        assert clusters_of(looks(hashes, colours=colours, variances=variances), 0) == [0, 0 if alike else 1]


def test_images_with_weak_hashes_and_no_moments_look_like_no_other_and_are_counted():
    found = near_duplicates.find(looks([0, 0, BASE, BASE], measured=False), 3)
    assert found.roots.tolist() == [0, 1, 2, 2]
    assert found.unsearched.tolist() == [True, True, False, False]


def product(seed: int) -> Image.Image:
    """Returns a picture of a few coloured shapes on white, 400 x 400 pixels."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", (400, 400), "white")
    draw = ImageDraw.Draw(image)
    for _ in range(random.integers(1, 4)):
        x, y, width, height = *random.integers(80, 320, 2).tolist(), *random.integers(15, 110, 2).tolist()
        shape = (draw.ellipse, draw.rectangle)[random.integers(2)]
        shape((x - width, y - height, x + width, y + height), fill=tuple(random.integers(0, 256, 3).tolist()))
    return image


def test_product_pictures_on_white_are_found_again_and_not_taken_for_one_another():
    pictures = [product(seed) for seed in range(200)]
    pixels = [np.asarray(Image.open(io.BytesIO(encode(picture, "JPEG", quality=95)))) for picture in pictures]
    smaller = (encode(picture.resize((380, 380)), "JPEG", quality=80) for picture in pictures)
    pixels += [np.asarray(Image.open(io.BytesIO(data))) for data in smaller]
    means, variances, hashes = zip(*(perceptual_hash.moments_and_dhash(image) for image in pixels), strict=True)
    signed = np.array(hashes, np.int64)
    images = near_duplicates.measure(
        signed, *np.array([image.shape[:2] for image in pixels]).T, np.array(means), np.array(variances)
    )
    assert (near_duplicates.bit_count(images.hashes) < 8).sum() > 80
    roots = near_duplicates.find(images, 3).roots
    together = roots[:200] == roots[200:]
    pairs = sum(math.comb(size, 2) for size in np.bincount(roots))
    assert together.mean() >= 0.95
    assert together.sum() >= 0.99 * pairs


def test_what_a_crowd_costs_has_a_limit_and_what_is_left_out_is_counted(monkeypatch):
    hashes = dense(3000, 27, 0.3, 4) + [flipped(~BASE & (2**64 - 1), [bit]) for bit in range(9)]
    monkeypatch.setattr(near_duplicates, "_MAX_COMPARISONS", 10_000)
    found = near_duplicates.find(looks(hashes), 4)
    assert found.unsearched[:3000].any()
    assert not found.unsearched[3000:].any()
    images = looks(hashes)
    one, other = np.nonzero(near_duplicates.bit_count(images.hashes[:, None] ^ images.hashes[None, :]) <= 4)
    missed = found.roots[one] != found.roots[other]
    assert missed.any()
    assert found.unsearched[one[missed]].all()
    order = np.random.default_rng(0).permutation(len(hashes))  # the database gives the images in any order
    again = near_duplicates.find(looks(np.array(hashes, np.uint64)[order]), 4)
    assert again.unsearched.tolist() == found.unsearched[order].tolist()
    assert len({*zip(found.roots[order], again.roots, strict=True)}) == len({*again.roots}) == len({*found.roots})


def dense(count: int, bits: int, share: float = 0.5, seed: int = 2) -> list[int]:
    """Returns hashes that differ in the same few bits alone, each with that share of them flipped."""
    random = np.random.default_rng(seed)
    places = random.choice(64, bits, replace=False)
    return [flipped(BASE, places[row]) for row in random.random((count, bits)) < share]


def many_colours(count: int) -> list[list[float]]:
    return np.random.default_rng(3).uniform(0, 256, (count, 3)).tolist()


@pytest.mark.parametrize(
    ("crowd", "distance"),
    [
        (lambda count: ([0] * count, None), 3),
        (lambda count: ([BASE] * count, None), 0),
        (lambda count: ([0] * count, many_colours(count)), 8),
        (lambda count: ([BASE] * count, many_colours(count)), 3),
        (lambda count: (dense(count, 18), None), 8),
    ],
    ids=["constant", "one hash", "constant of many colours", "one hash of many colours", "one neighbourhood"],
)
def test_crowds_cost_neither_minutes_nor_gigabytes(crowd, distance):
    hashes, colours = crowd(30_000)
    images = looks(hashes, colours=colours)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    found = near_duplicates.find(images, distance)
    none = np.zeros(len(hashes), bool)
    left_out, _ = near_duplicates.find_surplus(images, found, distance, none, ~none)
    assert time.monotonic() - started < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB
    assert left_out.any()


def left_out(hashes, distance=2, written=(), fresh=None) -> list[int]:
    images = looks(hashes)
    old, new = np.zeros(len(hashes), bool), np.zeros(len(hashes), bool)
    old[list(written)] = True
    new[list(range(len(hashes)) if fresh is None else fresh)] = True
    found, _ = near_duplicates.find_surplus(images, near_duplicates.find(images, distance), distance, old, new & ~old)
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
    monkeypatch.setattr(near_duplicates, "_PIECE_IMAGES", 100)
    hashes = [BASE] * 50 + dense(1000, 16)
    images = looks(hashes)
    found, none = near_duplicates.find(images, 8), np.zeros(1050, bool)
    gone, unsearched = near_duplicates.find_surplus(images, found, 8, none, ~none)
    assert unsearched.all()
    stay = np.flatnonzero(~gone)
    assert len(stay) < 35  # 5 in one piece; 40 in pieces of hashes that are not sorted
    assert all(images.alike(image, stay[stay < image], 8).any() for image in np.flatnonzero(gone))


@settings(max_examples=50, deadline=None)
@given(HASHES, st.integers(0, 8))
def test_what_stays_does_not_look_alike_and_what_goes_looks_like_something_that_stays(hashes, distance):
    images = looks(hashes)
    gone = left_out(hashes, distance)
    stay = [place for place in range(len(hashes)) if place not in gone]
    assert all(images.alike(place, np.array(stay), distance).any() for place in gone)
    one, other = np.array(list(itertools.combinations(stay, 2)), int).reshape(-1, 2).T
    assert not images.alike(one, other, distance).any()
