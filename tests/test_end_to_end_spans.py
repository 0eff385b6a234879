"""Data in batches: what drifts between two spans is found, a soft gate says so, and the schema of the first holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.command import feedline
from tests.make_images import class_folders

pytestmark = pytest.mark.e2e

SMALL = ("--image-side", 32, "--epochs", 1, "--batch-size", 8, "--splits", "train=0.7,eval=0.3", "--shards", 2)
LIMITS = ("--set", "gate.max_drift_jensen_shannon=0.2", "--set", "gate.max_drift_l_infinity=0.2")


def darken(folder: Path) -> None:
    for path in folder.rglob("*.jpg"):
        with Image.open(path) as image:
            pixels = np.asarray(image)
        Image.fromarray((pixels * 0.12).astype(np.uint8)).save(path, quality=90)


def run(workplace: Path, warm: Path, *more: object) -> dict:
    arguments = ("run", "--images", workplace / "photos" / "{SPAN}", "--root", workplace / "work")
    schema = ("--schema", workplace / "schema.pbtxt")
    result = feedline(*arguments, *SMALL, *LIMITS, *schema, "--gate", "report", "--json", *more, programs=warm)
    assert result.returncode == 0, result.stderr
    return {**json.loads(result.stdout), "said": result.stderr}


def verdict(summary: dict) -> dict:
    return json.loads((Path(summary["steps"]["DatasetGate"]["outputs"]["verdict"]) / "verdict.json").read_text())


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spans")
    class_folders(folder / "photos" / "1", per_class=40)
    return folder


@pytest.fixture(scope="module")
def runs(workplace: Path, warm: Path) -> tuple[dict, dict]:
    first = run(workplace, warm)
    shutil.copytree(workplace / "photos" / "1", workplace / "photos" / "2")
    darken(workplace / "photos" / "2")
    return first, run(workplace, warm)


def test_the_first_span_has_nothing_to_be_compared_with_and_leaves_its_schema(workplace, runs):
    first, _ = runs
    found = verdict(first)
    assert [item for item in found["comparisons"] if item["kind"] == "drift"] == []
    assert first["schema_inferred"] is True
    assert first["schema"] == str(workplace / "schema.pbtxt")
    assert "schema.pbtxt is not there: it will be inferred and written" in first["said"]


def test_the_drift_that_was_put_in_is_found_and_nothing_else(runs):
    found = verdict(runs[1])
    drifted = {
        item["feature"] for item in found["comparisons"] if item["kind"] == "drift" and item["value"] > item["limit"]
    }
    assert "image/brightness" in drifted
    assert drifted.isdisjoint({"image/short_side", "image/aspect_ratio", "image/format", "image/class/text"})
    findings = [item for item in found["findings"] if item["check"] == "drift"]
    assert {item["feature"] for item in findings} == drifted
    assert {item["split"] for item in findings} <= {"train", "eval"}
    assert {item["baseline"] for item in found["comparisons"] if item["kind"] == "drift"} == {"span 1"}


def test_the_second_span_is_read_under_the_reviewed_schema_and_its_report_shows_the_drift(workplace, runs):
    first, second = runs
    assert second["schema_inferred"] is False
    assert second["dataset"]["digest"] != first["dataset"]["digest"]
    page = (workplace / "work" / "report.html").read_text(encoding="utf-8")
    assert "image/brightness" in page
    assert "drift" in page


def test_a_span_that_is_asked_for_comes_from_the_cache(workplace, warm, runs):
    again = run(workplace, warm, "--span", 1)
    assert again["dataset"]["digest"] == runs[0]["dataset"]["digest"]
    assert again["steps"]["ImageExampleGen"]["state"] == "cached"


def test_a_gate_that_stops_names_the_drift_and_leaves_a_page(workplace, warm, runs):
    arguments = ("run", "--images", workplace / "photos" / "{SPAN}", "--root", workplace / "work")
    result = feedline(*arguments, *SMALL, *LIMITS, programs=warm)
    assert result.returncode == 3
    assert "drift: image/brightness in train" in result.stderr
    assert "Traceback" not in result.stderr
    assert f"what the gate found is in {workplace / 'work' / 'report.html'}" in result.stderr
