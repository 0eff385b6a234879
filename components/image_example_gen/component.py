"""ImageExampleGen: raw images -> `Examples`, a published dataset with a `Split-NAME` folder of plain TFRecords each.

The driver finds the span and looks at its content before the cache is asked, so that the cache key is both. The
executor runs the ingest into the artifact's directory, or adopts a dataset where it lies.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import Any

from tfx import types
from tfx.components.util import examples_utils
from tfx.dsl.components.base import base_beam_component, base_beam_executor, base_driver, executor_spec
from tfx.orchestration import data_types_utils, metadata
from tfx.orchestration.portable import base_driver as ir_base_driver
from tfx.orchestration.portable import data_types
from tfx.proto import example_gen_pb2
from tfx.proto.orchestration import driver_output_pb2
from tfx.types import artifact_utils, standard_artifacts
from tfx.types.component_spec import ChannelParameter, ExecutionParameter

from beam_jobs import ingest, storage
from beam_jobs.common.strings import WARNING
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import OptionError, SourceChanged
from beam_jobs.options import IngestOptions
from beam_jobs.sources import spans
from beam_jobs.sources.factory import dataset_fingerprint, source_fingerprint
from components.artifacts import Artifacts
from components.image_example_gen import (
    DATASET_KEY,
    DIGEST_KEY,
    EXAMPLES_KEY,
    FINGERPRINT_KEY,
    OPTIONS_KEY,
    PRODUCER_KEY,
    SPAN_KEY,
    VERSION_KEY,
    check_dataset,
    describe_span,
    options_of,
    options_text,
    resolved_request,
)


# TFX checks a DRIVER_CLASS against the older base and runs it through the newer one, as its own ExampleGen does.
class Driver(base_driver.BaseDriver, ir_base_driver.BaseDriver):
    """Adds the source that is meant and its fingerprint to the execution properties, and the span to the artifact."""

    def __init__(self, metadata_handle: metadata.Metadata) -> None:
        """Builds the driver; TFX calls it."""
        base_driver.BaseDriver.__init__(self, metadata_handle)
        ir_base_driver.BaseDriver.__init__(self, metadata_handle)

    def run(self, execution_info: data_types.ExecutionInfo) -> driver_output_pb2.DriverOutput:
        """Returns the execution properties and the artifact to be.

        Raises:
          UsageError: the source cannot be ingested, or there is no such span or dataset.
          CorruptDataset: a file of the dataset to adopt is missing or was cut.
        """
        properties = resolved_request(execution_info.exec_properties)
        examples: types.Artifact = copy.deepcopy(execution_info.output_dict[EXAMPLES_KEY][0])
        describe_span(examples, properties)
        if properties.get(DATASET_KEY):
            dataset = check_dataset(properties[DATASET_KEY])
            properties[FINGERPRINT_KEY] = dataset_fingerprint(dataset)
            properties[PRODUCER_KEY] = ", ".join(f"{name} {version}" for name, version in dataset.producer.items())
            examples.uri = properties[DATASET_KEY]
            examples.is_external = True  # or TFX would remove the directory when the execution fails
        else:
            properties[FINGERPRINT_KEY] = source_fingerprint(options_of(properties))
        output = driver_output_pb2.DriverOutput()
        for name, value in properties.items():
            if value is not None:
                data_types_utils.set_metadata_value(output.exec_properties[name], value)
        output.output_artifacts[EXAMPLES_KEY].artifacts.append(examples.mlmd_artifact)
        return output


_WORK_PREFIX = ".work-"


class Executor(base_beam_executor.BaseBeamExecutor):
    """Ingests under the Beam arguments of the pipeline, or adopts."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Writes the dataset, or finds it, and names its splits.

        Raises:
          DataError: the images failed a check; nothing was published. Or the dataset changed while it was adopted.
        """
        fingerprint = exec_properties.get(FINGERPRINT_KEY) or ""
        # Not every orchestrator of TFX runs drivers.
        properties = exec_properties if fingerprint else resolved_request(exec_properties)
        examples = artifact_utils.get_single_instance(output_dict[EXAMPLES_KEY])
        if properties.get(DATASET_KEY):
            dataset = _adopt(properties[DATASET_KEY], fingerprint)
            fingerprint = dataset_fingerprint(dataset)
            examples.uri = properties[DATASET_KEY]
        else:
            dataset = self._ingest(examples.uri, properties, fingerprint)
        describe_span(examples, properties)
        examples.split_names = artifact_utils.encode_split_names(list(dataset.splits))
        examples_utils.set_payload_format(examples, example_gen_pb2.FORMAT_TF_EXAMPLE)
        examples.set_string_custom_property(DIGEST_KEY, dataset.digest)
        examples.set_string_custom_property(FINGERPRINT_KEY, fingerprint)

    def _ingest(self, out: str, properties: Mapping[str, Any], fingerprint: str) -> Manifest:
        options = dataclasses.replace(options_of(properties), out=out)
        # TFX gives every attempt a directory of its own and removes it on failure; what was examined outlives that.
        attempts = os.path.dirname(out)
        work = storage.join(attempts, f"{_WORK_PREFIX}{options.digest()[:16]}-{fingerprint[:16]}")
        result = ingest.run(options, make_pipeline=self._make_beam_pipeline, report=_tell, work=work)
        for name in storage.list_dirs(attempts):
            if name.startswith(_WORK_PREFIX):  # left by attempts on images or options that are no more
                storage.remove_tree(storage.join(attempts, name))
        return result


def _tell(line: str) -> None:
    logging.log(logging.WARNING if line.startswith(WARNING) else logging.INFO, line)


def _adopt(directory: str, fingerprint: str) -> Manifest:
    dataset = check_dataset(directory)
    if fingerprint and dataset_fingerprint(dataset) != fingerprint:
        raise SourceChanged(f"another dataset was published in {directory} just now; run the pipeline again")
    return dataset


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
    unchanged, or the adopted dataset is; see `beam_jobs.sources.factory`.

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
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)
    DRIVER_CLASS = Driver

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
