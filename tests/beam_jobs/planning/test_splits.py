from __future__ import annotations

import itertools
from dataclasses import replace

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.dataset import shards
from beam_jobs.planning import splits
from beam_jobs.planning.duplicates import find_sets
from beam_jobs.planning.image_tables import open_tables
from beam_jobs.types import Annotations
from tests.beam_jobs.loaded_plan import facts_of
from tests.beam_jobs.make_rows import examined, make_facts, make_options, make_ref, sha

THREE = make_options(splits={"train": 0.8, "eval": 0.1, "test": 0.1})


_UNITS = "SELECT unit FROM (SELECT id, unit FROM units UNION ALL SELECT id, unit FROM singles) ORDER BY id"


def assigned(rows, options, statement: str = _UNITS, label_kind: str = "single") -> tuple[list[int], list]:
    """Returns the split of each image, and the only column of a query."""
    with open_tables(facts_of([examined(*rows)], options.seed), (), options, label_kind) as images:
        find_sets(images, options)
        places = splits.assign(images, options)
        return places.tolist(), images.column(statement).tolist()


def units(groups, contents, looks=None) -> list[int]:
    """Returns the hash of the unit of each image; images of equal looks are near duplicates."""
    rows = []
    for number, (group, content) in enumerate(zip(groups, contents, strict=True)):
        look = int(sha(str(content if looks is None else looks[content]))[:16], 16) - (1 << 63)
        facts = make_facts(str(content), dhash=look, var_rgb=(900.0,) * 3)
        rows.append((make_ref(f"{number:03d}", group=group), facts))
    return assigned(rows, replace(THREE, near_duplicates="off" if looks is None else "group"))[1]


def assign(sizes, options=THREE, requested=None, classes=None) -> list[int]:
    """Returns the split of each image of units of these sizes, by hash or stratified by the class of each image."""
    rows = []
    for number, unit in enumerate(np.repeat(np.arange(len(sizes)), sizes).tolist()):
        split = "" if requested is None or requested[number] < 0 else list(options.splits)[requested[number]]
        group = f"unit {unit}" if sizes[unit] > 1 else ""
        label = "" if classes is None else f"class {classes[number]:03d}"
        rows.append((make_ref(f"{number:06d}", label=label, group=group, split=split), make_facts(str(number))))
    return assigned(rows, replace(options, stratify=classes is not None))[0]


def stratify(sizes, options=THREE) -> list[int]:
    """Returns the number of images of each split, of one class of units of these sizes."""
    shares = list(options.shares.values())
    found = splits.divide_class(np.array(sizes), np.zeros(len(shares), np.int64), shares)
    return np.bincount(found, sizes, len(shares)).astype(int).tolist()


@pytest.mark.parametrize(
    ("groups", "contents", "looks", "names"),
    [
        (["b", "a", ""], [0, 0, 1], None, ["group:a", "group:a", sha("1")]),
        (["", "", ""], [0, 1, 2], "aba", [sha("0"), sha("1"), sha("0")]),
        (["", "z", "y", ""], [0, 1, 2, 2], "aab", ["group:z", "group:z", "group:y", "group:y"]),
        (["b", "b", "a", "a"], [0, 1, 2, 3], "abbc", ["group:a"] * 4),
    ],
)
def test_what_stays_together_is_named_after_its_smallest_group_or_first_content(groups, contents, looks, names):
    assert units(groups, contents, looks) == shards.hashes64(shards.SPLIT, THREE.seed, names).tolist()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(0, 6)), min_size=1, max_size=12))
def test_images_stay_together_exactly_when_a_chain_of_groups_and_contents_links_them(images):
    found = units([group for group, _ in images], [content for _, content in images])
    sets = [{place} for place in range(len(images))]
    for _ in images:
        for one in range(len(images)):
            for other in range(len(images)):
                same_group = images[one][0] == images[other][0] != ""
                if same_group or images[one][1] == images[other][1]:
                    sets[one] |= sets[other]
    assert [found.index(unit) for unit in found] == [min(members) for members in sets]


# Values that are on disks already: if one of them changes, images of existing datasets move.
@pytest.mark.parametrize(("seed", "in_eval"), [(0, "qr"), (1, "cnrw")])
def test_groups_are_in_the_splits_that_are_on_disk(seed, in_eval):
    names = "abcdefghijklmnopqrstuvwxyz"
    rows = [(make_ref(name, group=name), make_facts(name)) for name in names]
    found, _ = assigned(rows, make_options(seed=seed, splits={"train": 0.8, "eval": 0.2}))
    assert "".join(name for name, split in zip(names, found, strict=True) if split) == in_eval


def test_a_hash_past_shares_that_add_up_to_less_than_one_is_of_the_last_split():
    expression = splits.split_expression({"train": 1e-12, "eval": 1e-12})
    rows = duckdb.execute(f"SELECT {expression} FROM (VALUES (0::UBIGINT), (99999999), (18446744073709551615)) t(unit)")
    assert rows.fetchall() == [(0,), (1,), (1,)]


@settings(deadline=None, max_examples=50)
@given(st.sets(st.integers(0, 999), min_size=1, max_size=20), st.floats(0.01, 0.98), st.floats(0.001, 0.99))
def test_a_split_whose_share_grows_loses_no_image(numbers, share, more):
    larger = share + (0.99 - share) * more
    rows = [(make_ref(f"{number}"), make_facts(str(number))) for number in sorted(numbers)]
    before, after = (
        assigned(rows, make_options(splits={"train": part, "eval": 1 - part}))[0] for part in (share, larger)
    )
    assert all(was == 1 or now == 0 for was, now in zip(before, after, strict=True))


@pytest.mark.parametrize("classes", [None, [0] * 4])
def test_a_unit_follows_the_first_split_that_is_requested_for_a_member(classes):
    assert assign([4], requested=[2, 1, -1, -1], classes=classes) == [2, 1, 1, 1]


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
    sizes, classes = [11] * 3 + [1] * 61, ([0] * 6 + [1] * 5) * 3 + [1] * 61
    places = np.array(assign(sizes, make_options(splits={"a": 0.75, "b": 0.25}), classes=classes))
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


def test_a_unit_of_several_classes_belongs_to_the_most_frequent_one():
    # Ten units of class 0 with an image of class 1 each, and ten images of class 1.
    places = np.array(assign([3] * 10 + [1] * 10, classes=[0, 0, 1] * 10 + [1] * 10))
    assert (places[:30].reshape(10, 3) == places[:30:3, None]).all()
    assert np.bincount(places[:30], minlength=3).tolist() == [24, 3, 3]
    assert np.bincount(places[30:], minlength=3).tolist() == [8, 1, 1]


def test_of_equally_frequent_classes_a_unit_belongs_to_the_first():
    rows = [(make_ref(str(n), label="abb"[n], group="ggh"[n]), make_facts(str(n))) for n in range(3)]
    statement = "SELECT class FROM main_classes JOIN (SELECT id, unit FROM units) USING (unit) ORDER BY id"
    assert assigned(rows, replace(THREE, stratify=True), statement)[1] == ["a", "a", "b"]


def test_a_class_whose_units_hold_images_of_others_is_divided_before_those():
    # Three units of class 1, one for each split, bring 4 images of class 0 each: eval and test get one more at most.
    places = assign([10] * 3 + [1] * 28, classes=([1] * 6 + [0] * 4) * 3 + [0] * 28)
    assert np.bincount(places[30:], minlength=3).tolist() == [26, 1, 1]


def test_an_image_of_several_labels_belongs_to_the_rarest_and_of_equally_rare_ones_to_the_first():
    rows = [
        (make_ref(str(number), annotations=Annotations(labels=tuple(names))), make_facts(str(number)))
        for number, names in enumerate(("ab", "a", "b", "cd", "c"))
    ]
    statement = "SELECT rarest FROM singles JOIN rarest_labels USING (labels) ORDER BY id"
    assert assigned(rows, replace(THREE, stratify=True), statement, "multi")[1] == ["a", "a", "b", "d", "c"]


def test_the_seed_and_the_names_decide_who_goes_where_within_a_class():
    seeds = [assign([1] * 50, make_options(seed=seed), classes=[0] * 50) for seed in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]
    assert sum(seeds[0]) == sum(seeds[2]) == 5
    hashes = shards.hashes64("split", 0, (sha(str(number)) for number in range(50)))
    assert np.flatnonzero(seeds[0]).tolist() == sorted(np.argsort(hashes)[45:].tolist())


def test_requested_splits_take_no_part_in_the_division():
    requested = [2] * 5 + [-1] * 10
    assert np.bincount(assign([1] * 15, requested=requested, classes=[0] * 15)).tolist() == [8, 1, 6]


@pytest.mark.parametrize("count", [127, 300])
def test_many_splits_have_their_images(count):
    options = make_options(splits={f"split_{number:03d}": 1 for number in range(count)})
    assert assign([1] * count, options, requested=list(range(count))) == list(range(count))
