"""DatasetReport: a self-contained HTML page about a dataset and the model trained on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tfx import types
from tfx.dsl.components.base import base_component, base_executor, executor_spec
from tfx.types import artifact_utils, standard_artifacts
from tfx.types.component_spec import ChannelParameter, ExecutionParameter
from tfx.utils import path_utils

from beam_jobs import storage
from beam_jobs.dataset import manifest
from components.artifacts import Artifacts, DatasetVerdict, HtmlReport
from components.dataset_gate.component import VERDICT_NAME
from components.dataset_report import RunDetails
from components.dataset_report.render import render
from components.evaluation import load_evaluation
from trainer.run_fn import HISTORY_NAME

EXAMPLES_KEY = "examples"
EVALUATION_KEY = "evaluation"
VERDICT_KEY = "verdict"
MODEL_KEY = "model"
MODEL_RUN_KEY = "model_run"
REPORT_KEY = "report"
INPUT_OPTIONS_KEY = "input_options"
SOURCE_KEY = "source"
CODE_KEY = "code"
REPORT_NAME = "report.html"


class Executor(base_executor.BaseExecutor):
    """Writes the report."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Writes `report.html`.

        Raises:
          UsageError: the model was not trained on the dataset.
          CorruptDataset: a file of the dataset, or the evaluation, is damaged.
        """
        dataset = artifact_utils.get_single_uri(input_dict[EXAMPLES_KEY])
        keys = (EVALUATION_KEY, VERDICT_KEY, MODEL_KEY, MODEL_RUN_KEY)
        evaluation, verdict, model, model_run = (
            artifact_utils.get_single_uri(input_dict[key]) if input_dict.get(key) else "" for key in keys
        )
        options = exec_properties.get(INPUT_OPTIONS_KEY)
        page = render(
            dataset,
            load_evaluation(evaluation, manifest.load(dataset).labels) if evaluation else None,
            verdict=_read_json(verdict, VERDICT_NAME),
            model=path_utils.serving_model_path(model) if model else "",
            input_options=json.loads(options) if options else None,
            run=RunDetails(training=_read_json(model_run, HISTORY_NAME)),
            source=exec_properties.get(SOURCE_KEY) or "",
        )
        directory = artifact_utils.get_single_uri(output_dict[REPORT_KEY])
        storage.write_bytes(storage.join(directory, REPORT_NAME), page.encode())


def _read_json(directory: str, name: str) -> dict[str, Any] | None:
    """Returns the content of a JSON file of an artifact; None if `directory`, its path, is empty."""
    return storage.read_json(storage.join(directory, name)) if directory else None


class DatasetReportSpec(types.ComponentSpec):
    """Parameters, inputs and outputs of DatasetReport."""

    PARAMETERS = {
        INPUT_OPTIONS_KEY: ExecutionParameter(type=str),
        SOURCE_KEY: ExecutionParameter(type=str),
        CODE_KEY: ExecutionParameter(type=str),
    }
    INPUTS = {
        EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        EVALUATION_KEY: ChannelParameter(type=standard_artifacts.ModelEvaluation, optional=True),
        VERDICT_KEY: ChannelParameter(type=DatasetVerdict, optional=True),
        MODEL_KEY: ChannelParameter(type=standard_artifacts.Model, optional=True),
        MODEL_RUN_KEY: ChannelParameter(type=standard_artifacts.ModelRun, optional=True),
    }
    OUTPUTS = {REPORT_KEY: ChannelParameter(type=HtmlReport)}


class DatasetReport(base_component.BaseComponent):
    """Writes `report.html`: card, gallery, distributions, rejects, duplicates, and sections about the model.

    Example:
      report = DatasetReport(example_gen.outputs["examples"], evaluator.outputs["evaluation"], **trainer.outputs)

    Outputs:
      report: `HtmlReport`.
    """

    SPEC_CLASS = DatasetReportSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        examples: types.BaseChannel,
        evaluation: types.BaseChannel | None = None,
        verdict: types.BaseChannel | None = None,
        *,
        input_options: Mapping[str, Any] | None = None,
        source: str = "",
        code: str = "",
        **trained: types.BaseChannel,
    ) -> None:
        """Builds the component.

        Args:
          examples: a Feedline dataset.
          evaluation: output of Evaluator for a model of the dataset.
          verdict: output of the gate.
          input_options: `InputOptions` as JSON values, for the preview of augmentation.
          source: directory of the source images, for pictures of the rejects; empty for no pictures.
          code: version of the code, a part of the cache key.
          trained: outputs of a Trainer on this dataset: `model` for the worst mistakes on the evaluation split,
            `model_run` for the metrics by epoch.
        """
        if unknown := trained.keys() - {MODEL_KEY, MODEL_RUN_KEY}:
            raise TypeError(f"a Trainer has no outputs named {', '.join(sorted(unknown))}; it has model and model_run")
        values = {
            INPUT_OPTIONS_KEY: "" if input_options is None else json.dumps(input_options, sort_keys=True),
            SOURCE_KEY: source,
            CODE_KEY: code,
            EXAMPLES_KEY: examples,
            EVALUATION_KEY: evaluation,
            VERDICT_KEY: verdict,
            REPORT_KEY: types.Channel(type=HtmlReport),
            **trained,
        }
        super().__init__(spec=DatasetReportSpec(**values))
