from __future__ import annotations

import re

from components.dataset_report import ArtifactDetail, RunDetails, StepDetail
from components.dataset_report.card import lineage, run_view, verdict


def artifact(number: int, *inputs: int, **properties: str) -> ArtifactDetail:
    return ArtifactDetail(id=number, type="Model", producer="Trainer", inputs=inputs, properties=properties)


def test_bars_lie_along_the_run():
    steps = [("Gate", "cached", 1.0), ("Trainer", "complete", 3.0)]
    found = run_view(RunDetails(steps=tuple(StepDetail(component=c, state=s, seconds=x) for c, s, x in steps)))
    assert [(step.component, step.start, step.length) for step in found.steps] == [
        ("Gate", 0.0, 0.25),
        ("Trainer", 0.25, 0.75),
    ]
    assert found.seconds == 4.0


def test_a_run_that_took_no_time_has_bars_without_length():
    found = run_view(RunDetails(steps=(StepDetail(component="Gate", state="cached", seconds=0.0),)))
    assert (found.steps[0].start, found.steps[0].length) == (0.0, 0.0)


def test_arcs_lead_from_what_an_artifact_was_made_of():
    found = lineage([artifact(5, dataset_digest="abc"), artifact(9, 5), artifact(12, 5, 9, 77)])
    assert [node.title for node in found.nodes] == ["Model 5", "Model 9", "Model 12"]
    assert [node.properties for node in found.nodes] == ["dataset_digest abc", "", ""]
    ends = [[re.findall(r"-?\d+", arc) for arc in node.arcs] for node in found.nodes]
    rows = {node.y: place for place, node in enumerate(found.nodes)}
    assert [[(rows[int(arc[1])], rows[int(arc[-1])]) for arc in arcs] for arcs in ends] == [
        [],
        [(0, 1)],
        [(0, 2), (1, 2)],
    ]
    assert all(int(number) >= -found.x for arcs in ends for arc in arcs for number in arc)


def test_properties_never_show_a_path_of_the_machine():
    (node,) = lineage([artifact(1, uri="/home/joe/work/model/7")]).nodes
    assert node.properties == "uri …/model/7"


def test_a_run_without_artifacts_has_an_empty_drawing():
    found = lineage([])
    assert (list(found.nodes), found.height) == ([], 0)


def test_comparisons_over_their_limit_come_first_then_the_largest():
    plain = {"kind": "skew", "baseline": "train", "split": "eval", "measure": "l_infinity"}
    found = verdict(
        {
            "comparisons": [
                {**plain, "feature": "a", "value": 0.3, "limit": 0.5},
                {**plain, "feature": "b", "value": 0.2, "limit": 0.1},
                {**plain, "feature": "c", "value": 0.4, "limit": 0.5},
                {**plain, "feature": "d", "value": 0.5, "limit": 0.5},
            ]
        }
    )
    assert [(item.feature, item.is_over) for item in found.comparisons] == [
        ("b", True),
        ("d", False),
        ("c", False),
        ("a", False),
    ]
    assert found.comparisons[0].measure == "L-infinity"
