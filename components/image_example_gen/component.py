"""ImageExampleGen: raw images -> `Examples`, a published dataset with a `Split-NAME` folder of plain TFRecords each."""

from __future__ import annotations

import json

from tfx import types
from tfx.dsl.components.base import base_beam_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ExecutionParameter

from beam_jobs.options import IngestOptions
from components.image_example_gen import driver, executor
from components.image_example_gen.names import EXAMPLES_KEY, FINGERPRINT_KEY, OPTIONS_KEY, PRODUCER_KEY


class ImageExampleGenSpec(types.ComponentSpec):
    """Wiring of ImageExampleGen."""

    PARAMETERS = {
        OPTIONS_KEY: ExecutionParameter(type=str),
        PRODUCER_KEY: ExecutionParameter(type=str),
        FINGERPRINT_KEY: ExecutionParameter(type=str, optional=True),
    }
    INPUTS: dict[str, ChannelParameter] = {}
    OUTPUTS = {EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples)}


class ImageExampleGen(base_beam_component.BaseBeamComponent):
    """Runs the Feedline ingest with the pipeline's Beam arguments.

    The output is served from the cache when content, names and labels of the images, the options and the code are
    unchanged; see `beam_jobs.fingerprint`.

    Example:
      example_gen = ImageExampleGen(IngestOptions(source="photos", out=""))
      statistics_gen = StatisticsGen(examples=example_gen.outputs["examples"])

    Outputs:
      examples: `Examples` with one split a split of the options. Its directory is a Feedline dataset.
    """

    SPEC_CLASS = ImageExampleGenSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(executor.Executor)
    DRIVER_CLASS = driver.Driver

    def __init__(self, options: IngestOptions, producer: str = "") -> None:
        """Builds the component.

        Args:
          options: what to ingest; `out` is ignored, the artifact's own directory takes its place.
          producer: version of the code; another one misses the cache.
        """
        text = json.dumps(options.to_json(), sort_keys=True)
        examples = types.Channel(type=standard_artifacts.Examples)
        spec = ImageExampleGenSpec(
            **{OPTIONS_KEY: text, PRODUCER_KEY: producer, FINGERPRINT_KEY: None, EXAMPLES_KEY: examples}
        )
        super().__init__(spec=spec)
