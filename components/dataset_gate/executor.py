"""The executor: runs the checks, and raises when one of them finds something."""

from __future__ import annotations

import json
from typing import Any

from tensorflow_metadata.proto.v0 import anomalies_pb2
from tfx import types
from tfx.dsl.components.base import base_executor
from tfx.types import artifact_utils

from beam_jobs import manifest, storage, tables
from beam_jobs.errors import GateFailed
from components.dataset_gate.checks import check_dataset, count_anomalies
from components.dataset_gate.limits import GateLimits

EXAMPLES_KEY = "examples"
ANOMALIES_KEY = "anomalies"
VERDICT_KEY = "verdict"
LIMITS_KEY = "limits"
VERDICT_NAME = "verdict.json"
_ANOMALIES_NAME = "SchemaDiff.pb"  # as ExampleValidator writes it


class Executor(base_executor.BaseExecutor):
    """Gate or pass."""

    def Do(  # noqa: N802 - the name TFX calls
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Writes `verdict.json` when the dataset passes.

        Raises:
          GateFailed: a limit is crossed; the message lists every finding.
        """
        limits = GateLimits.from_json(json.loads(exec_properties[LIMITS_KEY]))
        examples = artifact_utils.get_single_instance(input_dict[EXAMPLES_KEY])
        dataset = manifest.load(examples.uri)
        images = tables.read_published(storage.join(examples.uri, manifest.IMAGES_NAME))
        anomalies = load_anomalies(artifact_utils.get_single_instance(input_dict[ANOMALIES_KEY]))
        findings = check_dataset(dataset, images, anomalies, limits)
        if findings:
            listed = "\n".join(f"  - {finding}" for finding in findings)
            count = "1 problem" if len(findings) == 1 else f"{len(findings)} problems"
            raise GateFailed(f"the dataset gate found {count}, the pipeline stops here:\n{listed}")
        verdict = {
            "dataset_digest": dataset.digest,
            "limits": limits.to_json(),
            "anomalies": {split: count_anomalies(found) for split, found in anomalies.items()},
        }
        directory = artifact_utils.get_single_uri(output_dict[VERDICT_KEY])
        storage.write_bytes(storage.join(directory, VERDICT_NAME), json.dumps(verdict, indent=2).encode())


def load_anomalies(artifact: types.Artifact) -> dict[str, anomalies_pb2.Anomalies]:
    """Reads split -> anomalies out of an `ExampleAnomalies` artifact."""
    found = {}
    for split in artifact_utils.decode_split_names(artifact.split_names):
        path = storage.join(artifact_utils.get_split_uri([artifact], split), _ANOMALIES_NAME)
        found[split] = anomalies_pb2.Anomalies.FromString(storage.read_bytes(path))
    return found
