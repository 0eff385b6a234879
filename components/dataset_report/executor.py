"""The executor: gathers what the page shows and renders it."""

from __future__ import annotations

from typing import Any

from tfx import types
from tfx.dsl.components.base import base_executor
from tfx.types import artifact_utils

from beam_jobs import storage
from components.dataset_report.render import render
from components.evaluation import load_evaluation

EXAMPLES_KEY = "examples"
EVALUATION_KEY = "evaluation"
REPORT_KEY = "report"
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
        """Writes `report.html`."""
        dataset = artifact_utils.get_single_uri(input_dict[EXAMPLES_KEY])
        evaluation = load_evaluation(artifact_utils.get_single_uri(input_dict[EVALUATION_KEY]))
        page = render(dataset, evaluation)
        directory = artifact_utils.get_single_uri(output_dict[REPORT_KEY])
        storage.write_bytes(storage.join(directory, REPORT_NAME), page.encode())
