from __future__ import annotations

from dataclasses import replace

import pytest

from tests.beam_jobs.loaded_plan import make_plan
from tests.beam_jobs.make_rows import examined, make_facts, make_options, make_ref, many, sha

HALVES = make_options(splits={"train": 1, "eval": 1})
BASE = 0x5A5A_3C3C_A5A5_C3C3


def alike(key: str, bits: int = 0, content: str = "", **fields):
    """Returns an image whose hash differs from the others in some bits."""
    return make_ref(key, **fields), make_facts(content or f"of {key}", dhash=BASE ^ bits)


def flat(key: str, bits: int, brightness: float):
    """Returns an image of one colour but for some bits of its hash."""
    return make_ref(key), make_facts(f"of {key}", dhash=bits, mean_rgb=(brightness,) * 3)


def plan_of(policy: str, *images, **fields):
    return make_plan(examined(*images, *many(60)), replace(HALVES, near_duplicates=policy, **fields))


def column(plan, name: str) -> dict[str, str]:
    rows = [row for split in plan.splits for row in split.images.to_pylist()] + plan.dropped.to_pylist()
    return {row["key"]: row[name] for row in rows}


def split_of(plan) -> dict[str, str]:
    return {key: split.name for split in plan.splits for key in split.images["key"].to_pylist()}


PAIR = (alike("x", 0), alike("y", 0b101))


@pytest.mark.parametrize(("policy", "distance"), [("off", 3), ("report", 1)])  # the pair differs in two bits
def test_near_duplicates_are_not_looked_for_unless_asked_nor_beyond_the_distance(policy, distance):
    plan = plan_of(policy, *PAIR, near_distance=distance)
    assert (plan.near_clusters, plan.near_images, plan.near_largest) == (0, 0, 0)
    assert set(column(plan, "near").values()) == {""}


@pytest.mark.parametrize("policy", ["report", "drop"])
def test_images_that_look_alike_share_the_name_of_their_cluster(policy):
    plan = plan_of(policy, *PAIR, alike("z", 0b11 << 40), alike("other", 0xFFFF), near_distance=2)
    near = column(plan, "near")
    assert near["x"] == near["y"] == near["z"] == min(sha(f"of {key}") for key in "xyz")[:16]
    assert near["other"] == near["a/00000.jpg"] == ""
    assert (plan.near_clusters, plan.near_images, plan.near_largest) == (1, 3, 3)


def test_copies_share_the_fate_of_what_they_show():
    images = [alike("1", content="A"), alike("2", 1, content="B"), alike("3", content="A"), alike("4", 1, content="B")]
    kept = plan_of("drop", *images)
    assert (kept.dropped["key"].to_pylist(), kept.near_dropped) == (["2", "4"], 2)
    both = plan_of("drop", *images, duplicates="drop")
    assert (both.dropped["key"].to_pylist(), both.near_dropped) == (["2", "3", "4"], 1)


def test_copies_alone_are_no_near_cluster():
    plan = plan_of("drop", alike("1", content="A"), alike("2", content="A"))
    assert (plan.clusters, plan.near_clusters, len(plan.dropped)) == (1, 0, 0)


def test_the_largest_cluster_is_counted():
    images = [alike(f"{n}", 1 << n) for n in range(6)] + [alike(f"p{n}", 0xFFFF_0000 | n) for n in range(2)]
    plan = plan_of("report", *images)
    assert (plan.near_clusters, plan.near_images, plan.near_largest) == (2, 8, 6)


@pytest.mark.parametrize("facts", ["all", "basic"])
def test_flat_images_are_grouped_by_their_moments_and_counted_without_any(facts):
    images = [flat(f"{n:02d}{size}", n % 4 + 4 * (size == "s"), 250 - 5 * n) for n in range(20) for size in "sl"]
    grouped = plan_of("group", *images, facts=facts)
    splits = split_of(grouped)
    pairs = [(splits[f"{n:02d}s"], splits[f"{n:02d}l"]) for n in range(20)]
    assert all(one == other for one, other in pairs) == (facts == "all")
    assert len(set(pairs)) > 1
    assert grouped.near_clusters == (20 if facts == "all" else 0)
    assert (grouped.near_unsearched >= 40) == (facts == "basic")
