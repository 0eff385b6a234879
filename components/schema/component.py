"""InferredSchema: statistics and the dataset they describe -> `Schema`, for people to review.

It takes the place of TFX's SchemaGen, which sees the statistics alone and so allows any height, any mean and, over 100
classes, any class. It does not follow SchemaGen: a pipeline would hold two schemas then, and one day somebody wires the
poorer one.
"""

from __future__ import annotations

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ExecutionParameter

from components.schema import executor


class InferredSchemaSpec(types.ComponentSpec):
    """Wiring of InferredSchema."""

    PARAMETERS = {executor.CODE_KEY: ExecutionParameter(type=str)}
    INPUTS = {
        executor.STATISTICS_KEY: ChannelParameter(type=standard_artifacts.ExampleStatistics),
        executor.EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
    }
    OUTPUTS = {executor.SCHEMA_KEY: ChannelParameter(type=standard_artifacts.Schema)}


class InferredSchema(base_component.BaseComponent):
    """Infers the schema of a dataset: what TFDV sees, and domains, ranges and shapes that the dataset knows.

    Example:
      schema = InferredSchema(statistics_gen.outputs["statistics"], example_gen.outputs["examples"]).outputs["schema"]

    Outputs:
      schema: `Schema`.
    """

    SPEC_CLASS = InferredSchemaSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(executor.Executor)

    def __init__(self, statistics: types.BaseChannel, examples: types.BaseChannel, code: str = "") -> None:
        """Builds the component.

        Args:
          statistics: what StatisticsGen counted, with the options of `components.statistics`.
          examples: the Feedline dataset it counted.
          code: version of the code; another one misses the cache.
        """
        spec = InferredSchemaSpec(
            **{
                executor.CODE_KEY: code,
                executor.STATISTICS_KEY: statistics,
                executor.EXAMPLES_KEY: examples,
                executor.SCHEMA_KEY: types.Channel(type=standard_artifacts.Schema),
            }
        )
        super().__init__(spec=spec)
