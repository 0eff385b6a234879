"""DatasetReport: one self-contained HTML page about a dataset and the model trained on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ExecutionParameter

from components.artifacts import DatasetVerdict, HtmlReport
from components.dataset_report import executor


class DatasetReportSpec(types.ComponentSpec):
    """Wiring of DatasetReport."""

    PARAMETERS = {
        executor.INPUT_OPTIONS_KEY: ExecutionParameter(type=str),
        executor.SOURCE_KEY: ExecutionParameter(type=str),
        executor.CODE_KEY: ExecutionParameter(type=str),
    }
    INPUTS = {
        executor.EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        executor.EVALUATION_KEY: ChannelParameter(type=standard_artifacts.ModelEvaluation, optional=True),
        executor.VERDICT_KEY: ChannelParameter(type=DatasetVerdict, optional=True),
        executor.MODEL_KEY: ChannelParameter(type=standard_artifacts.Model, optional=True),
    }
    OUTPUTS = {executor.REPORT_KEY: ChannelParameter(type=HtmlReport)}


class DatasetReport(base_component.BaseComponent):
    """Writes `report.html`: card, gallery, distributions, rejects, duplicates, and what is known of the model.

    Example:
      report = DatasetReport(
          example_gen.outputs["examples"], evaluator.outputs["evaluation"], model=trainer.outputs["model"]
      )

    Outputs:
      report: `HtmlReport`.
    """

    SPEC_CLASS = DatasetReportSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(executor.Executor)

    def __init__(
        self,
        examples: types.BaseChannel,
        evaluation: types.BaseChannel | None = None,
        verdict: types.BaseChannel | None = None,
        model: types.BaseChannel | None = None,
        *,
        input_options: Mapping[str, Any] | None = None,
        source: str = "",
        code: str = "",
    ) -> None:
        """Builds the component.

        Args:
          examples: a Feedline dataset.
          evaluation: what Evaluator measured on it.
          verdict: what the gate found.
          model: trained on it; asked about the held-back split for its worst mistakes.
          input_options: `InputOptions` as JSON values; shows what the model sees.
          source: directory that the images came from; shows what was rejected.
          code: version of the code; another one misses the cache.
        """
        given = {
            executor.EVALUATION_KEY: evaluation,
            executor.VERDICT_KEY: verdict,
            executor.MODEL_KEY: model,
        }
        spec = DatasetReportSpec(
            **{
                executor.INPUT_OPTIONS_KEY: "" if input_options is None else json.dumps(input_options, sort_keys=True),
                executor.SOURCE_KEY: source,
                executor.CODE_KEY: code,
                executor.EXAMPLES_KEY: examples,
                executor.REPORT_KEY: types.Channel(type=HtmlReport),
                **{key: channel for key, channel in given.items() if channel is not None},
            }
        )
        super().__init__(spec=spec)
