from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.dataset import schemas, shards
from beam_jobs.errors import OptionError, SplitConflict
from beam_jobs.storage import parquet
from tests.beam_jobs.loaded_plan import make_plan
from tests.beam_jobs.make_rows import examined, make_facts, make_options, make_ref, many, sha

HALVES = make_options(splits={"train": 1, "eval": 1})
BASE = 0x5A5A_3C3C_A5A5_C3C3


def published(plan) -> pa.Table:
    """Returns the `IMAGES` rows of a dataset: those that were there, the written ones, and the dropped ones."""
    parts = [plan.existing, placed(plan.dropped, "", -1)]
    for split in plan.splits:
        parts += [placed(split.shard(index), split.name, index) for index in range(split.shard_count)]
    return pa.concat_tables(parts)


def placed(planned: pa.Table, split: str, shard: int) -> pa.Table:
    columns = {name: planned[name] for name in schemas.IMAGES.names if name in planned.column_names}
    columns |= {name: np.full(len(planned), shard) for name in ("shard", "offset")}
    columns["split"] = pa.repeat(split, len(planned))
    return pa.table(columns).select(schemas.IMAGES.names).cast(schemas.IMAGES)


def append(existing: pa.Table, options, *images, kind: str = "single", labels=("a", "b", "cat")):
    return make_plan(examined(*images), options, kind, existing=existing, labels=labels)


def first(*images, options=HALVES) -> pa.Table:
    """Returns a dataset of some images and forty others."""
    return published(make_plan(examined(*images, (make_ref("some cat"), make_facts("cat")), *many(40)), options))


def where(plan) -> dict[str, str]:
    return {row["key"]: row["split"] for row in published(plan).to_pylist()}


def column(table: pa.Table, name: str) -> dict[str, str]:
    return dict(zip(table["key"].to_pylist(), table[name].to_pylist(), strict=True))


def looking_like(bits: int = 0, **fields):
    return make_facts(f"{bits} bits", dhash=BASE ^ bits, **fields)


def test_an_existing_image_outweighs_what_the_source_asks_for_the_others():
    existing = first((make_ref("old", split="eval"), make_facts("x")))
    plan = append(existing, HALVES, (make_ref("1", split="train"), make_facts("x")), (make_ref("2"), make_facts("x")))
    assert (where(plan)["1"], where(plan)["2"]) == ("train", "eval")


def test_a_new_image_that_ties_existing_groups_moves_none_of_them():
    existing = first(
        (make_ref("1", group="g", split="eval"), make_facts("x")),
        (make_ref("2", group="h", split="train"), make_facts("y")),
    )
    new = make_ref("3", group="g"), make_facts("y")
    plan = append(existing, HALVES, new)
    assert [where(plan)[key] for key in "123"] == ["eval", "train", "train"]
    assert [str(leak) for leak in plan.leaks] == ["group 'g': 1 in eval and 3 in train"]
    with pytest.raises(
        SplitConflict, match="^1 set of images that belong together lies in several splits: group 'g': 1"
    ):
        append(existing, replace(HALVES, split_conflicts="refuse"), new)
    # What leaked before is no reason to refuse images that have no part in it.
    leaky = published(plan)
    assert append(leaky, replace(HALVES, split_conflicts="refuse"), *many(2, start=900)).leaks == ()


def test_a_split_that_gets_nothing_new_has_no_shard():
    plan = append(first(), HALVES, (make_ref("new", split="eval"), make_facts("new")))
    assert [(split.name, len(split.images), split.shard_count) for split in plan.splits] == [
        ("train", 0, 0),
        ("eval", 1, 1),
    ]
    assert plan.splits[0].images.schema == schemas.PLANNED


def test_images_that_look_like_existing_ones_are_dropped():
    existing = first((make_ref("m"), looking_like()))
    new = [
        (make_ref("a"), looking_like(3)),
        (make_ref("b"), looking_like(0b111_0011)),
        (make_ref("c"), looking_like(1 << 40)),
    ]
    plan = append(existing, replace(HALVES, near_duplicates="drop"), *new)
    in_order = sorted("ac", key=lambda key: shards.order_hash(HALVES.seed, key))
    assert plan.dropped["key"].to_pylist() == in_order  # b looks like a, and not like what is there
    assert (plan.near_dropped, plan.near_clusters, plan.near_images) == (2, 1, 4)


def test_sets_are_named_after_existing_members():
    existing = first((make_ref("one"), make_facts("x")), (make_ref("two"), looking_like()))
    assert column(existing, "cluster")["one"] == column(existing, "near")["two"] == ""
    plan = append(
        existing,
        replace(HALVES, near_duplicates="report"),
        (make_ref("copy"), make_facts("x")),
        (make_ref("like"), looking_like(1)),
    )
    after = published(plan)
    assert column(after, "cluster")["one"] == column(after, "cluster")["copy"] == sha("x")[:16]
    assert column(after, "near")["two"] == column(after, "near")["like"] == min(sha("0 bits"), sha("1 bits"))[:16]
    assert plan.existing.drop(["cluster", "near"]).equals(existing.drop(["cluster", "near"]))
    again = published(append(after, replace(HALVES, near_duplicates="report"), (make_ref("last"), looking_like(2))))
    assert column(again, "near")["last"] == column(after, "near")["two"]


def test_existing_rows_that_come_in_parts_keep_their_names(monkeypatch):
    existing = first((make_ref("one"), make_facts("x")), (make_ref("two"), make_facts("y")))
    new = ((make_ref("copy"), make_facts("x")), (make_ref("another"), make_facts("y")))
    whole = append(existing, HALVES, *new).existing
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 5)
    assert append(existing, HALVES, *new).existing.equals(whole)
    assert whole["key"].equals(existing["key"])
    assert not whole["cluster"].equals(existing["cluster"])


def test_clusters_that_grow_into_one_take_the_smaller_name():
    options = replace(HALVES, near_duplicates="report")
    ends = [0, 1, 0b11_1111 << 20, 0b11_1110 << 20]
    existing = first(*((make_ref(f"{n}"), looking_like(bits)) for n, bits in enumerate(ends)), options=options)
    names = column(existing, "near")
    assert names["0"] == names["1"] != names["2"] == names["3"]
    after = column(published(append(existing, options, (make_ref("new"), looking_like(0b111 << 20)))), "near")
    assert {after[key] for key in ("0", "1", "2", "3", "new")} == {min(names["0"], names["2"])}


def test_names_of_near_clusters_outlast_a_run_without_them():
    existing = first(
        (make_ref("1"), looking_like()),
        (make_ref("2"), looking_like(1)),
        options=replace(HALVES, near_duplicates="report"),
    )
    plan = append(existing, HALVES, (make_ref("copy"), looking_like()))
    assert plan.existing["near"].equals(existing["near"])
    assert column(published(plan), "near")["copy"] == column(existing, "near")["1"] != ""


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ((), (), "^the existing images have other class indices; pass the labels"),
        ((), ("b", "a", "cat"), "^the existing images have other class indices; pass the labels"),
        (many(1), ("a", "b", "cat"), "^an examined image exists already; leave"),
    ],
)
def test_labels_of_another_dataset_and_images_that_are_there_are_refused(images, labels, message):
    with pytest.raises(ValueError, match=message):
        append(first(), HALVES, *images, labels=labels)


def test_splits_of_another_dataset_are_refused():
    with pytest.raises(OptionError, match=r"^the dataset has a split 'eval', which --splits \(train, test\) lacks"):
        append(first(), make_options(splits={"train": 1, "test": 1}), *many(10, start=100))


def test_stratified_cuts_count_new_images_alone():
    options = replace(HALVES, stratify=True)
    plan = append(first(options=options), options, *many(80, start=100))
    labels = [sorted(split.images["label"].to_pylist()) for split in plan.splits]
    assert labels == [["a"] * 20 + ["b"] * 20] * 2


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["", "", "g", "h"])), min_size=10, max_size=24),
    st.randoms(use_true_random=False),
    st.sampled_from(["keep", "drop"]),
    st.sampled_from(["off", "report", "group", "drop"]),
)
def test_appending_moves_nothing_and_parts_no_copies(images, shuffle: random.Random, duplicates, near):
    images = [
        (make_ref(f"{n:02d}", group=group), looking_like(content * 0b1_0000_0011))
        for n, (content, group) in enumerate(images)
    ]
    options = replace(HALVES, duplicates=duplicates, near_duplicates=near)
    existing = first(*images[:5], options=options)
    plan = append(existing, options, *images[5:])
    shuffled = shuffle.sample(existing.to_pylist(), len(existing))
    other = append(
        pa.Table.from_pylist(shuffled, schemas.IMAGES), options, *shuffle.sample(images[5:], len(images) - 5)
    )
    after = published(plan)
    places, held = column(after, "split"), column(existing, "split")
    assert column(published(other), "split") == places
    assert column(published(other), "near") == column(after, "near")
    assert {key: places[key] for key in held} == held
    if near != "group" and not any(ref.group for ref, _ in images):  # or they may tie what was apart before
        written = [row for row in after.to_pylist() if row["shard"] >= 0]
        assert len({(row["sha256"], row["split"]) for row in written}) == len({row["sha256"] for row in written})


def test_the_first_sets_of_copies_are_those_by_key_whether_old_or_new():
    options = make_options(splits={"all": 1}, duplicates="keep")
    before = make_plan(examined((make_ref("z"), make_facts("old"))), options)
    rows = [(make_ref(f"m{number:02d}"), make_facts(str(number % 20))) for number in range(40)]
    rows.append((make_ref("a"), make_facts("old")))
    plan = make_plan(examined(*rows), options, existing=published(before), labels=before.labels)
    assert plan.duplicate_sets[0] == ("a", "z")
    assert len(plan.duplicate_sets) == 20
