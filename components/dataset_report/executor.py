"""The executor: gathers what the page shows and renders it."""

from __future__ import annotations

import json
from typing import Any

from tfx import types
from tfx.dsl.components.base import base_executor
from tfx.types import artifact_utils
from tfx.utils import path_utils

from beam_jobs import storage
from beam_jobs.dataset import manifest
from components.dataset_gate.executor import VERDICT_NAME
from components.dataset_report.render import render
from components.evaluation import load_evaluation

EXAMPLES_KEY = "examples"
EVALUATION_KEY = "evaluation"
VERDICT_KEY = "verdict"
MODEL_KEY = "model"
REPORT_KEY = "report"
INPUT_OPTIONS_KEY = "input_options"
SOURCE_KEY = "source"
CODE_KEY = "code"
REPORT_NAME = "report.html"


class Executor(base_executor.BaseExecutor):
    """Renders the page."""

    def Do(  # noqa: N802 - the name TFX calls
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Writes `report.html`.

        Raises:
          UsageError: the model was not trained on the dataset.
          CorruptDataset: a file of the dataset, or the evaluation, is damaged.
        """
        dataset = artifact_utils.get_single_uri(input_dict[EXAMPLES_KEY])
        evaluation, verdict, model = (_uri(input_dict, key) for key in (EVALUATION_KEY, VERDICT_KEY, MODEL_KEY))
        options = exec_properties.get(INPUT_OPTIONS_KEY)
        page = render(
            dataset,
            load_evaluation(evaluation, manifest.load(dataset).labels) if evaluation else None,
            verdict=json.loads(storage.read_bytes(storage.join(verdict, VERDICT_NAME))) if verdict else None,
            model=path_utils.serving_model_path(model) if model else "",
            input_options=json.loads(options) if options else None,
            source=exec_properties.get(SOURCE_KEY) or "",
        )
        directory = artifact_utils.get_single_uri(output_dict[REPORT_KEY])
        storage.write_bytes(storage.join(directory, REPORT_NAME), page.encode())


def _uri(input_dict: dict[str, list[types.Artifact]], key: str) -> str:
    """Returns where an optional input lies; empty when there is none."""
    found = input_dict.get(key)
    return artifact_utils.get_single_uri(found) if found else ""
