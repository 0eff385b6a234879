from __future__ import annotations

import json

from tfx import types
from tfx.types import standard_artifacts

from components.dataset_gate.component import DatasetGate
from components.dataset_gate.limits import GateLimits


def gate(limits: GateLimits, baseline: types.BaseChannel | None = None) -> DatasetGate:
    examples = types.Channel(type=standard_artifacts.Examples)
    anomalies = types.Channel(type=standard_artifacts.ExampleAnomalies)
    return DatasetGate(examples, anomalies, limits, baseline)


def test_a_baseline_is_an_input_when_it_is_given():
    assert gate(GateLimits()).inputs.keys() == {"examples", "anomalies"}
    with_baseline = gate(GateLimits(), types.Channel(type=standard_artifacts.Examples))
    assert with_baseline.inputs.keys() == {"examples", "anomalies", "baseline_examples"}


def test_the_limits_cross_as_json_in_one_spelling():
    limits = GateLimits(max_anomalies=2, allow_missing_classes=True)
    text = gate(limits).exec_properties["limits"]
    assert GateLimits.from_json(json.loads(text)) == limits
    assert text == json.dumps(json.loads(text), sort_keys=True)
    assert gate(GateLimits()).exec_properties["limits"] != text
