"""From folders of photographs to a pushed model, and from bad data to a stop: one root and all that happens in it.

The data comes in two batches: what drifts between them is found, a soft gate says so, and the first schema holds.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from PIL import Image

from pipeline.cli.json_schema import result_schema
from tests.command import feedline
from tests.make_images import class_folders, crop, encode, jpeg

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

COMPONENTS = [
    *("ImageExampleGen", "StatisticsGen", "InferredSchema", "ExampleValidator", "PreviousSpan", "DatasetGate"),
    *("Transform", "Trainer", "Evaluator", "Pusher", "DatasetReport"),
]
SMALL = ("--image-side", 32, "--epochs", 12, "--batch-size", 8, "--splits", "train=0.7,eval=0.3", "--shards", 2)
SMALL += ("--set", "evaluate.above_largest_class=false")  # of a handful of images no model is surely better
LIMITS = ("--set", "gate.max_drift_jensen_shannon=0.2", "--set", "gate.max_drift_l_infinity=0.2")
REPORTING = ("--gate", "report")


def arguments(workplace: Path, *more: object) -> tuple:
    """The command of every run of this file, which is given the newest batch and a schema."""
    paths = ("--images", workplace / "photos" / "{SPAN}", "--root", workplace / "work")
    return ("run", *paths, "--schema", workplace / "schema.pbtxt", *SMALL, *LIMITS, *more)


def summary_of(result) -> dict:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def verdict(summary: dict) -> dict:
    return json.loads((Path(summary["steps"]["DatasetGate"]["outputs"]["verdict"]) / "verdict.json").read_text())


def mismatches(command: str, values: dict) -> list[str]:
    """Every difference between a result and the schema of its command."""
    return [error.message[:200] for error in Draft202012Validator(result_schema(command)).iter_errors(values)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("end_to_end")
    photos = class_folders(folder / "photos" / "1", per_class=40)
    (photos / "china" / "broken.jpg").write_bytes(jpeg()[:1000])
    shutil.copy(photos / "flower" / "000.jpg", photos / "flower" / "copy.jpg")
    return folder


@pytest.fixture(scope="module")
def first_run(workplace: Path, warm: Path) -> dict:
    result = feedline(*arguments(workplace, *REPORTING, "--verbose", "--json"), programs=warm)
    assert "\nmemory   at most" in result.stderr
    assert "schema.pbtxt does not exist: it will be inferred and written" in result.stderr
    return summary_of(result)


@pytest.fixture(scope="module")
def second_run(workplace: Path, warm: Path, first_run: dict) -> dict:
    """The first batch again, made dark."""
    shutil.copytree(workplace / "photos" / "1", workplace / "photos" / "2")
    (workplace / "photos" / "2" / "china" / "broken.jpg").unlink()
    for path in (workplace / "photos" / "2").rglob("*.jpg"):
        with Image.open(path) as image:
            pixels = np.asarray(image)
        Image.fromarray((pixels * 0.12).astype(np.uint8)).save(path, quality=90)
    return summary_of(feedline(*arguments(workplace, *REPORTING, "--epochs", 1, "--json"), programs=warm))


def test_every_component_ran_and_every_image_is_accounted_for(first_run):
    assert {name: step["state"] for name, step in first_run["steps"].items()} == dict.fromkeys(COMPONENTS, "complete")
    counts = first_run["dataset"]["counts"]
    assert (counts["found"], counts["written"], counts["rejects"]) == (82, 81, {"undecodable": 1})
    assert (counts["duplicate_clusters"], counts["duplicate_images"]) == (1, 2)
    assert first_run["anomalies"] == {"train": 0, "eval": 0}
    assert first_run["rates"]["feedline"] > 0
    assert first_run["rates"]["naive"] > 0


def test_the_model_learned_something(first_run):
    # Sky and roofs against petals: chance is 0.5.
    assert first_run["accuracy"]["value"] >= 0.8
    assert first_run["accuracy"]["low"] < first_run["accuracy"]["value"]


def test_outputs_lie_where_the_summary_says(workplace, first_run):
    assert (Path(first_run["model_dir"]) / "saved_model.pb").is_file()
    assert Path(first_run["model_dir"]).parent == workplace / "work" / "serving"
    assert "flower/copy.jpg" in Path(first_run["report"]).read_text(encoding="utf-8")
    assert list((workplace / "work" / "artifacts" / "Trainer" / "model_run").rglob("events.out.tfevents.*"))


def test_the_pushed_model_classifies_image_files(workplace, warm, first_run):
    (workplace / "new.jpg").write_bytes(encode(crop(77, 60, 60, "flower.jpg"), "JPEG", quality=90))
    result = feedline("predict", workplace / "work" / "serving", workplace / "new.jpg", "--json", programs=warm)
    assert mismatches("predict", summary_of(result)) == []
    [prediction] = json.loads(result.stdout)["predictions"]
    assert prediction["text"] in ("china", "flower")
    assert 0.5 <= prediction["probability"] <= 1


def test_results_for_machines_are_as_their_schemas_say(workplace, warm, first_run):
    assert mismatches("run", first_run) == []
    assert mismatches("demo", first_run) == []  # the same pipeline, and the same summary
    lineage = summary_of(feedline("lineage", workplace / "work" / "serving", "--json", programs=warm))
    assert mismatches("lineage", lineage) == []


def test_the_first_span_has_nothing_to_be_compared_with_and_leaves_its_schema(workplace, first_run):
    assert [item for item in verdict(first_run)["comparisons"] if item["kind"] == "drift"] == []
    assert first_run["schema_inferred"] is True
    assert first_run["schema"] == str(workplace / "schema.pbtxt")
    assert "image/class/text" in (workplace / "schema.pbtxt").read_text(encoding="utf-8")


def test_the_drift_that_was_put_in_is_found_and_nothing_else(second_run):
    result = verdict(second_run)
    drifted = {
        item["feature"] for item in result["comparisons"] if item["kind"] == "drift" and item["value"] > item["limit"]
    }
    assert "image/brightness" in drifted
    assert drifted.isdisjoint({"image/short_side", "image/aspect_ratio", "image/format", "image/class/text"})
    findings = [item for item in result["findings"] if item["check"] == "drift"]
    assert {item["feature"] for item in findings} == drifted
    assert {item["split"] for item in findings} <= {"train", "eval"}
    assert {item["baseline"] for item in result["comparisons"] if item["kind"] == "drift"} == {"span 1"}


def test_the_second_span_is_read_under_the_reviewed_schema_and_its_report_shows_the_drift(
    workplace, first_run, second_run
):
    assert second_run["schema_inferred"] is False
    assert second_run["steps"]["ReviewedSchema"]["state"] == "complete"
    assert second_run["dataset"]["digest"] != first_run["dataset"]["digest"]
    page = (workplace / "work" / "report.html").read_text(encoding="utf-8")
    assert "image/brightness" in page
    assert "drift" in page


def test_a_gate_that_stops_names_the_drift_and_leaves_a_page(workplace, warm, second_run):
    result = feedline(*arguments(workplace), programs=warm)
    assert result.returncode == 3
    assert "drift: image/brightness in train" in result.stderr
    assert "Traceback" not in result.stderr
    assert f"the findings of the gate are in {workplace / 'work' / 'report.html'}" in result.stderr


def test_a_span_that_was_run_before_comes_from_the_cache(workplace, warm, first_run, second_run):
    shutil.rmtree(workplace / "work" / "serving")  # the cache of the Pusher does not know
    (workplace / "schema.pbtxt").rename(workplace / "reviewed.pbtxt")  # the first run had none
    span = ("--span", 1, *REPORTING)
    again = summary_of(feedline(*arguments(workplace, *span, "--json"), programs=warm))
    # A resolver looks at what there is, every time.
    assert {step["state"] for name, step in again["steps"].items() if name != "PreviousSpan"} == {"cached"}
    assert again["model_dir"] == first_run["model_dir"]
    assert (Path(again["model_dir"]) / "saved_model.pb").is_file()
    assert again["dataset"]["digest"] == first_run["dataset"]["digest"]


def test_an_edited_schema_is_read_again_and_a_model_that_is_too_weak_is_not_pushed(workplace, warm, second_run):
    reviewed = workplace / "edited.pbtxt"
    text = (workplace / "schema.pbtxt").read_text(encoding="utf-8")
    span = ("--span", 1, *REPORTING, "--schema", reviewed)
    reviewed.write_text(text, encoding="utf-8")
    weak = feedline(*arguments(workplace, *span, "--min-accuracy", 1, "--epochs", 1), programs=warm)
    assert weak.returncode == 3
    assert "is below evaluate.min_accuracy 1; the model was not pushed" in weak.stderr
    demanded = 'feature { name: "extra/age" type: INT presence { min_fraction: 1.0 min_count: 1 } }'
    reviewed.write_text(text + demanded, encoding="utf-8")
    edited = feedline(*arguments(workplace, "--span", 1, "--schema", reviewed), programs=warm)
    assert edited.returncode == 3
    assert "anomaly: extra/age in train" in edited.stderr
