"""A component that hands out a finished dataset, with a span and without anomalies: all the gate needs to run."""

from __future__ import annotations

import shutil
from pathlib import Path

from tensorflow_metadata.proto.v0 import anomalies_pb2
from tfx import types
from tfx.dsl.components.base import base_component, base_executor, executor_spec
from tfx.types import artifact_utils, standard_artifacts
from tfx.types.component_spec import ChannelParameter, ExecutionParameter

from beam_jobs.dataset import manifest


class Executor(base_executor.BaseExecutor):
    def Do(self, input_dict, output_dict, exec_properties):
        examples = artifact_utils.get_single_instance(output_dict["examples"])
        anomalies = artifact_utils.get_single_instance(output_dict["anomalies"])
        shutil.copytree(exec_properties["directory"], examples.uri, dirs_exist_ok=True)
        if exec_properties["fails"]:
            raise RuntimeError("after the dataset was written")
        dataset = manifest.load(examples.uri)
        examples.span = exec_properties["span"]
        examples.set_string_custom_property("dataset_digest", dataset.digest)
        for artifact in (examples, anomalies):
            artifact.split_names = artifact_utils.encode_split_names(list(dataset.splits))
        for split in dataset.splits:
            folder = Path(anomalies.uri) / f"Split-{split}"
            folder.mkdir(parents=True)
            (folder / "SchemaDiff.pb").write_bytes(anomalies_pb2.Anomalies().SerializeToString())


class EmitterSpec(types.ComponentSpec):
    PARAMETERS = {
        "directory": ExecutionParameter(type=str),
        "span": ExecutionParameter(type=int),
        "fails": ExecutionParameter(type=int),
    }
    INPUTS = {}
    OUTPUTS = {
        "examples": ChannelParameter(type=standard_artifacts.Examples),
        "anomalies": ChannelParameter(type=standard_artifacts.ExampleAnomalies),
    }


class Emitter(base_component.BaseComponent):
    SPEC_CLASS = EmitterSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(self, directory: Path, span: int, fails: bool = False):
        outputs = {
            "examples": types.Channel(type=standard_artifacts.Examples),
            "anomalies": types.Channel(type=standard_artifacts.ExampleAnomalies),
        }
        super().__init__(spec=EmitterSpec(directory=str(directory), span=span, fails=int(fails), **outputs))
