"""What each limit of `gate` changes: whether a run stops at a dataset that crosses it."""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.errors import GateFailed
from tests.components.dataset_gate.datasets import Library
from tests.components.dataset_gate.test_executor import anomalies_artifact, do
from tests.settings.table import Row, config_of, row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ALIKE = {"dataset": "look-alike", "gate.near_leaks": True}
NOW_STOPS, NOW_PASSES = (False, True), (True, False)


@dataclasses.dataclass(frozen=True)
class Gated:
    """Attributes: whether the run `stopped`, and the checks that found something."""

    stopped: bool
    findings: tuple[str, ...]


stopped = operator.attrgetter("stopped")
findings = operator.attrgetter("findings")

# `dataset` and `before` name one of `Library`, `odd` a feature that ExampleValidator finds wrong.
ROWS = [
    row("gate.mode", "report", stopped, NOW_PASSES, given={"dataset": "copy"}, same=findings),
    row("gate.max_anomalies", 1, stopped, NOW_PASSES, given={"dataset": "sound", "odd": "image/width"}),
    row("gate.max_reject_ratio", 0.01, stopped, NOW_STOPS, given={"dataset": "rejects"}),
    row("gate.max_leaks", 1, stopped, NOW_PASSES, given={"dataset": "copy"}),
    row("gate.max_group_leaks", 1, stopped, NOW_PASSES, given={"dataset": "group"}),
    row("gate.near_leaks", True, findings, ((), ("near leakage",)), given={"dataset": "look-alike"}),
    row("gate.max_near_leaks", 1, stopped, NOW_PASSES, given=ALIKE),
    row("gate.near_distance", 0, stopped, NOW_PASSES, given=ALIKE),
    row("gate.allow_missing_classes", True, stopped, NOW_PASSES, given={"dataset": "lost class"}),
    row("gate.require_all_classes", True, findings, ((), ("absent classes",)), given={"dataset": "rare class"}),
    row("gate.min_images_per_class", 3, findings, ((), ("small classes",)), given={"dataset": "rare class"}),
    row("gate.max_imbalance", 14.9, findings, ((), ("imbalance",)), given={"dataset": "rare class"}),
    row("gate.min_side_px", 17, findings, ((), ("low resolution",)), given={"dataset": "small images"}),
    row(
        "gate.max_low_resolution_ratio",
        0.1,
        stopped,
        NOW_PASSES,
        given={"dataset": "small images", "gate.min_side_px": 17},
    ),
    row("gate.blank_variance", 0.0, stopped, NOW_PASSES, given={"dataset": "blank"}),
    row("gate.max_blank_ratio", 0.1, stopped, NOW_PASSES, given={"dataset": "blank"}),
    row("gate.max_drift_l_infinity", 0.1, stopped, NOW_STOPS, given={"dataset": "sound", "before": "columns"}),
    row("gate.max_drift_jensen_shannon", 0.1, stopped, NOW_STOPS, given={"dataset": "bright", "before": "sound"}),
    row("gate.drift_limits", {"brightness": 0.2}, stopped, NOW_STOPS, given={"dataset": "bright", "before": "sound"}),
    row("gate.max_skew_l_infinity", 1.0, stopped, NOW_PASSES, given={"dataset": "camera in eval"}),
    row("gate.max_skew_jensen_shannon", 1.0, stopped, NOW_PASSES, given={"dataset": "bright eval"}),
    row("gate.skew_limits", {"extra/camera": 1.0}, stopped, NOW_PASSES, given={"dataset": "camera in eval"}),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mapping[str, Any]], Gated]:
    root = tmp_path_factory.mktemp("gate")
    library = Library(root / "datasets")

    def gate(settings: Mapping[str, Any]) -> Gated:
        given = dict(settings)
        dataset, before, odd = given.pop("dataset"), given.pop("before", ""), given.pop("odd", "")
        limits = config_of({"root": "unused", "dataset": "unused", **given}).gate
        out: Path = root / str(len(list(root.iterdir())))
        anomalies = anomalies_artifact(out / "anomalies", train=(odd,) if odd else (), eval=())
        baseline, stopped = library.path(before) if before else None, False
        try:
            made = do(library.path(dataset), anomalies, limits, out / "verdict", baseline)
            verdict = json.loads(Path(made.uri, "verdict.json").read_text())
        except GateFailed as failure:
            verdict, stopped = failure.verdict, True
        return Gated(stopped=stopped, findings=tuple(sorted({finding["check"] for finding in verdict["findings"]})))

    return gate


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_limit_of_the_gate_changes_what_stops_a_run(row: Row, run: Callable[[Mapping[str, Any]], Gated]):
    row.check(run)
