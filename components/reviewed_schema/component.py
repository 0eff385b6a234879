"""ReviewedSchema: a schema file that people keep -> `Schema`. Its content is the cache key.

TFX's own ImportSchemaGen is keyed by the path of the file, so an edited schema is answered from the cache as if nothing
had changed. The content travels in the pipeline itself, so the file need not be reachable where the pipeline runs.
"""

from __future__ import annotations

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ExecutionParameter

from components.reviewed_schema import executor
from components.schema import files


class ReviewedSchemaSpec(types.ComponentSpec):
    """Wiring of ReviewedSchema."""

    PARAMETERS = {executor.TEXT_KEY: ExecutionParameter(type=str)}
    INPUTS: dict[str, ChannelParameter] = {}
    OUTPUTS = {executor.SCHEMA_KEY: ChannelParameter(type=standard_artifacts.Schema)}


class ReviewedSchema(base_component.BaseComponent):
    """Provides the schema of a file.

    Example:
      schema = ReviewedSchema("schema.pbtxt").outputs["schema"]

    Outputs:
      schema: `Schema`.
    """

    SPEC_CLASS = ReviewedSchemaSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(executor.Executor)

    def __init__(self, path: str) -> None:
        """Builds the component.

        Args:
          path: text file of a `tensorflow.metadata.v0.Schema`.

        Raises:
          OptionError: it cannot be read, or is not a schema.
        """
        schema = types.Channel(type=standard_artifacts.Schema)
        text = files.read_text(path)
        super().__init__(spec=ReviewedSchemaSpec(**{executor.TEXT_KEY: text, executor.SCHEMA_KEY: schema}))
