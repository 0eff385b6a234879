from __future__ import annotations

import json

from tfx import types
from tfx.types import standard_artifacts

from components.artifacts import DatasetVerdict
from components.dataset_gate.component import DatasetGate
from components.dataset_gate.executor import Executor
from components.dataset_gate.limits import GateLimits


def gate(limits: GateLimits, baseline: types.BaseChannel | None = None) -> DatasetGate:
    examples = types.Channel(type=standard_artifacts.Examples)
    anomalies = types.Channel(type=standard_artifacts.ExampleAnomalies)
    return DatasetGate(examples, anomalies, limits, baseline)


def test_inputs_and_outputs_have_their_types():
    made = gate(GateLimits())
    assert {name: channel.type for name, channel in made.inputs.items()} == {
        "examples": standard_artifacts.Examples,
        "anomalies": standard_artifacts.ExampleAnomalies,
    }
    with_baseline = gate(GateLimits(), types.Channel(type=standard_artifacts.Examples))
    assert with_baseline.inputs.keys() - made.inputs.keys() == {"baseline_examples"}
    assert {name: channel.type for name, channel in made.outputs.items()} == {"verdict": DatasetVerdict}
    assert DatasetVerdict.TYPE_NAME == "DatasetVerdict"
    assert made.executor_spec.executor_class is Executor


def test_the_limits_cross_as_json_in_one_spelling():
    limits = GateLimits(max_anomalies=2, allow_missing_classes=True)
    text = gate(limits).exec_properties["limits"]
    assert GateLimits.from_json(json.loads(text)) == limits
    assert text == json.dumps(json.loads(text), sort_keys=True)
    assert gate(GateLimits()).exec_properties["limits"] != text
