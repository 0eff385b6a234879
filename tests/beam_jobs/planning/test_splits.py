from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.dataset import shards
from beam_jobs.planning import splits
from beam_jobs.planning.splits import NO_SPLIT, Units
from tests.beam_jobs.make_rows import make_options

THREE = make_options(splits={"train": 0.8, "eval": 0.1, "test": 0.1})


def together(groups, contents, roots=None) -> tuple[list[int], list[str]]:
    names = pa.array([f"sha-{content}" for content in range(max(contents, default=-1) + 1)], pa.string())
    roots = np.arange(len(names)) if roots is None else np.array(roots)
    units = splits.make_units(pa.array(groups, pa.string()), np.array(contents, np.int64), names, roots)
    return units.unit.tolist(), units.names.to_pylist()


def units_of(sizes) -> Units:
    return Units(unit=np.repeat(np.arange(len(sizes)), sizes), names=pa.array([f"unit {n}" for n in range(len(sizes))]))


def assign(units, options=THREE, requested=None, fixed=None, classes=None) -> list[int]:
    count = len(units.unit)
    return splits.assign(
        units,
        np.array([NO_SPLIT] * count if requested is None else requested),
        np.array([False] * count if fixed is None else fixed, bool),
        None if classes is None else np.array(classes),
        options,
    ).tolist()


def stratify(sizes, classes=None, options=THREE) -> list[int]:
    """Returns the images of each split."""
    units = units_of(sizes)
    places = assign(units, options, classes=np.zeros(len(units.unit), int) if classes is None else classes)
    return np.bincount(places, minlength=len(options.splits)).tolist()


@pytest.mark.parametrize(
    ("groups", "contents", "roots", "units", "names"),
    [
        (["b", "a", ""], [0, 0, 1], None, [0, 0, 1], ["group:a", "sha-1"]),
        (["", "", ""], [0, 1, 2], [0, 1, 0], [0, 1, 0], ["sha-0", "sha-1"]),
        (["", "z", "y", ""], [0, 1, 2, 2], [0, 0, 2], [1, 1, 0, 0], ["group:y", "group:z"]),
        (["b", "b", "a", "a"], [0, 1, 2, 3], [0, 1, 1, 3], [0, 0, 0, 0], ["group:a"]),
    ],
)
def test_what_stays_together_is_named_after_its_smallest_group_or_first_content(groups, contents, roots, units, names):
    assert together(groups, contents, roots) == (units, names)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(0, 6)), max_size=12))
def test_images_stay_together_exactly_when_a_chain_of_groups_and_contents_links_them(images):
    units, _ = together([group for group, _ in images], [content for _, content in images])
    sets = [{place} for place in range(len(images))]
    for _ in images:
        for one in range(len(images)):
            for other in range(len(images)):
                same_group = images[one][0] == images[other][0] != ""
                if same_group or images[one][1] == images[other][1]:
                    sets[one] |= sets[other]
    expected = [min(members) for members in sets]
    assert [units.index(unit) for unit in units] == expected


@pytest.mark.parametrize(
    ("requested", "fixed", "expected", "classes"),
    [
        ([2, 1, NO_SPLIT, NO_SPLIT], [0, 0, 0, 0], [2, 1, 1, 1], [0] * 4),  # the first requested split
        ([2, 1, NO_SPLIT, NO_SPLIT], [1, 1, 0, 0], [2, 1, 1, 1], [0] * 4),  # where a member lies already comes first
    ],
)
def test_a_unit_follows_its_members(requested, fixed, expected, classes):
    assert assign(units_of([4]), requested=requested, fixed=fixed, classes=classes) == expected


@pytest.mark.parametrize(
    ("sizes", "images"),
    [
        ([1] * 100, [80, 10, 10]),
        ([1] * 14, [11, 2, 1]),  # 11.2, 1.4, 1.4: the first of two equal remainders
        ([1] * 3, [1, 1, 1]),
        ([7] + [1] * 13, [16, 2, 2]),
        ([9, 9, 9], [9, 9, 9]),
    ],
)
def test_a_class_is_cut_by_the_shares(sizes, images):
    assert stratify(sizes) == images


SIZES = st.lists(st.integers(1, 9), min_size=2, max_size=9)


@settings(deadline=None)
@given(SIZES, st.sampled_from([(9, 1), (1, 1), (2, 1), (1, 9)]))
def test_of_two_splits_no_other_division_is_closer_to_the_shares(sizes, shares):
    options = make_options(splits=dict(zip("ab", shares, strict=True)))
    first, _ = stratify(sizes, options=options)
    exact = sum(sizes) * shares[0] / sum(shares)
    wanted = int(exact + 0.5)  # of two equal remainders the first split gets more
    chosen = itertools.chain.from_iterable(itertools.combinations(sizes, count) for count in range(1, len(sizes)))
    assert abs(first - wanted) == min(abs(sum(some) - wanted) for some in chosen)


def test_images_in_units_of_other_classes_count_too():
    # Class 0 has three units with five images of class 1 each; the other images of class 1 make up for where they went.
    units, classes = [11] * 3 + [1] * 61, ([0] * 6 + [1] * 5) * 3 + [1] * 61
    places = np.array(assign(units_of(units), make_options(splits={"a": 0.75, "b": 0.25}), classes=classes))
    assert np.bincount(places[np.array(classes) == 0]).tolist() == [12, 6]
    assert np.bincount(places[np.array(classes) == 1]).tolist() == [57, 19]


def test_a_large_class_of_many_groups_is_divided_exactly():
    sizes = np.random.default_rng(0).integers(2, 40, 5000)
    total = int(sizes.sum())
    images = stratify(sizes)
    assert max(abs(found - share * total) for found, share in zip(images, (0.8, 0.1, 0.1), strict=True)) <= 1


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=3, max_size=30), st.sampled_from([(8, 1, 1), (1, 1, 1), (1, 8, 1)]))
def test_a_cut_is_within_a_unit_of_the_shares_and_leaves_no_split_empty(sizes, shares):
    options = make_options(splits=dict(zip("abc", shares, strict=True)))
    images = stratify(sizes, options=options)
    assert sum(images) == sum(sizes)
    assert min(images) > 0
    if len(sizes) >= 20:
        wanted = [share / sum(shares) * sum(sizes) for share in shares]
        # Half a unit at either end of the run, one more image by rounding, and a unit where a split had none.
        assert all(abs(found - want) <= 2 * max(sizes) + 1 for found, want in zip(images, wanted, strict=True))


def test_each_class_is_cut_on_its_own():
    classes = [0] * 10 + [1] * 20 + [5] * 3
    places = assign(units_of([1] * 33), classes=classes)
    counts = {
        kind: np.bincount([places[n] for n in range(33) if classes[n] == kind], minlength=3) for kind in (0, 1, 5)
    }
    assert {kind: count.tolist() for kind, count in counts.items()} == {0: [8, 1, 1], 1: [16, 2, 2], 5: [1, 1, 1]}


def test_a_unit_of_several_classes_belongs_to_the_most_frequent_one():
    # Ten units of class 0 with an image of class 1 each, and ten images of class 1.
    places = np.array(assign(units_of([3] * 10 + [1] * 10), classes=[0, 0, 1] * 10 + [1] * 10))
    assert (places[:30].reshape(10, 3) == places[:30:3, None]).all()
    assert np.bincount(places[:30], minlength=3).tolist() == [24, 3, 3]
    assert np.bincount(places[30:], minlength=3).tolist() == [8, 1, 1]


def test_of_equally_frequent_classes_a_unit_belongs_to_the_first():
    places = np.array(assign(units_of([2] * 10 + [1] * 10), classes=[0, 1] * 10 + [1] * 10))
    assert np.bincount(places[20:], minlength=3).tolist() == [8, 1, 1]
    assert np.bincount(places[:20], minlength=3).tolist() == [16, 2, 2]


def test_the_seed_and_the_names_decide_who_goes_where_within_a_class():
    units, classes = units_of([1] * 50), [0] * 50
    seeds = [assign(units, make_options(seed=seed), classes=classes) for seed in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]
    assert sum(seeds[0]) == sum(seeds[2]) == 5
    hashes = shards.hashes64("split", 0, units.names.to_pylist())
    assert np.flatnonzero(seeds[0]).tolist() == sorted(np.argsort(hashes)[45:].tolist())


def test_requested_splits_take_no_part_in_the_division():
    requested = [2] * 5 + [NO_SPLIT] * 10
    assert np.bincount(assign(units_of([1] * 15), requested=requested, classes=[0] * 15)).tolist() == [8, 1, 6]
