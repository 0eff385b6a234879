from __future__ import annotations

import base64
import hashlib
import html
import shutil
from dataclasses import replace

import pyarrow as pa
import pytest

from beam_jobs.dataset import manifest, schemas
from beam_jobs.dataset.manifest import Remarks
from beam_jobs.errors import CorruptDataset, SourceError
from beam_jobs.ingest import run
from beam_jobs.options import About, IngestOptions, PixelOptions, TableColumns
from components.dataset_report import ArtifactDetail, RunDetails, StepDetail
from components.dataset_report.render import render
from components.evaluation import Accuracy, Evaluation
from tests import image_table
from tests.components.dataset_gate import datasets
from tests.components.dataset_gate.datasets import Row
from tests.components.dataset_report.page import HOSTILE_CLASS, HOSTILE_NAME, Page, ingest
from tests.make_images import png

HALF = Accuracy(value=0.8125, low=0.75, high=0.9, images=64)
FINDING = {"check": "drift", "split": "train", "feature": "f", "value": "0.2", "limit": "0.1", "remedy": "look"}
COMPARISON = {"kind": "drift", "baseline": "span 3", "split": "train", "feature": "image/brightness"}
VERDICT = {
    "mode": "report",
    "checks": [
        {
            "check": "imbalance",
            "measured": "4 : 1",
            "limit": "none",
            "setting": "max_imbalance",
            "result": "not checked",
        }
    ],
    "anomalies": {"train": 0},
    "findings": [FINDING],
    "comparisons": [
        {**COMPARISON, "measure": "jensen_shannon", "value": 0.2, "limit": 0.1},
        {**COMPARISON, "measure": "l_infinity", "value": 0.3, "limit": 1.0},
    ],
    "notes": ["nothing to note"],
}


def test_the_page_loads_nothing_and_runs_its_own_script_alone(dataset):
    text = render(str(dataset))
    page = Page(text)
    assert text.startswith("<!doctype html>")
    assert "http://" not in text
    assert "https://" not in text
    (policy,) = [attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes]
    sources = {
        kind: base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for kind, content in page.own.items()
    }
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{sources['style']}'; "
        f"script-src 'sha256-{sources['script']}'; base-uri 'none'; form-action 'none'"
    )
    names = [tag for tag, _ in page.tags]
    assert names.count("script") == names.count("style") == 1
    assert set(names).isdisjoint({"iframe", "object", "embed", "base", "form"})
    for _, attributes in page.tags:
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.get("href", "#").startswith(("#", "data:"))
        assert attributes.keys().isdisjoint({"srcset", "action", "style"})
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in text
    assert "@import" not in text


def test_the_card_has_the_description_with_its_lines(tmp_path):
    about = About(title="Two <b> scenes", license="MIT", citation="@misc{a,\n  year={2026}}\x07")
    text = render(str(ingest(tmp_path, {"a/1.png": png(1)}, about=about)))
    assert "<h1>Two &lt;b&gt; scenes</h1>" in text
    assert '<dt>Citation</dt><dd class="lines">@misc{a,\n  year={2026}}\\x07</dd>' in text
    words = Page(text).words()
    assert "Licence MIT Citation @misc" in words
    assert not [unknown for unknown in ("Intended use", "about.title") if unknown in words]


@pytest.mark.parametrize(("share", "is_bad"), [(0.5, False), (0.8, True), (None, False)])
def test_the_accuracy_stands_beside_that_of_the_largest_class(dataset, share, is_bad):
    largest = {"camera": {"a": share}} if share else {}
    slices = {"camera": {"a": HALF}}
    evaluation = Evaluation(overall=HALF, classes={}, slices=slices, slice_largest=largest, largest_class_share=share)
    text = render(str(dataset), evaluation)
    assert (f'data-value="{share}">{share or 0:.1%}'.replace("%", " %") in text) == bool(share)
    beside = f"; largest class {share:.1%}".replace("%", " %") if share else ""
    assert f"<div{' class=bad' if is_bad else ''}><dt>accuracy{beside}</dt><dd>81.2 %</dd></div>" in text
    assert ("with <code>evaluate.above_largest_class</code>, the interval must be above it" in text) == bool(share)


def test_hostile_names_stay_text(tmp_path):
    files = {
        f"{HOSTILE_CLASS}/script>/{HOSTILE_NAME}": png(1),
        "plain/a.png": png(2),
        f"plain/{HOSTILE_NAME}": b"<b>not an image",
    }
    text = render(str(ingest(tmp_path, files)), source=str(tmp_path / "source"))
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert {picture["alt"] for picture in page.images()} == {f"{HOSTILE_CLASS}/script>/{HOSTILE_NAME}", "plain/a.png"}
    assert all(picture["src"].startswith("data:image/") for picture in page.images())
    assert HOSTILE_CLASS in page.text
    assert f"plain/{HOSTILE_NAME}" in page.text  # the reject
    assert "<script>alert(1)" not in text
    assert html.escape(HOSTILE_CLASS) in text


def test_hostile_words_of_gate_evaluation_and_run_stay_text(dataset):
    bad = "</script><script>alert(3)</script>"
    run_details = RunDetails(
        steps=(StepDetail(component=bad, state=bad, seconds=1.0),),
        artifacts=(ArtifactDetail(id=1, type=bad, producer=bad, properties={bad: bad}),),
    )
    verdict = {
        "limits": {bad: bad},
        "anomalies": {bad: 1},
        "findings": [dict.fromkeys(FINDING, bad)],
        "remarks": [dict.fromkeys(("check", "value", "remedy"), bad)],
        "comparisons": [{**dict.fromkeys(COMPARISON, bad), "measure": bad, "value": 0.5, "limit": 0.1}],
        "notes": [bad],
    }
    evaluation = Evaluation(
        overall=HALF,
        classes={bad: HALF},
        slices={bad: {bad: HALF}},
        confusion={"labels": [bad, "b"], "counts": [[1, 2], [3, 4]]},
    )
    page = Page(render(str(dataset), evaluation, verdict=verdict, run=run_details))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "alert" not in page.own["script"]
    assert page.text.count(bad) > 10


def test_the_card_is_that_of_the_manifest(dataset):
    page = Page(render(str(dataset)))
    made = manifest.load(str(dataset))
    words = page.words()
    for shown in (made.digest, made.options_digest, "one label each, 2 classes", "Found 24 images", "seed 0"):
        assert shown in words
    for name, info in made.splits.items():
        assert f"{name} {info.records} {100 * info.records / 24:.1f} % 2 2 " in words
    assert f"Red {made.channels.mean_rgb[0]:.2f} {made.channels.std_rgb[0]:.2f}" in words


def test_warnings_of_the_ingest_stand_above_the_card(tmp_path, dataset):
    assert "Warning:" not in Page(render(str(dataset))).words()
    shutil.copytree(dataset, tmp_path / "warned")
    remarks = Remarks(warnings=("mind <b>this</b>",), hidden=1, hidden_names=(".net/",))
    manifest.write(replace(manifest.load(str(dataset)), remarks=remarks), str(tmp_path / "warned"))
    words = Page(render(str(tmp_path / "warned"))).words()
    assert "Dataset Warning: mind <b>this</b> Card" in words
    assert "Hidden 1 name passed over: .net/" in words


def test_what_is_not_known_has_no_section(dataset):
    page = Page(render(str(dataset)))
    sections = {attributes["id"] for tag, attributes in page.tags if tag == "section"}
    assert sections == {
        "dataset",
        "classes",
        "gallery",
        "distributions",
        "extremes",
        "comparison",
        "rejects",
        "duplicates",
    }
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert links == {f"#{name}" for name in sections} | {"#main"}


def test_findings_stand_first_and_the_nearest_limits_with_them(dataset):
    words = Page(render(str(dataset), verdict=VERDICT)).words()
    assert words.index("The gate found 1 problem") < words.index("Channels of train")
    assert "Its mode is report, so the pipeline continued." in words
    assert "drift in train , f 0.2 — allowed: 0.1 look" in words
    assert "nothing to note" in words
    assert "Setting Result imbalance 4 : 1 none gate.max_imbalance not checked" in words
    assert "drift over image/brightness train span 3 Jensen-Shannon 0.200 0.1" in words
    assert "L-infinity 0.300 not checked" in words
    assert "limit of skew and drift is the setting plus the difference of two random samples of these sizes." in words


def test_the_training_is_drawn_with_the_epoch_that_was_exported(dataset):
    training = {
        "history": {"loss": [2.0, 1.0, 0.5], "val_loss": [2.0, 1.5, 1.75], "train_seconds": [60.0, 3.0, 2.0]},
        "config": {"train": {"model": "small_cnn", "learning_rate": 0.001, "schedule": "cosine", "epochs": 9}},
        "parameters": 12345,
        "best": {"monitor": "val_loss", "epoch": 1, "value": 1.5},
        "exported": "best",
        "input_wait": 0.25,
    }
    page = Page(render(str(dataset), run=RunDetails(training=training)))
    words = page.words()
    assert "Parameters 12,345" in words
    assert "Epochs 3 of 9" in words
    assert (
        "Best epoch 2, by val_loss Exported the best epoch Duration of the steps 1:05 Waited for input 25.0 %" in words
    )
    assert "Epoch Loss Loss of validation 1 2 2 2 1 1.5 3 0.5 1.75" in words
    lines = [attributes["points"] for tag, attributes in page.tags if tag == "polyline"]
    assert lines == ["0.0,0.0 200.0,80.0 400.0,120.0", "0.0,0.0 200.0,40.0 400.0,20.0"]
    assert "by epoch, best: 1.5 in epoch 2; the dashed line is the epoch that was exported." in words
    assert "M200.0 0V120" in [attributes.get("d") for tag, attributes in page.tags if tag == "path"]


def test_a_long_training_shows_some_epochs_and_a_short_one_a_dot(dataset):
    history = {"loss": [1.0 / epoch for epoch in range(1, 1201)], "images_per_second": [7.0] * 1200}
    history["learning_rate"] = [0.5] * 600  # of a release that began to note it after half of the epochs
    page = Page(render(str(dataset), run=RunDetails(training={"history": history})))
    assert "Epochs 1200 of 1200" in page.words()
    assert "1198 0.0008347 0.5 7" in page.words()
    assert "4 0.25 - 7" in page.words()
    (line,) = [attributes["points"].split() for tag, attributes in page.tags if tag == "polyline"]
    assert (len(line), line[-1].split(",")[0]) == (400, "399.3")
    page = Page(render(str(dataset), run=RunDetails(training={"history": {"loss": [1.0]}})))
    assert [attributes["points"] for tag, attributes in page.tags if tag == "polyline"] == ["0.0,120.0 0.0,120.0"]


def test_remarks_make_a_verdict_amber_and_stand_below_findings(dataset):
    remarks = [{"check": "imbalance", "value": "11 : 1", "remedy": "add images"}, {"check": "ingest", "value": "mind"}]
    page = Page(render(str(dataset), verdict={**VERDICT, "findings": [], "remarks": remarks}))
    (gate,) = [attributes for tag, attributes in page.tags if attributes.get("id") == "gate"]
    assert gate["class"] == "remarked"
    classes = [attributes.get("class") for _, attributes in page.tags]
    assert ("good" in classes, "warn" in classes) == (False, True)
    words = page.words()
    assert "Passed with 2 remarks" in words
    assert "imbalance : 11 : 1 add images ingest : mind" in words
    words = Page(render(str(dataset), verdict={**VERDICT, "remarks": remarks})).words()
    assert words.index("The gate found 1 problem") < words.index("imbalance : 11 : 1")


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ({**VERDICT, "findings": []}, "Anomalies: 0 in train."),
        ({"limits": {}, "anomalies": {}}, "There is no verdict of a gate with distances"),  # of an older gate
    ],
)
def test_a_verdict_without_findings_says_so(dataset, verdict, said):
    page = Page(render(str(dataset), verdict=verdict))
    assert "The gate found no problem" in page.words()
    assert said in page.words()
    assert ("div", {"class": "good"}) in page.tags


def test_no_path_of_the_machine_is_on_the_page(tmp_path):
    for index in range(4):
        (tmp_path / f"{index}.png").write_bytes(png(index))
    (tmp_path / "broken.png").write_bytes(b"no")
    names = [*(f"{index}.png" for index in range(4)), "broken.png"]
    lines = ["image,label", *(f"{tmp_path / name},cat" for name in names), f"{tmp_path}/missing.png,cat"]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    run(
        IngestOptions(
            source=str(tmp_path / "table.csv"), out=str(tmp_path / "out"), splits={"all": 1}, max_reject_ratio=1
        )
    )
    text = render(str(tmp_path / "out"), source=str(tmp_path), verdict={**VERDICT, "findings": []})
    assert str(tmp_path) not in text
    assert str(tmp_path.parent) not in text
    assert f"…/{tmp_path.name}/0.png" in text


def test_no_dataset_and_a_damaged_one_are_refused(dataset, tmp_path):
    with pytest.raises(SourceError, match=r"none is not a dataset: it has no dataset\.json"):
        render(str(tmp_path / "none"))
    for shard in (dataset / "Split-train").iterdir():
        data = bytearray(shard.read_bytes())
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
        shard.write_bytes(data)
    with pytest.raises(CorruptDataset, match=r"Split-(train|eval)/data-0000\d-of-00002\.tfrecord has a corrupt"):
        render(str(dataset))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("images/*", "part-train-00000.parquet"),
        ("rejects.parquet", "rejects.parquet"),
        ("Split-train/*", "tfrecord cannot be read: No such file.*; run `feedline verify`"),
    ],
)
def test_a_damaged_or_missing_file_is_refused_by_name(dataset, name, message):
    for path in dataset.glob(name):
        path.unlink() if path.suffix == ".tfrecord" else path.write_bytes(b"not parquet")
    with pytest.raises(CorruptDataset, match=message):
        render(str(dataset))


@pytest.mark.parametrize(
    ("columns", "options", "shown"),
    [
        (TableColumns(labels="label"), {}, ["cat", "dog"]),
        (TableColumns(label=""), {"facts": "basic"}, ["no class"]),
        (TableColumns(), {"pixels": PixelOptions(policy="raw", side_px=16)}, ["cat|dog"]),
    ],
)
def test_datasets_of_every_kind_have_a_page(tmp_path, columns, options, shown):
    rows = [Row(f"{index}.png", png(index), "cat|dog", "") for index in range(4)]
    made = datasets.ingest(tmp_path / "made", rows, columns, splits={"all": 1}, **options)
    page = Page(render(str(made), input_options={"image_side_px": 16}))
    for name in shown:
        assert name in page.words()
    gallery = [attributes for tag, attributes in page.tags if "data-item" in attributes]
    assert len(gallery) == 4 * len(shown)
    measured = options.get("facts") != "basic"
    assert ("Channels of all" in page.text) == ("Brightness (0-255)" in page.text) == measured
    assert ("The ingest did not search for them; --near-duplicates report does." in page.words()) is not measured
    # The pictures of augmentation need no label: each image as it is stored, as trained on, and as evaluated.
    drawn = [attributes for tag, attributes in page.tags if tag == "td" and attributes.get("class") == "stored"]
    assert len(drawn) == 4


@pytest.mark.parametrize("cell", ["[" * 100_000, "3"])
def test_a_cell_that_no_ingest_writes_is_a_corrupt_dataset(dataset, cell):
    rows = [{**row, "extra": cell} for row in image_table.read(dataset).to_pylist()]
    image_table.write(dataset, pa.Table.from_pylist(rows, schemas.IMAGES))
    with pytest.raises(CorruptDataset, match=r"the image table has the cell '.*; write the dataset again"):
        render(str(dataset))
