from __future__ import annotations

import pytest
from tfx import types
from tfx.types import standard_artifacts

from components.artifacts import DatasetVerdict
from components.dataset_report.component import DatasetReport

EXAMPLES = types.Channel(type=standard_artifacts.Examples)


def test_a_dataset_alone_is_enough_and_what_is_given_besides_is_an_input():
    made = DatasetReport(EXAMPLES)
    assert list(made.inputs) == ["examples"]
    assert made.exec_properties == {"code": "", "input_options": "", "source": ""}
    more = DatasetReport(
        EXAMPLES,
        types.Channel(type=standard_artifacts.ModelEvaluation),
        types.Channel(type=DatasetVerdict),
        model=types.Channel(type=standard_artifacts.Model),
        model_run=types.Channel(type=standard_artifacts.ModelRun),
    )
    assert more.inputs.keys() == {"examples", "evaluation", "verdict", "model", "model_run"}
    with pytest.raises(TypeError, match="a Trainer has no outputs named modle; it has model and model_run"):
        DatasetReport(EXAMPLES, modle=types.Channel(type=standard_artifacts.Model))


def test_what_changes_the_page_is_part_of_the_execution():
    made = DatasetReport(EXAMPLES, code="abc", source="photos", input_options={"b": 1, "a": 8})
    assert made.exec_properties == {"code": "abc", "source": "photos", "input_options": '{"a": 8, "b": 1}'}
