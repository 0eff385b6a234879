"""What deserves a look and stops nothing: each defect by itself is one remark, and a sound dataset has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from beam_jobs.dataset.manifest import Remarks
from components.dataset_gate.checks import check_dataset
from components.dataset_gate.drift_and_skew import open_dataset
from components.dataset_gate.limits import GateLimits
from components.dataset_gate.remarks import collect_remarks
from tests.components.dataset_gate.datasets import Row, flat, ingest, photograph, sound_rows, with_rows

QUIET = GateLimits(max_skew_l_infinity=1.0, max_skew_jensen_shannon=1.0, max_blank_ratio=0.5)


def remarks(tmp_path, rows, limits: GateLimits = QUIET, **options) -> list[tuple[str, str]]:
    with open_dataset(str(ingest(tmp_path / "made", rows, **options))) as dataset:
        outcome = check_dataset(dataset, {}, limits)
    assert all(str(remark).startswith(f"{remark.check}: {remark.value}") for remark in outcome.remarks)
    return [(remark.check, remark.value) for remark in outcome.remarks]


def test_equal_images_in_two_classes(tmp_path):
    again = Row("twin.jpg", photograph(0), "b", "train")
    value = "1 set of equal images in several classes (such as 00.jpg in a and twin.jpg in b)"
    assert remarks(tmp_path, with_rows(again)) == [("label conflicts", value)]


def test_similar_images_in_two_classes_and_in_two_splits(tmp_path):
    rows = with_rows(
        Row("conflict.jpg", photograph(0, quality=60), "b", "train"),
        Row("leak.jpg", photograph(8, quality=60), "a", "eval"),
    )
    conflict = "1 set of similar images in several classes (such as 00.jpg in a and conflict.jpg in b)"
    leak = "1 set of similar images in several splits (such as leak.jpg in eval and 08.jpg in train)"
    assert remarks(tmp_path, rows) == [("label conflicts", conflict), ("near leakage", leak)]
    assert remarks(tmp_path / "unsearched", rows, near_duplicates="off") == []


def test_each_large_set_of_similar_images_is_one_remark_with_its_splits_and_classes(tmp_path):
    rows = with_rows(
        *(Row(f"s{n}.jpg", photograph(300, quality=n), "a", ("train", "eval")[n % 2]) for n in range(80, 91)),
        *(Row(f"v{n}.jpg", photograph(301, quality=n), "ab"[n % 2], "train") for n in range(80, 92)),
    )
    values = (
        "one set of 12 similar images (such as v80.jpg and v91.jpg); splits: train; classes: a, b",
        "one set of 11 similar images (such as s80.jpg and s90.jpg); splits: eval, train; classes: a",
    )
    assert remarks(tmp_path, rows) == [("near duplicates", value) for value in values]


def test_a_small_class_and_an_imbalance(tmp_path):
    rows = with_rows(
        *(Row(f"c{place}.jpg", photograph(200 + place), "c", ("train", "eval")[place // 2]) for place in range(3))
    )
    expected = {
        "small classes": "1 class with fewer than 10 images in train: c with 2",
        "imbalance": "15.0 : 1 in train (a with 30, c with 2)",
    }
    assert remarks(tmp_path, rows) == list(expected.items())


@pytest.mark.parametrize("most", [1.0, 0.0])
def test_blank_images_are_a_remark_until_they_are_a_finding(tmp_path, most):
    rows = with_rows(Row("black.png", flat(0), "a", "train"), Row("white.png", flat(255), "b", "train"))
    value = "2 images of one colour (black.png, white.png)"
    expected = [("blank images", value)] if most else []
    assert remarks(tmp_path, rows, replace(QUIET, max_blank_ratio=most)) == expected


def test_a_hidden_folder_is_a_remark_and_a_hidden_file_is_none(library):
    dataset = library.load("sound")
    hidden = Remarks(hidden=2, hidden_names=(".DS_Store", ".cats/"))
    hiding = replace(dataset, manifest=replace(dataset.manifest, remarks=hidden))
    assert [str(remark)[:37] for remark in collect_remarks(hiding, QUIET, ())] == [
        "hidden folders: .cats/ passed over; r"
    ]


def test_warnings_of_the_ingest_are_remarks(tmp_path):
    rows = [replace(row, label={"a": "cat", "b": "Cat"}[row.label]) for row in sound_rows()]
    [(check, value)] = remarks(tmp_path, rows)
    assert (check, value[:48]) == ("ingest", "names that differ only in case or Unicode form: ")
