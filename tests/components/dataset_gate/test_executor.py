from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest
import tensorflow_data_validation as tfdv
from tfx.types import standard_artifacts

from beam_jobs.dataset import manifest
from beam_jobs.errors import GateFailed
from components.artifacts import DatasetVerdict
from components.dataset_gate.component import Executor, load_anomalies, load_baseline
from components.dataset_gate.limits import GateLimits
from tests.components.conftest import artifact, validate
from tests.components.dataset_gate.datasets import Row, ingest, photograph, sound_rows
from tests.components.dataset_gate.test_checks import anomalies


def anomalies_artifact(path: Path, **features_of_split: tuple[str, ...]):
    made = artifact(standard_artifacts.ExampleAnomalies, path, tuple(features_of_split))
    for split, features in features_of_split.items():
        found = anomalies(**{name: f"{name} is odd" for name in features})
        (path / f"Split-{split}").mkdir()
        (path / f"Split-{split}" / "SchemaDiff.pb").write_bytes(found.SerializeToString())
    return made


def do(dataset: Path, anomalies, limits: GateLimits, out: Path, baseline: Path | None = None, span: int = 0):
    """Runs the executor and returns the artifact of the verdict."""
    examples = artifact(standard_artifacts.Examples, dataset, ("train", "eval"))
    examples.span = span
    earlier = [artifact(standard_artifacts.Examples, baseline)] if baseline else []
    verdict = artifact(DatasetVerdict, out)
    Executor().Do(
        {"examples": [examples], "anomalies": [anomalies], "baseline_examples": earlier},
        {"verdict": [verdict]},
        {"limits": json.dumps(limits.to_json())},
    )
    return verdict


def test_a_sound_dataset_gets_a_verdict(dataset, tmp_path):
    anomalies = anomalies_artifact(tmp_path / "anomalies", train=(), eval=("image/width",))
    limits = GateLimits(max_anomalies=1)
    made = do(dataset, anomalies, limits, tmp_path / "verdict")
    written = json.loads((tmp_path / "verdict" / "verdict.json").read_text())
    comparisons, checks = written.pop("comparisons"), written.pop("checks")
    assert {"check": "anomaly", "measured": "1 feature", "limit": "1"}.items() <= checks[0].items()
    digest = manifest.load(str(dataset)).digest
    assert written == {
        "dataset_digest": digest,
        "mode": "stop",
        "limits": limits.to_json(),
        "anomalies": {"train": 0, "eval": 1},
        "findings": [],
        "remarks": [],
        "notes": ["drift was not measured: there is no earlier dataset"],
    }
    assert {(one["kind"], one["baseline"], one["split"]) for one in comparisons} == {("skew", "train", "eval")}
    for one in comparisons:
        assert one.keys() == {*("kind", "baseline", "split", "feature", "measure", "value", "limit", "sampling")}
        assert 0 <= one["value"] <= one["limit"] <= 1
    assert made.get_string_custom_property("dataset_digest") == digest
    assert made.get_int_custom_property("findings") == 0


def test_a_gate_that_only_reports_writes_and_logs_what_it_found(library, tmp_path, caplog):
    anomalies = anomalies_artifact(tmp_path / "anomalies", train=("image/width",), eval=())
    limits = GateLimits(mode="report", drift_limits={"brightness": 0.2})
    made = do(library.path("bright"), anomalies, limits, tmp_path / "verdict", library.path("sound"), span=7)
    written = json.loads((tmp_path / "verdict" / "verdict.json").read_text())
    assert written["mode"] == "report"
    found = [(one["check"], one["split"], one["feature"]) for one in written["findings"]]
    assert found == [
        ("anomaly", "train", "image/width"),
        ("drift", "train", "image/brightness"),
        ("drift", "eval", "image/brightness"),
    ]
    assert all(isinstance(text, str) and text for one in written["findings"] for text in one.values())
    assert made.get_int_custom_property("findings") == 3
    assert {one["baseline"] for one in written["comparisons"] if one["kind"] == "drift"} == {"span 0"}
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert warning.getMessage().startswith(
        "the dataset gate found 3 problems, its mode is report:\n  - anomaly: image/width"
    )
    assert warning.getMessage().count("\n  - drift: image/brightness in ") == 2


def test_findings_of_every_check_stop_the_pipeline_without_a_verdict(dataset, tmp_path):
    anomalies = anomalies_artifact(tmp_path / "anomalies", train=("image/height",), eval=("image/width",))
    with pytest.raises(GateFailed) as caught:
        do(dataset, anomalies, GateLimits(min_images_per_class=100), tmp_path / "verdict")
    lines = str(caught.value).splitlines()
    assert lines[0] == "the dataset gate found 3 problems, the pipeline stops here:"
    assert lines[1].startswith("  - anomaly: image/height in train: image/height is odd; allowed: 0 anomalous")
    assert lines[2].startswith("  - anomaly: image/width in eval: image/width is odd")
    assert lines[3].startswith("  - small classes: image/class/text in train: china with ")
    assert lines[4:] == []
    assert list((tmp_path / "verdict").iterdir()) == []
    conflict = ingest(tmp_path / "made", [*sound_rows(), Row("twin.jpg", photograph(0), "b", "train")])
    with pytest.raises(GateFailed, match=r"\n  and 1 remark, in the report$"):
        do(conflict, anomalies, GateLimits(min_images_per_class=100), tmp_path / "verdict")


def test_anomalies_are_read_where_example_validator_writes_them(tmp_path):
    schema = tfdv.infer_schema(tfdv.generate_statistics_from_dataframe(pd.DataFrame({"colour": ["red", "blue"] * 5})))
    statistics = {
        split: tfdv.generate_statistics_from_dataframe(pd.DataFrame({"colour": colours * 5}))
        for split, colours in {"train": ["red", "blue"], "eval": ["red", "green"]}.items()
    }
    found = load_anomalies(validate(schema, statistics, tmp_path))
    assert {split: list(anomaly.anomaly_info) for split, anomaly in found.items()} == {"train": [], "eval": ["colour"]}
    assert "green" in found["eval"].anomaly_info["colour"].description


def test_images_without_labels_and_with_several_pass_and_are_compared(tmp_path):
    from beam_jobs.options import TableColumns

    for kind, columns in {
        "several": TableColumns(labels="label", split="split"),
        "none": TableColumns(label="", split="split"),
    }.items():
        rows = [dataclasses.replace(row, label=("a|b", "b", "")[place % 3]) for place, row in enumerate(sound_rows())]
        made = ingest(tmp_path / kind, rows, columns, splits={"train": 0.5, "eval": 0.5})
        anomalies = anomalies_artifact(tmp_path / f"{kind}_anomalies", train=(), eval=())
        do(made, anomalies, GateLimits(require_all_classes=True, max_imbalance=2), tmp_path / f"{kind}_verdict")
        written = json.loads((tmp_path / f"{kind}_verdict" / "verdict.json").read_text())
        features = {one["feature"] for one in written["comparisons"]}
        assert ("image/class/text" in features) == (kind == "several")
        assert ("classes were not checked: the images have no labels" in written["notes"]) == (kind == "none")


@pytest.mark.parametrize(("digest", "compared"), [("", True), ("its own", True), ("0" * 64, False)])
def test_a_dataset_that_took_the_place_of_the_one_before_is_no_baseline(dataset, tmp_path, digest, compared):
    earlier = artifact(standard_artifacts.Examples, dataset)
    own = manifest.load(str(dataset)).digest
    earlier.set_string_custom_property("dataset_digest", own if digest == "its own" else digest)
    with contextlib.ExitStack() as stack:
        baseline, reasons = load_baseline(stack, [earlier], artifact(standard_artifacts.Examples, tmp_path / "now"))
    assert (baseline is not None) is compared
    assert ("another dataset has replaced the previous one" in " ".join(reasons)) is not compared


def test_a_baseline_that_is_gone_is_named_without_its_path(tmp_path):
    earlier = artifact(standard_artifacts.Examples, tmp_path / "gone")
    with contextlib.ExitStack() as stack:
        baseline, [reason] = load_baseline(stack, [earlier], artifact(standard_artifacts.Examples, tmp_path / "now"))
    assert baseline is None
    assert reason.startswith("drift was not measured: the previous dataset is not a dataset")
    assert str(tmp_path) not in reason
