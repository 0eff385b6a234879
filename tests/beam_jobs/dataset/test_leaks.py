from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from beam_jobs.dataset import lookup


def images(*rows: tuple[str, str, str, str, str]) -> pa.Table:
    """Returns rows of key, split, cluster, group and near cluster."""
    columns = zip(*rows, strict=True) if rows else [[]] * 5
    names = ("key", "split", "cluster", "group", "near")
    return pa.table({name: pa.array(column, pa.string()) for name, column in zip(names, columns, strict=True)})


TABLE = images(
    ("a", "train", "c1", "g1", "n1"),
    ("b", "eval", "c1", "", "n1"),
    ("c", "train", "c2", "g1", ""),
    ("d", "train", "c2", "g2", "n1"),
    ("e", "eval", "", "g2", ""),
    ("f", "", "c2", "g1", "n1"),
    ("g", "eval", "", "", ""),
)


def test_sets_in_several_splits_are_found_with_an_image_of_each():
    assert [str(leak) for leak in lookup.find_leaks(TABLE, tuple(lookup.LEAK_KINDS))] == [
        "copies: b in eval and a in train",
        "group 'g2': e in eval and d in train",
        "near duplicates: b in eval and a in train",
    ]


def test_near_duplicates_that_were_not_grouped_may_part():
    kinds = lookup.select_leak_kinds("report")
    assert {leak.kind for leak in lookup.find_leaks(TABLE, kinds)} == {"copies", "group"}
    assert "near duplicates" in {leak.kind for leak in lookup.find_leaks(TABLE, lookup.select_leak_kinds("group"))}


@pytest.mark.parametrize(("new", "kinds"), [(0, ["copies"]), (4, ["group"]), (2, [])])
def test_sets_without_a_new_image_are_left_out(new, kinds):
    found = lookup.find_leaks(TABLE, ("cluster", "group"), np.arange(len(TABLE)) == new)
    assert [leak.kind for leak in found] == kinds


def test_no_images_have_no_leak():
    assert lookup.find_leaks(images(), tuple(lookup.LEAK_KINDS)) == []


def test_of_many_sets_some_are_named():
    many = images(*((f"{n:02d}{split}", split, "", f"{n:02d}", "") for n in range(12) for split in ("eval", "train")))
    words = lookup.leak_sentence(lookup.find_leaks(many, ("group",)))
    assert words.startswith(
        "12 sets of images that belong together lie in several splits: group '00': 00eval in eval and "
    )
    assert words.endswith(" and 4 more")
    assert words.count(" in train") == 8
    assert lookup.leak_sentence(lookup.find_leaks(many.slice(0, 2), ("group",))).startswith(
        "1 set of images that belong together lies"
    )
