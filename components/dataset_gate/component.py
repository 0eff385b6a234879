"""DatasetGate: stops the pipeline when the dataset is not fit to train on. ExampleValidator only takes notes.

The executor runs the checks, and raises when one of them finds something, unless it is only to report.
"""

from __future__ import annotations

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
from beam_jobs.errors import CorruptDataset, GateFailed, SourceError
from components.artifacts import Artifacts, DatasetVerdict
from components.dataset_gate.checks import Baseline, check_dataset, count_anomalies
from components.dataset_gate.limits import FINDINGS_KEY, GateLimits, Outcome
from components.dataset_gate.measures import GateDataset, load_dataset
from components.image_example_gen import DIGEST_KEY

EXAMPLES_KEY = "examples"
ANOMALIES_KEY = "anomalies"
BASELINE_KEY = "baseline_examples"
VERDICT_KEY = "verdict"
LIMITS_KEY = "limits"
CODE_KEY = "code"
VERDICT_NAME = "verdict.json"
_ANOMALIES_NAME = "SchemaDiff.pb"  # as ExampleValidator writes it
_NAME_LENGTH = 12  # hex digits of a digest, enough to tell datasets of one pipeline apart


class Executor(base_executor.BaseExecutor):
    """Gate or pass."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Writes `verdict.json` when the dataset passes, or when the gate only reports.

        Raises:
          GateFailed: a limit is crossed and the gate stops; the message lists every finding.
        """
        limits = GateLimits.from_json(json.loads(exec_properties[LIMITS_KEY]))
        examples = artifact_utils.get_single_instance(input_dict[EXAMPLES_KEY])
        dataset = load_dataset(examples.uri)
        anomalies = load_anomalies(artifact_utils.get_single_instance(input_dict[ANOMALIES_KEY]))
        baseline, reasons = load_baseline(input_dict.get(BASELINE_KEY) or [], examples)
        outcome = check_dataset(dataset, anomalies, limits, baseline)
        notes = (*reasons, *outcome.notes)
        for note in notes:
            logging.info("dataset gate: %s", note)
        count, listed = plural(len(outcome.findings), "problem"), [f"  - {one}" for one in outcome.findings]
        values = verdict(dataset, anomalies, limits, outcome, notes)
        if outcome.findings and limits.mode == "stop":
            raise GateFailed(f"the dataset gate found {count}, the pipeline stops here:", values, listed)
        if outcome.findings:
            logging.warning("the dataset gate found %s, and only reports:\n%s", count, strings.lines(listed))
        artifact = artifact_utils.get_single_instance(output_dict[VERDICT_KEY])
        storage.write_bytes(storage.join(artifact.uri, VERDICT_NAME), json.dumps(values, indent=2).encode())
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
        "anomalies": {split: count_anomalies(found) for split, found in anomalies.items()},
        "findings": [asdict(finding) for finding in outcome.findings],
        "comparisons": [asdict(comparison) for comparison in outcome.comparisons],
        "notes": list(notes),
    }


def load_anomalies(artifact: types.Artifact) -> dict[str, anomalies_pb2.Anomalies]:
    """Reads split -> anomalies out of an `ExampleAnomalies` artifact."""
    found = {}
    for split in artifact_utils.decode_split_names(artifact.split_names):
        path = storage.join(artifact_utils.get_split_uri([artifact], split), _ANOMALIES_NAME)
        found[split] = anomalies_pb2.Anomalies.FromString(storage.read_bytes(path))
    return found


def load_baseline(found: list[types.Artifact], examples: types.Artifact) -> tuple[Baseline | None, tuple[str, ...]]:
    """Reads the dataset before.

    Args:
      found: it, or nothing.
      examples: the dataset of this run.

    Returns:
      the dataset, and why it cannot be used; old datasets are deleted to save space, which must not stop a pipeline.
    """
    if not found:
        return None, ("drift was not measured: there is no earlier dataset",)
    earlier = artifact_utils.get_single_instance(found)
    try:
        dataset = load_dataset(earlier.uri)
    except (SourceError, CorruptDataset) as error:
        return None, (f"drift was not measured: {str(error).replace(earlier.uri, 'the dataset before')}",)
    if earlier.get_string_custom_property(DIGEST_KEY) not in ("", dataset.manifest.digest):
        return None, ("drift was not measured: another dataset was published in the place of the one before",)
    name = f"dataset {dataset.manifest.digest[:_NAME_LENGTH]}"
    return Baseline(dataset, f"span {earlier.span}" if earlier.span or examples.span else name), ()


class DatasetGateSpec(types.ComponentSpec):
    """Wiring of DatasetGate."""

    PARAMETERS = {
        LIMITS_KEY: ExecutionParameter(type=str),
        CODE_KEY: ExecutionParameter(type=str, optional=True),
    }
    INPUTS = {
        EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        ANOMALIES_KEY: ChannelParameter(type=standard_artifacts.ExampleAnomalies),
        # Nothing on the first run.
        BASELINE_KEY: ChannelParameter(type=standard_artifacts.Examples, optional=True),
    }
    OUTPUTS = {VERDICT_KEY: ChannelParameter(type=DatasetVerdict)}


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
          anomalies: what ExampleValidator found in it.
          limits: what is allowed, and whether the gate stops.
          baseline_examples: the dataset before, of `previous_examples`; without it drift is not measured.
          code: version of the code; another one misses the cache.
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
