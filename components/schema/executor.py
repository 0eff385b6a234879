"""The executor: infers the schema and writes it out as an artifact."""

from __future__ import annotations

from typing import Any

from tfx import types
from tfx.dsl.components.base import base_executor
from tfx.types import artifact_utils

from beam_jobs import storage
from beam_jobs.dataset import manifest
from components.schema import files
from components.schema.infer import infer
from components.statistics import load_statistics

EXAMPLES_KEY = "examples"
STATISTICS_KEY = "statistics"
SCHEMA_KEY = "schema"
CODE_KEY = "code"


class Executor(base_executor.BaseExecutor):
    """Writes `schema.pbtxt`."""

    def Do(  # noqa: N802 - the name TFX calls
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Writes the artifact.

        Raises:
          CorruptDataset: the dataset of the statistics is damaged.
        """
        dataset = manifest.load(artifact_utils.get_single_uri(input_dict[EXAMPLES_KEY]))
        statistics = load_statistics(artifact_utils.get_single_instance(input_dict[STATISTICS_KEY]))
        directory = artifact_utils.get_single_uri(output_dict[SCHEMA_KEY])
        files.write(infer(statistics, dataset), storage.join(directory, files.SCHEMA_NAME))
