"""From a folder of photographs to a pushed model, and from bad data to a stop. Only the first command starts cold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.command import feedline
from tests.make_images import class_folders, crop, encode, flipped, jpeg

pytestmark = pytest.mark.e2e

COMPONENTS = [
    "ImageExampleGen",
    "StatisticsGen",
    "InferredSchema",
    "ExampleValidator",
    "PreviousSpan",
    "DatasetGate",
    "Transform",
    "Trainer",
    "Evaluator",
    "Pusher",
    "DatasetReport",
]
SMALL = ("--image-side", 32, "--epochs", 12, "--batch-size", 8, "--splits", "train=0.7,eval=0.3", "--shards", 2)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("end_to_end")
    photos = class_folders(folder / "photos", per_class=40)
    (photos / "china" / "broken.jpg").write_bytes(jpeg()[:1000])
    shutil.copy(photos / "flower" / "000.jpg", photos / "flower" / "copy.jpg")
    return folder


@pytest.fixture(scope="module")
def first_run(workplace: Path) -> dict:
    result = feedline("run", "--images", workplace / "photos", "--root", workplace / "work", *SMALL, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


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
    assert "image/class/text" in (workplace / "work" / "schema.inferred.pbtxt").read_text(encoding="utf-8")
    assert list((workplace / "work" / "artifacts" / "Trainer" / "model_run").rglob("events.out.tfevents.*"))


def test_the_pushed_model_classifies_image_files(workplace, warm, first_run):
    (workplace / "new.jpg").write_bytes(encode(crop(77, 60, 60, "flower.jpg"), "JPEG", quality=90))
    result = feedline("predict", workplace / "work" / "serving", workplace / "new.jpg", "--json", programs=warm)
    assert result.returncode == 0, result.stderr
    [prediction] = json.loads(result.stdout)["predictions"]
    assert prediction["text"] in ("china", "flower")
    assert 0.5 <= prediction["probability"] <= 1


def test_verify_finds_the_dataset_sound_and_a_changed_byte(workplace, warm, first_run):
    dataset = workplace / "copy_of_dataset"
    shutil.copytree(first_run["dataset_dir"], dataset)
    assert feedline("verify", dataset, programs=warm).returncode == 0
    shard = dataset / "Split-train" / "data-00001-of-00002.tfrecord"
    shard.write_bytes(flipped(shard.read_bytes(), 5000))
    result = feedline("verify", dataset, programs=warm)
    assert result.returncode == 3
    assert "data-00001-of-00002.tfrecord" in result.stderr
    assert "data-00000-of-00002.tfrecord" not in result.stderr


def test_a_second_run_comes_from_the_cache_and_a_relabelled_image_does_not(workplace, warm, first_run):
    shutil.rmtree(workplace / "work" / "serving")  # the cache of the Pusher does not know
    again = feedline("run", "--images", workplace / "photos", "--root", workplace / "work", *SMALL, "--json")
    assert again.returncode == 0, again.stderr
    summary = json.loads(again.stdout)
    # A resolver looks at what there is, every time.
    assert {step["state"] for name, step in summary["steps"].items() if name != "PreviousSpan"} == {"cached"}
    assert summary["model_dir"] == first_run["model_dir"]
    assert (Path(summary["model_dir"]) / "saved_model.pb").is_file()
    assert summary["dataset"]["digest"] == first_run["dataset"]["digest"]

    (workplace / "photos" / "china" / "039.jpg").rename(workplace / "photos" / "flower" / "039b.jpg")
    reviewed = workplace / "work" / "schema.inferred.pbtxt"
    arguments = ("run", "--images", workplace / "photos", "--root", workplace / "work", *SMALL, "--schema", reviewed)
    moved = feedline(*arguments, "--json", programs=warm)
    assert moved.returncode == 0, moved.stderr
    summary = json.loads(moved.stdout)
    assert summary["steps"]["ImageExampleGen"]["state"] == "complete"
    assert summary["steps"]["ReviewedSchema"]["state"] == "complete"
    assert summary["dataset"]["digest"] != first_run["dataset"]["digest"]
    assert summary["schema_inferred"] is False


def test_an_edited_schema_is_read_again_and_a_model_that_is_too_weak_is_not_pushed(workplace, warm, first_run):
    reviewed = workplace / "reviewed.pbtxt"
    text = (workplace / "work" / "schema.inferred.pbtxt").read_text(encoding="utf-8")
    arguments = ("run", "--images", workplace / "photos", "--root", workplace / "work", *SMALL, "--schema", reviewed)
    reviewed.write_text(text, encoding="utf-8")
    weak = feedline(*arguments, "--min-accuracy", 1, "--epochs", 1, programs=warm)
    assert weak.returncode == 3
    assert "is under evaluate.min_accuracy; the model was not pushed" in weak.stderr
    demanded = 'feature { name: "extra/age" type: INT presence { min_fraction: 1.0 min_count: 1 } }'
    reviewed.write_text(text + demanded, encoding="utf-8")
    edited = feedline(*arguments, programs=warm)
    assert edited.returncode == 3
    assert "anomaly: extra/age in train" in edited.stderr
