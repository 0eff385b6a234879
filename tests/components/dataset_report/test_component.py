from __future__ import annotations

from tfx import types
from tfx.types import standard_artifacts

from components.artifacts import HtmlReport
from components.dataset_report.component import DatasetReport
from components.dataset_report.executor import Executor


def report(**values) -> DatasetReport:
    examples = types.Channel(type=standard_artifacts.Examples)
    return DatasetReport(examples, types.Channel(type=standard_artifacts.ModelEvaluation), **values)


def test_inputs_and_outputs_have_their_types():
    made = report()
    assert {name: channel.type for name, channel in made.inputs.items()} == {
        "examples": standard_artifacts.Examples,
        "evaluation": standard_artifacts.ModelEvaluation,
    }
    assert {name: channel.type for name, channel in made.outputs.items()} == {"report": HtmlReport}
    assert HtmlReport.TYPE_NAME == "HtmlReport"
    assert made.executor_spec.executor_class is Executor


def test_the_version_of_the_code_is_part_of_the_execution():
    assert report().exec_properties == {"code": ""}
    assert report(code="abc").exec_properties == {"code": "abc"}
