"""DatasetReport: one self-contained HTML page about a dataset and the model trained on it."""

from __future__ import annotations

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ExecutionParameter

from components.artifacts import HtmlReport
from components.dataset_report import executor


class DatasetReportSpec(types.ComponentSpec):
    """Wiring of DatasetReport."""

    PARAMETERS = {executor.CODE_KEY: ExecutionParameter(type=str)}
    INPUTS = {
        executor.EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        executor.EVALUATION_KEY: ChannelParameter(type=standard_artifacts.ModelEvaluation),
    }
    OUTPUTS = {executor.REPORT_KEY: ChannelParameter(type=HtmlReport)}


class DatasetReport(base_component.BaseComponent):
    """Writes `report.html`: splits, classes, sizes, gallery, rejects, duplicates and the evaluation.

    Example:
      report = DatasetReport(example_gen.outputs["examples"], evaluator.outputs["evaluation"])

    Outputs:
      report: `HtmlReport`.
    """

    SPEC_CLASS = DatasetReportSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(executor.Executor)

    def __init__(self, examples: types.BaseChannel, evaluation: types.BaseChannel, code: str = "") -> None:
        """Builds the component.

        Args:
          examples: a Feedline dataset.
          evaluation: what Evaluator measured on it.
          code: version of the code; another one misses the cache.
        """
        spec = DatasetReportSpec(
            **{
                executor.CODE_KEY: code,
                executor.EXAMPLES_KEY: examples,
                executor.EVALUATION_KEY: evaluation,
                executor.REPORT_KEY: types.Channel(type=HtmlReport),
            }
        )
        super().__init__(spec=spec)
