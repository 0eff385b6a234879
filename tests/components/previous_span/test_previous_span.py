"""Which dataset the gate compares with, in runs of the real runner."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tfx import types
from tfx.types import standard_artifacts

from beam_jobs.dataset import manifest
from beam_jobs.errors import GateFailed
from beam_jobs.ingest import run as ingest
from beam_jobs.options import IngestOptions
from components.dataset_gate.component import DatasetGate
from components.dataset_gate.limits import GateLimits
from components.previous_span.resolver import PreviousSpanStrategy, previous_examples
from tests.components.conftest import run_pipeline
from tests.components.previous_span.emitter import Emitter
from tests.make_images import crop, encode

pytestmark = pytest.mark.filterwarnings("ignore")

STRICT = GateLimits(blank_variance=0, drift_limits={"brightness": 0.2})
REPORT = GateLimits(mode="report", blank_variance=0, drift_limits={"brightness": 0.2})


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name -> dataset of 60 photographs: two of the same light, and two darker ones."""
    made = {}
    for seed, (name, light) in enumerate({"first": 1.0, "second": 1.0, "dark": 0.2, "darker": 0.18}.items()):
        source = tmp_path_factory.mktemp(name)
        for index in range(60):
            folder = source / ("a", "b")[index % 2]
            folder.mkdir(exist_ok=True)
            pixels = (crop(1000 * seed + index, 40, 40) * light).astype(np.uint8)
            (folder / f"{index}.jpg").write_bytes(encode(pixels, "JPEG", quality=90))
        made[name] = tmp_path_factory.mktemp(f"{name}_dataset")
        ingest(IngestOptions(source=str(source), out=str(made[name]), splits={"train": 0.7, "eval": 0.3}))
    return made


@dataclass
class Workplace:
    """One pipeline that runs again and again."""

    root: Path

    def run(self, directory: Path, span: int = 0, limits: GateLimits = STRICT, fails: bool = False) -> dict:
        """Runs it and returns the verdict, with the state of the gate."""
        emitter = Emitter(directory, span, fails)
        examples = emitter.outputs["examples"]
        previous = previous_examples(examples)
        gate = DatasetGate(
            examples, emitter.outputs["anomalies"], limits, baseline_examples=previous.outputs["previous"]
        )
        step = run_pipeline(self.root, emitter, previous, gate)["DatasetGate"]
        verdict = json.loads((Path(step.outputs["verdict"]) / "verdict.json").read_text())
        assert verdict["dataset_digest"] == manifest.load(str(directory)).digest
        return {
            **verdict,
            "state": step.state,
            "baselines": {c["baseline"] for c in verdict["comparisons"] if c["kind"] == "drift"},
        }


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def test_every_span_is_compared_with_the_one_before_whenever_it_runs(workplace, datasets):
    first = workplace.run(datasets["first"], 1)
    assert (first["state"], first["baselines"]) == ("complete", set())
    assert "drift was not measured: there is no earlier dataset" in first["notes"]
    second = workplace.run(datasets["second"], 2)
    assert (second["state"], second["baselines"], second["findings"]) == ("complete", {"span 1"}, [])
    again = workplace.run(datasets["second"], 2)
    assert (again["state"], again["baselines"]) == ("cached", {"span 1"})
    third = workplace.run(datasets["dark"], 3, REPORT)
    assert third["baselines"] == {"span 2"}
    assert {(f["check"], f["feature"]) for f in third["findings"]} == {("drift", "image/brightness")}
    old = workplace.run(datasets["second"], 2)
    assert (old["state"], old["baselines"]) == ("cached", {"span 1"})


def test_drift_stops_a_span_and_what_was_stopped_is_no_baseline(workplace, datasets):
    workplace.run(datasets["first"], 1)
    for name, span in (("dark", 2), ("dark", 2), ("darker", 3)):
        with pytest.raises(GateFailed, match="drift: image/brightness in train: .* away from span 1 by jensen_shannon"):
            workplace.run(datasets[name], span)
    assert workplace.run(datasets["dark"], 2, REPORT)["baselines"] == {"span 1"}
    let_through = workplace.run(datasets["darker"], 3)
    assert (let_through["baselines"], let_through["findings"]) == ({"span 2"}, [])


def test_without_spans_the_dataset_before_is_the_one_made_before_with_another_content(workplace, datasets):
    first = manifest.load(str(datasets["first"])).digest
    assert workplace.run(datasets["first"])["baselines"] == set()
    copy = Path(shutil.copytree(datasets["first"], workplace.root / "copy"))
    assert workplace.run(copy)["baselines"] == set(), "the same content from another place"
    assert workplace.run(datasets["second"])["baselines"] == {f"dataset {first[:12]}"}


def test_what_a_failed_execution_left_is_no_baseline(workplace, datasets):
    with pytest.raises(RuntimeError, match="after the dataset was written"):
        workplace.run(datasets["dark"], 1, fails=True)
    assert workplace.run(datasets["first"], 2)["baselines"] == set()


def artifact(kind, number: int, digest: str, span: int = 0, version: int = 0):
    made = kind()
    made.id = number
    if kind is standard_artifacts.Examples:
        made.span, made.version = span, version
    if digest:
        made.set_string_custom_property("dataset_digest", digest)
    return made


def examples(number: int, digest: str, span: int = 0, version: int = 0) -> types.Artifact:
    return artifact(standard_artifacts.Examples, number, digest, span, version)


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        (examples(9, "new", 5), 4),  # the largest span, not the newest id
        (examples(9, "new", 3, 1), 5),  # an earlier version of the span
        (examples(9, "new", 3, 0), 5),  # made before, of the same span and version
        (examples(9, "new", 2, 7), 6),  # later spans are there already
        (examples(2, "b", 1), None),  # the first span
        (examples(9, "e", 4), 5),  # not what has its content
        (examples(9, "", 0), None),
    ],
)
def test_datasets_are_ordered_by_span_version_and_id(current, expected):
    every = [
        *(examples(2, "b", 1), examples(4, "e", 4), examples(5, "c", 3, 0), examples(6, "d", 2)),
        *(examples(7, "unfit", 4, 9), examples(8, "", 4, 8)),
    ]
    verdicts = [artifact(standard_artifacts.Model, 20 + place, name) for place, name in enumerate("bcde")]
    found = PreviousSpanStrategy().resolve_artifacts(
        None, {"examples": [current], "previous": every, "verdicts": verdicts}
    )
    assert [one.id for one in found["previous"]] == ([] if expected is None else [expected])
    assert (found["examples"], found["verdicts"]) == ([current], [])
