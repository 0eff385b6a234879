from __future__ import annotations

import json

from tfx import types
from tfx.types import standard_artifacts

from components.artifacts import DatasetVerdict, HtmlReport
from components.dataset_report.component import DatasetReport
from components.dataset_report.executor import Executor

EXAMPLES = types.Channel(type=standard_artifacts.Examples)


def test_inputs_and_outputs_have_their_types():
    made = DatasetReport(
        EXAMPLES,
        types.Channel(type=standard_artifacts.ModelEvaluation),
        types.Channel(type=DatasetVerdict),
        types.Channel(type=standard_artifacts.Model),
    )
    assert {name: channel.type for name, channel in made.inputs.items()} == {
        "examples": standard_artifacts.Examples,
        "evaluation": standard_artifacts.ModelEvaluation,
        "verdict": DatasetVerdict,
        "model": standard_artifacts.Model,
    }
    assert {name: channel.type for name, channel in made.outputs.items()} == {"report": HtmlReport}
    assert HtmlReport.TYPE_NAME == "HtmlReport"
    assert made.executor_spec.executor_class is Executor


def test_a_dataset_alone_is_enough():
    made = DatasetReport(EXAMPLES)
    assert list(made.inputs) == ["examples"]
    assert made.exec_properties == {"code": "", "input_options": "", "source": ""}


def test_what_changes_the_page_is_part_of_the_execution():
    made = DatasetReport(EXAMPLES, code="abc", source="photos", input_options={"seed": 1, "image_side_px": 8})
    assert made.exec_properties["code"] == "abc"
    assert made.exec_properties["source"] == "photos"
    assert json.loads(made.exec_properties["input_options"]) == {"seed": 1, "image_side_px": 8}
