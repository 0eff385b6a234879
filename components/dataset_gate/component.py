"""DatasetGate: stops the pipeline when the dataset crosses a limit; ExampleValidator only records anomalies.

The executor runs the checks, and raises an error if there are findings, unless the mode of the gate is `report`.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tensorflow_metadata.proto.v0 import anomalies_pb2
from tfx import types
from tfx.dsl.components.base import base_component, base_executor, executor_spec
from tfx.types import artifact_utils, standard_artifacts
from tfx.types.component_spec import ChannelParameter, ExecutionParameter

from beam_jobs import storage
from beam_jobs.common import strings
from beam_jobs.common.strings import plural
from beam_jobs.errors import CorruptDataset, DatasetChanged, GateFailed, SourceError
from components.artifacts import Artifacts, DatasetVerdict
from components.dataset_gate.checks import Baseline, check_dataset, count_anomalies
from components.dataset_gate.drift_and_skew import GateDataset, open_dataset
from components.dataset_gate.limits import FINDINGS_KEY, GateLimits, Outcome
from components.image_example_gen import DIGEST_KEY

EXAMPLES_KEY = "examples"
ANOMALIES_KEY = "anomalies"
BASELINE_KEY = "baseline_examples"
VERDICT_KEY = "verdict"
LIMITS_KEY = "limits"
CODE_KEY = "code"
VERDICT_NAME = "verdict.json"
_ANOMALIES_NAME = "SchemaDiff.pb"  # file name of ExampleValidator
_NAME_LENGTH = 12  # hex digits of a digest, enough to distinguish the datasets of a pipeline


class Executor(base_executor.BaseExecutor):
    """Runs the checks of the gate."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Writes `verdict.json` if the dataset passes, or if the mode is `report`.

        Raises:
          GateFailed: a limit is exceeded and the mode is `stop`; the message lists all findings.
          DatasetChanged: another dataset was published in the directory since the dataset was ingested or adopted.
        """
        limits = GateLimits.from_json(json.loads(exec_properties[LIMITS_KEY]))
        examples = artifact_utils.get_single_instance(input_dict[EXAMPLES_KEY])
        anomalies = load_anomalies(artifact_utils.get_single_instance(input_dict[ANOMALIES_KEY]))
        with contextlib.ExitStack() as stack:
            dataset = stack.enter_context(open_dataset(examples.uri))
            if examples.get_string_custom_property(DIGEST_KEY) not in ("", dataset.manifest.digest):
                raise DatasetChanged(
                    f"another dataset was published in {examples.uri} since this run, or its compilation, began; "
                    "run, or compile, the pipeline again"
                )
            baseline, baseline_notes = load_baseline(stack, input_dict.get(BASELINE_KEY) or [], examples)
            outcome = check_dataset(dataset, anomalies, limits, baseline)
        notes = (*baseline_notes, *outcome.notes)
        for note in notes:
            logging.info("dataset gate: %s", note)
        problems, lines = plural(len(outcome.findings), "problem"), [f"  - {finding}" for finding in outcome.findings]
        verdict_values = verdict(dataset, anomalies, limits, outcome, notes)
        for remark in outcome.remarks:
            logging.info("dataset gate: %s", remark)
        if outcome.findings and limits.mode == "stop":
            lines += [f"  and {plural(len(outcome.remarks), 'remark')}, in the report"] * bool(outcome.remarks)
            raise GateFailed(f"the dataset gate found {problems}, the pipeline stops here:", verdict_values, lines)
        if outcome.findings:
            logging.warning("the dataset gate found %s, its mode is report:\n%s", problems, strings.lines(lines))
        artifact = artifact_utils.get_single_instance(output_dict[VERDICT_KEY])
        storage.write_bytes(storage.join(artifact.uri, VERDICT_NAME), json.dumps(verdict_values, indent=2).encode())
        artifact.set_string_custom_property(DIGEST_KEY, dataset.manifest.digest)
        artifact.set_int_custom_property(FINDINGS_KEY, len(outcome.findings))


def verdict(
    dataset: GateDataset,
    anomalies: Mapping[str, anomalies_pb2.Anomalies],
    limits: GateLimits,
    outcome: Outcome,
    notes: tuple[str, ...],
) -> dict[str, Any]:
    """Returns the content of `verdict.json`."""
    return {
        "dataset_digest": dataset.manifest.digest,
        "mode": limits.mode,
        "limits": limits.to_json(),
        "anomalies": {split: count_anomalies(split_anomalies) for split, split_anomalies in anomalies.items()},
        "checks": [asdict(check) for check in outcome.checks],
        "findings": [asdict(finding) for finding in outcome.findings],
        "remarks": [asdict(remark) for remark in outcome.remarks],
        "comparisons": [asdict(comparison) for comparison in outcome.comparisons],
        "notes": list(notes),
    }


def load_anomalies(artifact: types.Artifact) -> dict[str, anomalies_pb2.Anomalies]:
    """Reads an `ExampleAnomalies` artifact; returns split -> anomalies."""
    anomalies = {}
    for split in artifact_utils.decode_split_names(artifact.split_names):
        path = storage.join(artifact_utils.get_split_uri([artifact], split), _ANOMALIES_NAME)
        anomalies[split] = anomalies_pb2.Anomalies.FromString(storage.read_bytes(path))
    return anomalies


def load_baseline(
    stack: contextlib.ExitStack, artifacts: list[types.Artifact], examples: types.Artifact
) -> tuple[Baseline | None, tuple[str, ...]]:
    """Reads the previous dataset.

    Args:
      stack: exit stack that closes the database of the previous dataset.
      artifacts: artifact of the previous dataset, or empty.
      examples: artifact of the dataset of this run.

    Returns:
      the baseline and no note, or None and a note with the reason: a deleted old dataset must not stop a pipeline.
    """
    if not artifacts:
        return None, ("drift was not measured: there is no earlier dataset",)
    previous = artifact_utils.get_single_instance(artifacts)
    try:
        dataset = stack.enter_context(open_dataset(previous.uri))
    except (SourceError, CorruptDataset) as error:
        return None, (f"drift was not measured: {str(error).replace(previous.uri, 'the previous dataset')}",)
    if previous.get_string_custom_property(DIGEST_KEY) not in ("", dataset.manifest.digest):
        return None, ("drift was not measured: another dataset has replaced the previous one in its directory",)
    name = f"dataset {dataset.manifest.digest[:_NAME_LENGTH]}"
    return Baseline(dataset, f"span {previous.span}" if previous.span or examples.span else name), ()


class DatasetGateSpec(types.ComponentSpec):
    """Parameters, inputs and outputs of DatasetGate."""

    PARAMETERS = {LIMITS_KEY: ExecutionParameter(type=str), CODE_KEY: ExecutionParameter(type=str, optional=True)}
    INPUTS = {
        EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        ANOMALIES_KEY: ChannelParameter(type=standard_artifacts.ExampleAnomalies),
        # Has no artifact in the first run.
        BASELINE_KEY: ChannelParameter(type=standard_artifacts.Examples, optional=True),
    }
    OUTPUTS = {VERDICT_KEY: ChannelParameter(type=DatasetVerdict)}


class DatasetGate(base_component.BaseComponent):
    """Checks anomalies, rejects, leaks, classes, images, skew and drift; fails if a limit is exceeded.

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
      verdict: `DatasetVerdict`, written if the dataset passed or the mode is `report`.
    """

    SPEC_CLASS = DatasetGateSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

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
          anomalies: output of ExampleValidator for this dataset.
          limits: limits and mode of the gate.
          baseline_examples: the previous dataset, output of `previous_examples`; None skips the drift check.
          code: version of the code, a part of the cache key.
        """
        values = {
            LIMITS_KEY: json.dumps(limits.to_json(), sort_keys=True),
            CODE_KEY: code,
            EXAMPLES_KEY: examples,
            ANOMALIES_KEY: anomalies,
            BASELINE_KEY: baseline_examples,
            VERDICT_KEY: types.Channel(type=DatasetVerdict),
        }
        super().__init__(spec=DatasetGateSpec(**values))
