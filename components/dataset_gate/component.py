"""DatasetGate: stops the pipeline when the dataset is not fit to train on. ExampleValidator only takes notes."""

from __future__ import annotations

import json

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ExecutionParameter

from components.artifacts import DatasetVerdict
from components.dataset_gate import executor
from components.dataset_gate.limits import GateLimits


class DatasetGateSpec(types.ComponentSpec):
    """Wiring of DatasetGate."""

    PARAMETERS = {
        executor.LIMITS_KEY: ExecutionParameter(type=str),
        executor.CODE_KEY: ExecutionParameter(type=str, optional=True),
    }
    INPUTS = {
        executor.EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        executor.ANOMALIES_KEY: ChannelParameter(type=standard_artifacts.ExampleAnomalies),
        # Nothing on the first run.
        executor.BASELINE_KEY: ChannelParameter(type=standard_artifacts.Examples, optional=True),
    }
    OUTPUTS = {executor.VERDICT_KEY: ChannelParameter(type=DatasetVerdict)}


class DatasetGate(base_component.BaseComponent):
    """Checks anomalies, rejects, leaks, classes, images, skew and drift; a crossed limit fails the execution.

    Example:
      previous = previous_examples(example_gen.outputs["examples"])
      gate = DatasetGate(
          example_gen.outputs["examples"],
          example_validator.outputs["anomalies"],
          GateLimits(max_drift_jensen_shannon=0.2),
          baseline_examples=previous.outputs["previous"],
      )
      trainer.add_upstream_node(gate)

    Outputs:
      verdict: `DatasetVerdict`, there only when the dataset passed, or when the gate only reports.
    """

    SPEC_CLASS = DatasetGateSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(executor.Executor)

    def __init__(
        self,
        examples: types.BaseChannel,
        anomalies: types.BaseChannel,
        limits: GateLimits,
        baseline_examples: types.BaseChannel | None = None,
        code: str = "",
    ) -> None:
        """Builds the component.

        Args:
          examples: a Feedline dataset.
          anomalies: what ExampleValidator found in it.
          limits: what is allowed, and whether the gate stops.
          baseline_examples: the dataset before, of `previous_examples`; without it drift is not measured.
          code: version of the code; another one misses the cache.
        """
        spec = DatasetGateSpec(
            **{
                executor.LIMITS_KEY: json.dumps(limits.to_json(), sort_keys=True),
                executor.CODE_KEY: code,
                executor.EXAMPLES_KEY: examples,
                executor.ANOMALIES_KEY: anomalies,
                executor.BASELINE_KEY: baseline_examples,
                executor.VERDICT_KEY: types.Channel(type=DatasetVerdict),
            }
        )
        super().__init__(spec=spec)
