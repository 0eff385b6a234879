"""A hundred thousand images with copies, groups and look-alikes: none of these is parted, and nobody moves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from beam_jobs.dataset import schemas
from beam_jobs.planning.near_duplicates import bit_count
from tests.beam_jobs.loaded_plan import make_plan
from tests.beam_jobs.make_rows import make_options, sha

OLD, ADDED = 100_000, 10_000
GROUPS = 1000
OPTIONS = make_options(splits={"train": 0.8, "eval": 0.1, "test": 0.1}, near_duplicates="group")


@dataclass
class World:
    """Images `[0, OLD)`, and `ADDED` more that come later.

    A copy shows what `original` shows; a look-alike differs from it in three bits at most. Those that come later are
    in no group, so that they tie no two sets.
    """

    original: np.ndarray
    is_copy: np.ndarray
    is_alike: np.ndarray
    group: np.ndarray
    table: pa.Table


@pytest.fixture(scope="module")
def world() -> World:
    random = np.random.default_rng(7)
    count = OLD + ADDED
    numbers = np.arange(count)
    fate = random.random(count)
    is_copy, is_alike = fate < 0.03, (fate >= 0.03) & (fate < 0.06)
    first = np.flatnonzero(~is_copy & ~is_alike & (numbers < OLD))
    earlier = first[(random.random(count) * np.searchsorted(first, numbers)).astype(int)]
    original = np.where(is_copy | is_alike, earlier, numbers)
    group = np.where(random.random(count) < 0.2, random.integers(0, GROUPS, count), -1)
    group[(numbers >= OLD) & (original != numbers)] = -1
    content = np.where(is_copy, original, numbers)
    hashes = random.integers(0, 2**63, 3 * count)
    hashes = hashes[np.abs(bit_count(hashes.view(np.uint64)).astype(int) - 32) < 5][:count]  # neither of flat images
    flips = np.bitwise_or.reduce(1 << random.integers(0, 63, (count, 3)), axis=1)
    hashes = np.where(is_alike, hashes[original] ^ flips, hashes)[content]
    columns = {
        "key": [f"{number:06d}.jpg" for number in numbers],
        "uri": [f"{number:06d}.jpg" for number in numbers],
        "label": np.array(["cat", "dog", "eel"])[random.choice(3, count, p=[0.9, 0.09, 0.01])],
        "group": [f"patient {name}" if name >= 0 else "" for name in group],
        "sha256": [sha(str(number)) for number in content],
        "dhash": hashes,
        "extra": ["{}"] * count,
        "bytes": random.integers(20_000, 200_000, count),
        "mean_rgb": [[100.0, 100.0, 100.0]] * count,
        "var_rgb": [[1.0, 1.0, 1.0]] * count,
        **dict.fromkeys(("annotated_labels", "object_labels"), [[]] * count),
    }
    for field in schemas.EXAMINED:
        default = {pa.string(): "", pa.binary(): b""}.get(field.type, 64)
        columns.setdefault(field.name, pa.repeat(default, count))
    table = pa.table({name: columns[name] for name in schemas.EXAMINED.names}).cast(schemas.EXAMINED)
    return World(original=original, is_copy=is_copy, is_alike=is_alike, group=group, table=table)


@pytest.fixture(scope="module")
def plan(world):
    return make_plan(world.table.slice(0, OLD), OPTIONS)


def places(plan, count: int) -> np.ndarray:
    """Returns the split of each image."""
    found = np.full(count, -1)
    for place, split in enumerate(plan.splits):
        found[[int(key[:6]) for key in split.images["key"].to_pylist()]] = place
    return found


def crossings(where: np.ndarray, sets: np.ndarray) -> int:
    """Returns how many sets are in more than one split; sets below 0 are none."""
    pairs = {pair for pair in zip(sets.tolist(), where.tolist(), strict=True) if pair[0] >= 0}
    return len(pairs) - len({members for members, _ in pairs})


def test_nothing_crosses_a_split(world, plan):
    where, linked = places(plan, OLD), world.original[:OLD]
    assert (where >= 0).all()
    assert sum(len(split.images) for split in plan.splits) == OLD
    assert (linked != np.arange(OLD)).sum() > 5000
    assert crossings(where, linked) == 0
    assert crossings(where, world.group[:OLD]) == 0
    apart = places(make_plan(world.table.slice(0, OLD), make_options(splits=OPTIONS.splits)), OLD)
    assert crossings(apart, np.where(world.is_alike[:OLD], linked, np.arange(OLD))) > 500  # what grouping is for
    assert crossings(apart, np.where(world.is_copy[:OLD], linked, np.arange(OLD))) == 0


def test_stratified_splits_part_nothing_either(world):
    table = world.table.slice(0, OLD)
    stratified = make_plan(table, make_options(splits=OPTIONS.splits, near_duplicates="group", stratify=True))
    where = places(stratified, OLD)
    assert crossings(where, world.original[:OLD]) == crossings(where, world.group[:OLD]) == 0
    for label in ("cat", "dog", "eel"):
        counts = [split.images["label"].to_pylist().count(label) for split in stratified.splits]
        assert np.array(counts) / sum(counts) == pytest.approx([0.8, 0.1, 0.1], abs=0.02 if label != "eel" else 0.07)


def test_a_tie_of_two_groups_moves_one_of_them_and_nobody_else(world, plan):
    where = places(plan, OLD)
    old = np.flatnonzero((np.bincount(world.original)[:OLD] == 1) & (world.original[:OLD] == np.arange(OLD)))
    one = next(n for n in old if world.group[n] >= 0 and where[n] == 0)
    other = next(n for n in old if world.group[n] >= 0 and where[n] == 1)
    tie = world.table.slice(OLD, 1).to_pylist()[0]
    shown = world.table.slice(other, 1).to_pylist()[0]
    tie |= {"group": f"patient {world.group[one]}", "sha256": shown["sha256"], "dhash": shown["dhash"]}
    tied = pa.concat_tables([world.table.slice(0, OLD), pa.Table.from_pylist([tie], schemas.EXAMINED)])
    after = places(make_plan(tied, OPTIONS), OLD + 1)
    moved = np.flatnonzero(after[:OLD] != where)
    assert len({int(after[n]) for n in (one, other, OLD)}) == 1
    assert crossings(after[:OLD], world.group[:OLD]) == 0
    assert 0 < len(moved) < 2000
    assert len({int(where[n]) for n in moved}) == 1


def test_the_shares_are_met_within_a_percent(plan):
    shares = [len(split.images) / OLD for split in plan.splits]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


def test_shards_are_balanced_within_ten_percent(plan):
    for split in plan.splits:
        sizes = [sum(split.shard(index)["bytes"].to_pylist()) for index in range(split.shard_count)]
        assert len(sizes) >= 8
        assert max(sizes) / min(sizes) < 1.1
