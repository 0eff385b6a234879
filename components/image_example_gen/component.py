"""ImageExampleGen: raw images -> `Examples`, a published dataset with a folder `Split-NAME` of TFRecords per split.

Before the cache lookup, the driver resolves the span and computes the fingerprint of its content; both are parts of the
cache key. The executor runs the ingest, which writes to the directory of the artifact, or adopts a dataset.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import logging
import os
from collections.abc import Mapping
from typing import Any

from tfx import types
from tfx.components.example_gen.utils import PAYLOAD_FORMAT_PROPERTY_NAME
from tfx.components.util import examples_utils
from tfx.dsl.components.base import base_beam_component, base_beam_executor, base_driver, executor_spec
from tfx.dsl.components.common.importer import Importer
from tfx.orchestration import data_types_utils, metadata
from tfx.orchestration.portable import base_driver as ir_base_driver
from tfx.orchestration.portable import data_types
from tfx.proto import example_gen_pb2
from tfx.proto.orchestration import driver_output_pb2
from tfx.types import artifact_utils, standard_artifacts
from tfx.types.component_spec import ChannelParameter, ExecutionParameter

from beam_jobs import ingest, storage
from beam_jobs.common import system
from beam_jobs.common.strings import WARNING
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import OptionError, SourceChanged
from beam_jobs.options import IngestOptions
from beam_jobs.sources import spans
from beam_jobs.sources.fingerprint import dataset_fingerprint, source_fingerprint
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
    WORK_DIR_KEY,
    check_dataset,
    describe_span,
    options_text,
    read_options,
    resolve_properties,
)


# TFX requires that a DRIVER_CLASS has the older base class, and calls the newer one, as in its own ExampleGen.
class Driver(base_driver.BaseDriver, ir_base_driver.BaseDriver):
    """Adds the resolved source and its fingerprint to the execution properties, and the span to the artifact."""

    def __init__(self, metadata_handle: metadata.Metadata) -> None:
        base_driver.BaseDriver.__init__(self, metadata_handle)
        ir_base_driver.BaseDriver.__init__(self, metadata_handle)

    def run(self, execution_info: data_types.ExecutionInfo) -> driver_output_pb2.DriverOutput:
        """Returns the execution properties and the output artifact.

        Raises:
          UsageError: the source cannot be ingested, or the span or dataset does not exist.
          CorruptDataset: a file of the dataset to adopt is missing or has another size.
        """
        properties = resolve_properties(execution_info.exec_properties)
        examples: types.Artifact = copy.deepcopy(execution_info.output_dict[EXAMPLES_KEY][0])
        describe_span(examples, properties)
        if properties.get(DATASET_KEY):
            dataset = check_dataset(properties[DATASET_KEY])
            properties[FINGERPRINT_KEY] = dataset_fingerprint(dataset)
            properties[PRODUCER_KEY] = ", ".join(f"{name} {version}" for name, version in dataset.producer.items())
            examples.uri = properties[DATASET_KEY]
            examples.is_external = True  # otherwise TFX removes the directory if the execution fails
        else:
            properties[FINGERPRINT_KEY] = source_fingerprint(read_options(properties), _index_path(examples.uri))
        output = driver_output_pb2.DriverOutput()
        for name, value in properties.items():
            if value is not None:
                data_types_utils.set_metadata_value(output.exec_properties[name], value)
        output.output_artifacts[EXAMPLES_KEY].artifacts.append(examples.mlmd_artifact)
        return output


_WORK_PREFIX = ".work-"
_INDEX_NAME = "source_files.sqlite"


def _index_path(out: str) -> str:
    """Returns the path of the index of source files, in the component's directory; empty for a remote directory."""
    if not out or storage.is_remote(out):
        return ""
    return os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(out))), _INDEX_NAME)


class Executor(base_beam_executor.BaseBeamExecutor):
    """Runs the ingest with the Beam arguments of the pipeline, or adopts a dataset."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Writes or adopts the dataset, and sets the split names of the artifact.

        Raises:
          DataError: the images failed a check, and nothing was published; or the dataset changed during the adoption.
        """
        fingerprint = exec_properties.get(FINGERPRINT_KEY) or ""
        # Some orchestrators, such as Kubeflow, do not run drivers.
        properties = exec_properties if fingerprint else resolve_properties(exec_properties)
        examples = artifact_utils.get_single_instance(output_dict[EXAMPLES_KEY])
        if directory := properties.get(DATASET_KEY):
            dataset = check_dataset(directory)
            if fingerprint not in ("", dataset_fingerprint(dataset)):
                raise SourceChanged(f"another dataset was published in {directory} just now; run the pipeline again")
            fingerprint, examples.uri = dataset_fingerprint(dataset), directory
        else:
            dataset = self._ingest(examples.uri, properties, fingerprint)
        describe_span(examples, properties)
        examples.split_names = artifact_utils.encode_split_names(list(dataset.splits))
        examples_utils.set_payload_format(examples, example_gen_pb2.FORMAT_TF_EXAMPLE)
        examples.set_string_custom_property(DIGEST_KEY, dataset.digest)
        examples.set_string_custom_property(FINGERPRINT_KEY, fingerprint)

    def _ingest(self, out: str, properties: Mapping[str, Any], fingerprint: str) -> Manifest:
        options = dataclasses.replace(read_options(properties), out=out)
        # TFX creates a directory for every attempt and removes it after a failure; the work directory remains.
        attempts_dir, shared_dir = os.path.dirname(out), properties.get(WORK_DIR_KEY)
        # Without a driver, the path of the source replaces the fingerprint; the ingest itself detects changed files.
        source_id = fingerprint or hashlib.sha256(options.source.encode()).hexdigest()
        name = f"{_WORK_PREFIX}{options.digest()[:16]}-{source_id[:16]}"
        work = storage.join(shared_dir or attempts_dir, name)
        result = ingest.run(
            options, make_pipeline=self._make_beam_pipeline, report=_log_line, work=work, watch=system.watch.get()
        )
        if not shared_dir:  # in a shared directory, another run may use a work directory
            for directory in storage.list_dirs(attempts_dir):
                if directory.startswith(_WORK_PREFIX):  # of earlier attempts, even with other images or options
                    storage.remove_tree(storage.join(attempts_dir, directory))
        return result


def _log_line(line: str) -> None:
    logging.log(logging.WARNING if line.startswith(WARNING) else logging.INFO, line)


class ImageExampleGenSpec(types.ComponentSpec):
    """Parameters, inputs and outputs of ImageExampleGen."""

    PARAMETERS = {
        OPTIONS_KEY: ExecutionParameter(type=str, optional=True),
        DATASET_KEY: ExecutionParameter(type=str, optional=True),
        SPAN_KEY: ExecutionParameter(type=int, optional=True),
        VERSION_KEY: ExecutionParameter(type=int, optional=True),
        PRODUCER_KEY: ExecutionParameter(type=str),
        FINGERPRINT_KEY: ExecutionParameter(type=str, optional=True),
        WORK_DIR_KEY: ExecutionParameter(type=str, optional=True),
    }
    INPUTS: dict[str, ChannelParameter] = {}
    OUTPUTS = {EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples)}


class ImageExampleGen(base_beam_component.BaseBeamComponent):
    """Runs the Feedline ingest with the Beam arguments of the pipeline, or adopts a published dataset.

    The output is cached as long as the content, names and labels of the images, the options and the code are unchanged,
    or as long as the adopted dataset is unchanged; see `beam_jobs.sources.fingerprint`.

    If the path of the source or dataset has `{SPAN}`, every run uses the newest span; see `beam_jobs.sources.spans`.

    Example:
      example_gen = ImageExampleGen(IngestOptions(source="photos/{SPAN}", out=""))
      adopting = ImageExampleGen(dataset="datasets/{SPAN}", span=7)
      statistics_gen = StatisticsGen(examples=example_gen.outputs["examples"])

    Outputs:
      examples: `Examples` with the splits of the options, whose directory is a Feedline dataset. TFX neither writes nor
        removes the directory of an adopted dataset. `span` and `version` are set, 0 without a span.
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
        work_dir: str = "",
    ) -> None:
        """Builds the component.

        Args:
          options: options of the ingest; the directory of the artifact replaces `out`.
          producer: version of the code, a part of the cache key; for an adopted dataset, its manifest has the version.
          dataset: directory of a published dataset to adopt, instead of `options`.
          span: number of the span; None for the newest.
          version: version of the span; None for the newest.
          work_dir: directory for unfinished ingests, in the store of the artifacts, which all runs of a service share;
            empty uses the directory of the component, which is the same in all local runs.

        Raises:
          OptionError: both or neither of `options` and `dataset` are set, or the path has no `{SPAN}` for a span.
        """
        if (options is None) == (not dataset):
            arguments = "neither options nor dataset" if options is None else f"both options and dataset {dataset}"
            raise OptionError(f"ImageExampleGen has {arguments}; set options to ingest, or dataset to adopt one")
        spans.check(options.source if options else dataset, span, version)
        properties = {
            OPTIONS_KEY: options_text(options) if options else None,
            DATASET_KEY: dataset or None,
            SPAN_KEY: span,
            VERSION_KEY: version,
            PRODUCER_KEY: producer if options else "",
            FINGERPRINT_KEY: None,
            WORK_DIR_KEY: work_dir or None,
        }
        examples = types.Channel(type=standard_artifacts.Examples)
        super().__init__(spec=ImageExampleGenSpec(**properties, **{EXAMPLES_KEY: examples}))


def import_dataset(dataset: str, span: int | None, version: int | None) -> Importer:
    """Returns a node that imports a published dataset, for services that do not run drivers.

    The call determines the newest span and the digest of the dataset. Every run creates a new artifact, because another
    dataset may be published in the directory; DatasetGate compares its digest with the digest of this call.

    Args:
      dataset: directory of the dataset; the path may contain `{SPAN}` and `{VERSION}`.
      span: number of the span; None for the newest.
      version: version of the span; None for the newest.

    Raises:
      OptionError: the pattern is invalid.
      SourceError: the span, version or dataset does not exist.
      CorruptDataset: a file of the dataset is missing or has another size.
    """
    properties = resolve_properties({DATASET_KEY: dataset, SPAN_KEY: span, VERSION_KEY: version})
    dataset_manifest = check_dataset(properties[DATASET_KEY])
    span_properties = {name: properties[name] for name in (SPAN_KEY, VERSION_KEY) if properties[name] is not None}
    return Importer(
        source_uri=properties[DATASET_KEY],
        artifact_type=standard_artifacts.Examples,
        reimport=True,
        properties={"split_names": artifact_utils.encode_split_names(list(dataset_manifest.splits)), **span_properties},
        custom_properties={
            PAYLOAD_FORMAT_PROPERTY_NAME: example_gen_pb2.PayloadFormat.Name(example_gen_pb2.FORMAT_TF_EXAMPLE),
            DIGEST_KEY: dataset_manifest.digest,
            FINGERPRINT_KEY: dataset_fingerprint(dataset_manifest),
        },
        output_key=EXAMPLES_KEY,
    ).with_id("AdoptedDataset")
