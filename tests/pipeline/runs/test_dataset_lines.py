from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from beam_jobs.dataset import manifest
from beam_jobs.dataset.manifest import Remarks
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions
from pipeline.runs.dataset_lines import aligned, dataset_lines
from tests.make_images import class_folders


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    place = tmp_path_factory.mktemp("lines")
    class_folders(place / "photos", per_class=3)
    run(IngestOptions(source=str(place / "photos"), out=str(place / "out"), splits={"all": 1}, shards=1))
    return manifest.load(str(place / "out"))


def counted(dataset, **counts):
    return dict(dataset_lines(replace(dataset, counts=replace(dataset.counts, **counts))))


def test_a_dataset_without_rejects_and_copies(dataset):
    (shard,) = dataset.splits["all"].shards
    assert dataset_lines(dataset) == [
        ("images", f"{dataset.counts.found} found, {dataset.counts.written} written"),
        ("rejected", "none"),
        ("duplicates", "none"),
        ("classes", f"{len(dataset.labels)}: {', '.join(dataset.labels)}"),
        ("split all", f"{dataset.counts.written} images, 1 shard, {shard.bytes:,} bytes"),
    ]
    unsearched = replace(dataset, options={**dataset.options, "near_duplicates": "off"})
    line = ("near duplicates", "not searched; --near-duplicates report searches for them")
    assert set(dataset_lines(unsearched)) - set(dataset_lines(dataset)) == {line}


@pytest.mark.parametrize(
    ("counts", "line", "text"),
    [
        ({"rejects": {"too_small": 1200, "no_label": 1}}, "rejected", "1,201 (1,200 too_small, 1 no_label)"),
        (
            {"duplicate_images": 5, "duplicate_clusters": 2, "duplicates_dropped": 3, "label_conflicts": 1},
            "duplicates",
            "5 images in 2 sets, 3 dropped, label conflicts in 1",
        ),
        ({"near_images": 4, "near_clusters": 1, "near_dropped": 3}, "near duplicates", "4 images in 1 set, 3 dropped"),
    ],
)
def test_what_became_of_images_is_said(dataset, counts, line, text):
    assert counted(dataset, **counts)[line] == text


def test_warnings_of_the_ingest_and_of_the_dataset_are_its_last_lines(dataset):
    (name,) = dataset.splits
    lonely = replace(dataset.splits[name], classes={"sky": 3})
    two = replace(dataset, labels=("sea", "sky"), splits={name: dataset.splits[name], "eval": lonely})
    two = replace(two, remarks=Remarks(warnings=("mind this", "and that")))
    expected = ["mind this", "and that", "split eval has no image of 1 class: sea"]
    assert dataset_lines(two)[-3:] == [("warning", line) for line in expected]


def test_classes_are_named_so_that_two_in_one_cell_show(dataset):
    lines = dict(dataset_lines(replace(dataset, labels=("sea", "sky", "sky,sea"))))
    assert lines["classes"] == "3: sea, sky, sky,sea"
    assert "classes" not in dict(dataset_lines(replace(dataset, labels=())))


def test_hidden_names_have_a_line(dataset):
    remarks = Remarks(hidden=2, hidden_names=("cat/.x.png", ".net/"))
    assert dict(dataset_lines(replace(dataset, remarks=remarks)))["hidden"] == "2 names passed over: cat/.x.png, .net/"
    remarks = replace(remarks, hidden=3)
    assert remarks.hidden_text == "3 names passed over: cat/.x.png, .net/ ..."
    assert "hidden" not in dict(dataset_lines(dataset))


def test_lines_are_aligned():
    assert aligned([("images", "3"), ("split train", "4")]) == "images       3\nsplit train  4"
    assert aligned([("images", "3"), ("near duplicates", "4")]) == "images          3\nnear duplicates 4"


def test_a_terminal_breaks_lines_between_words_alone(monkeypatch):
    lines = [("images", "one, two-three, four"), ("dataset", "/a/path/that/is/longer")]
    monkeypatch.setenv("COLUMNS", "24")
    assert "\n" not in aligned(lines[:1])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert aligned(lines).splitlines() == [
        *("images       one,", " " * 13 + "two-three,", " " * 13 + "four"),
        "dataset      /a/path/that/is/longer",
    ]
