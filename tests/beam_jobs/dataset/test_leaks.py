from __future__ import annotations

import dataclasses

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.dataset import lookup
from tests.components.conftest import manifest_of

COLUMNS = ("key", "split", "cluster", "group", "near")
ROWS = (
    ("a", "train", "c1", "g1", "n1"),
    ("b", "eval", "c1", "", "n1"),
    ("c", "train", "c2", "g1", ""),
    ("d", "train", "c2", "g2", "n1"),
    ("e", "eval", "", "g2", ""),
    ("f", "", "c2", "g1", "n1"),
    ("g", "eval", "", "", ""),
)


@pytest.fixture
def leaks_of(tmp_path):
    """Finds the leaks of a dataset with rows of `COLUMNS`."""

    def find(rows, kinds):
        columns = zip(*rows, strict=True) if rows else [[]] * len(COLUMNS)
        table = pa.table({name: pa.array(column, pa.string()) for name, column in zip(COLUMNS, columns, strict=True)})
        pq.write_table(table, tmp_path / "images.parquet")
        dataset = dataclasses.replace(manifest_of({"train": {}}), format_version=1)
        with lookup.open_images(str(tmp_path), dataset, COLUMNS) as images:
            return lookup.find_leaks(images, kinds)

    return find


def test_sets_in_several_splits_are_found_with_an_image_of_each(leaks_of):
    assert [str(leak) for leak in leaks_of(ROWS, tuple(lookup.LEAK_KINDS))] == [
        "copies: b in eval and a in train",
        "group 'g2': e in eval and d in train",
        "near duplicates: b in eval and a in train",
    ]


def test_near_duplicates_that_were_not_grouped_may_part(leaks_of):
    kinds = lookup.select_leak_kinds("report")
    assert {leak.kind for leak in leaks_of(ROWS, kinds)} == {"copies", "group"}
    assert "near duplicates" in {leak.kind for leak in leaks_of(ROWS, lookup.select_leak_kinds("group"))}


def test_no_images_have_no_leak(leaks_of):
    assert leaks_of((), tuple(lookup.LEAK_KINDS)) == []


def test_of_many_sets_some_are_named(leaks_of):
    many = [(f"{n:02d}{split}", split, "", f"{n:02d}", "") for n in range(12) for split in ("eval", "train")]
    words = lookup.leak_sentence(leaks_of(many, ("group",)))
    assert words.startswith(
        "12 sets of images that belong together lie in several splits: group '00': 00eval in eval and "
    )
    assert words.endswith(" and 4 more")
    assert words.count(" in train") == 8
    assert lookup.leak_sentence(leaks_of(many[:2], ("group",))).startswith("1 set of images that belong together lies")
