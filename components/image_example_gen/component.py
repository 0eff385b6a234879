"""ImageExampleGen: raw images -> `Examples`, a published dataset with a `Split-NAME` folder of plain TFRecords each."""

from __future__ import annotations

from tfx import types
from tfx.dsl.components.base import base_beam_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ExecutionParameter

from beam_jobs.errors import OptionError
from beam_jobs.options import IngestOptions
from beam_jobs.sources import spans
from components.image_example_gen import driver, executor
from components.image_example_gen.names import (
    DATASET_KEY,
    EXAMPLES_KEY,
    FINGERPRINT_KEY,
    OPTIONS_KEY,
    PRODUCER_KEY,
    SPAN_KEY,
    VERSION_KEY,
)
from components.image_example_gen.request import options_text


class ImageExampleGenSpec(types.ComponentSpec):
    """Wiring of ImageExampleGen."""

    PARAMETERS = {
        OPTIONS_KEY: ExecutionParameter(type=str, optional=True),
        DATASET_KEY: ExecutionParameter(type=str, optional=True),
        SPAN_KEY: ExecutionParameter(type=int, optional=True),
        VERSION_KEY: ExecutionParameter(type=int, optional=True),
        PRODUCER_KEY: ExecutionParameter(type=str),
        FINGERPRINT_KEY: ExecutionParameter(type=str, optional=True),
    }
    INPUTS: dict[str, ChannelParameter] = {}
    OUTPUTS = {EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples)}


class ImageExampleGen(base_beam_component.BaseBeamComponent):
    """Runs the Feedline ingest with the pipeline's Beam arguments, or adopts a dataset that is published already.

    The output is served from the cache when content, names and labels of the images, the options and the code are
    unchanged, or the adopted dataset is; see `beam_jobs.sources.fingerprint`.

    A source or dataset with `{SPAN}` in its path means its newest span, looked for on every run; see
    `beam_jobs.sources.spans`.

    Example:
      example_gen = ImageExampleGen(IngestOptions(source="photos/{SPAN}", out=""))
      adopting = ImageExampleGen(dataset="datasets/{SPAN}", span=7)
      statistics_gen = StatisticsGen(examples=example_gen.outputs["examples"])

    Outputs:
      examples: `Examples` with one split a split of the options. Its directory is a Feedline dataset; an adopted one is
        that directory itself, which TFX neither writes nor ever removes. `span` and `version` are set, both 0 without.
    """

    SPEC_CLASS = ImageExampleGenSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(executor.Executor)
    DRIVER_CLASS = driver.Driver

    def __init__(
        self,
        options: IngestOptions | None = None,
        producer: str = "",
        *,
        dataset: str = "",
        span: int | None = None,
        version: int | None = None,
    ) -> None:
        """Builds the component.

        Args:
          options: what to ingest; `out` is ignored, the artifact's own directory takes its place.
          producer: version of the code; another one misses the cache. An adopted dataset names its own.
          dataset: directory of a published dataset to adopt, in the place of `options`.
          span: the span to take; the newest when None.
          version: the version of the span to take; its newest when None.

        Raises:
          OptionError: both or neither of `options` and `dataset` are given, or a span has no place in the path.
        """
        if (options is None) == (not dataset):
            given = "neither options nor a dataset" if options is None else f"both options and the dataset {dataset}"
            raise OptionError(f"ImageExampleGen was given {given}; give options to ingest, or a dataset to adopt")
        spans.check(options.source if options else dataset, span, version)
        properties = {
            OPTIONS_KEY: options_text(options) if options else None,
            DATASET_KEY: dataset or None,
            SPAN_KEY: span,
            VERSION_KEY: version,
            PRODUCER_KEY: producer if options else "",
            FINGERPRINT_KEY: None,
        }
        examples = types.Channel(type=standard_artifacts.Examples)
        super().__init__(spec=ImageExampleGenSpec(**properties, **{EXAMPLES_KEY: examples}))
