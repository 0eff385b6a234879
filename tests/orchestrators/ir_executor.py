"""Runs a compiled Kubeflow pipeline on this machine: every container's own command and arguments, as a process.

It reads nothing but the file, and does what the drivers and launchers of Kubeflow Pipelines and Vertex AI do around a
container: inputs from the outputs of tasks before, an ExecutorInput in the place of `{{$}}`, and afterwards what the
container says of its outputs in the file of its ExecutorOutput, whose directories must lie in that of the run. A
container that failed is tried again as its retry policy says, with the same input; one that is stopped gets SIGKILL
alone. Directories stand for the bucket.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2 as pb

PROJECT = "123456789"
OUTPUT_NAME = "executor_output.json"  # as Vertex AI names it
_NOTHING = pb.PipelineDeploymentConfig.ExecutorSpec()  # runs a task that is a pipeline of its own
_AT_ONCE = 2  # containers; most of one is the loading of TFX on one core


class TaskFailed(Exception):
    """A container ended with another code than 0; the message holds the end of its log."""


class Unsupported(Exception):
    """The pipeline holds what this executor does not run; the message says what, and of which task."""


@dataclass
class Run:
    """What came of a run.

    Attributes:
      order: tasks in the order they ended.
      artifacts: task -> output -> the artifact.
      logs: task -> the log of each of its attempts.
    """

    order: list[str] = field(default_factory=list)
    logs: dict[str, list[str]] = field(default_factory=dict)
    artifacts: dict[str, dict[str, pb.RuntimeArtifact]] = field(default_factory=dict)

    def uri(self, task: str, output: str) -> str:
        return self.artifacts[task][output].uri

    def metadata(self, task: str, output: str) -> dict[str, Any]:
        return json_format.MessageToDict(self.artifacts[task][output].metadata)


def load(path: Path) -> pb.PipelineSpec:
    """Reads a file of either format; a field that the format does not know is an error."""
    values = next(yaml.safe_load_all(path.read_text(encoding="utf-8")))  # JSON is YAML
    return json_format.ParseDict(values.get("pipelineSpec", values), pb.PipelineSpec())


def executors(spec: pb.PipelineSpec) -> Mapping[str, pb.PipelineDeploymentConfig.ExecutorSpec]:
    """Returns task -> how it is run."""
    deployment = pb.PipelineDeploymentConfig()
    json_format.ParseDict(json_format.MessageToDict(spec.deployment_spec), deployment)
    labels = {name: spec.components[task.component_ref.name].executor_label for name, task in _tasks(spec).items()}
    return {name: deployment.executors[label] for name, label in labels.items() if label in deployment.executors}


@dataclass(frozen=True)
class _Task:
    name: str
    folder: Path  # of what it writes
    pipeline: pb.PipelineSpec
    how: pb.PipelineDeploymentConfig.ExecutorSpec

    @property
    def spec(self) -> pb.PipelineTaskSpec:
        return _tasks(self.pipeline)[self.name]

    @property
    def component(self) -> pb.ComponentSpec:
        return self.pipeline.components[self.spec.component_ref.name]


class Executor:
    """Runs pipelines below one directory, which stands for the pipeline root in the bucket.

    Args:
      root: the directory.
      timeout_s: seconds that a container may take.
    """

    def __init__(self, root: Path, timeout_s: float = 240) -> None:
        self._root = root
        self._timeout_s = timeout_s
        self._numbers = itertools.count(1)

    def run(
        self,
        spec: pb.PipelineSpec,
        only: Collection[str] = (),
        earlier: Run | None = None,
        kill: Mapping[str, Callable[[int], bool]] | None = None,
    ) -> Run:
        """Runs every task.

        Args:
          spec: the pipeline.
          only: tasks to run, all when empty; the others have what `earlier` made of them, as if from the cache.
          earlier: a run of the same tasks.
          kill: task -> whether to kill its container now, which is asked all the time, with the number of the attempt.

        Raises:
          TaskFailed: a container failed; those after it did not run.
          Unsupported: a task is not a container or an importer, has a condition, or takes something that is neither a
            constant nor the output of another task.
        """
        job = self._root / PROJECT / f"{spec.pipeline_info.name}-{next(self._numbers)}"
        result = Run(artifacts=dict(earlier.artifacts) if earlier else {})
        self._kill = kill or {}
        how, sorter, running = executors(spec), TopologicalSorter(_before(spec)), {}
        sorter.prepare()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while sorter.is_active():
                for name in sorter.get_ready():
                    if only and name not in only:
                        sorter.done(name)
                    else:
                        task = _Task(name, job / f"{name}_{next(self._numbers)}", spec, how.get(name, _NOTHING))
                        running[pool.submit(self._run, task, result)] = name
                for finished in wait(running, return_when=FIRST_COMPLETED).done:
                    name = running.pop(finished)
                    result.artifacts[name] = finished.result()
                    result.order.append(name)
                    sorter.done(name)
        return result

    def _run(self, task: _Task, done: Run) -> dict[str, pb.RuntimeArtifact]:
        kind = task.how.WhichOneof("spec")
        if kind == "container":
            given = self._input(task, done)
            logs = done.logs.setdefault(task.name, [])
            while True:
                code, log = self._launch(task.name, _command(task.how.container, given), len(logs) + 1)
                logs.append(log)
                if not code:
                    return _outputs(given, task.folder.parent)
                if len(logs) > task.spec.retry_policy.max_retry_count:
                    raise TaskFailed(f"{task.name} ended with {code}:\n{log[-4000:]}")
        if kind == "importer":
            return self._import(task)
        # Kubeflow Pipelines refuses the whole pipeline: "resolver not implemented yet"
        raise Unsupported(f"{task.name} is run by {kind or 'nothing'}; only containers and importers are supported")

    def _artifact(self, kind: pb.ArtifactTypeSchema, uri: str, metadata: Any) -> pb.RuntimeArtifact:
        number = next(self._numbers)
        artifact = pb.RuntimeArtifact(name=f"projects/{PROJECT}/metadataStores/default/artifacts/{number}", uri=uri)
        artifact.type.CopyFrom(kind)
        artifact.metadata.CopyFrom(metadata)
        return artifact

    def _input(self, task: _Task, done: Run) -> pb.ExecutorInput:
        given = pb.ExecutorInput()
        for name, source in task.spec.inputs.artifacts.items():
            produced = source.task_output_artifact
            artifact = given.inputs.artifacts[name].artifacts.add()
            artifact.CopyFrom(done.artifacts[produced.producer_task][produced.output_artifact_key])
            artifact.ClearField("type")  # Kubeflow Pipelines keeps it to itself
        for name, parameter in task.spec.inputs.parameters.items():
            if parameter.runtime_value.WhichOneof("value") != "constant":
                raise Unsupported(
                    f"{task.name} takes {name} from elsewhere; only constants are supported as parameters"
                )
            given.inputs.parameter_values[name].CopyFrom(parameter.runtime_value.constant)
        for name, output in task.component.output_definitions.artifacts.items():
            artifact = self._artifact(output.artifact_type, str(task.folder / name), output.metadata)
            given.outputs.artifacts[name].artifacts.append(artifact)
        given.outputs.output_file = str(task.folder / OUTPUT_NAME)
        _check_declared(given, task.component)
        return given

    def _import(self, task: _Task) -> dict[str, pb.RuntimeArtifact]:
        importer = task.how.importer
        [output] = task.component.output_definitions.artifacts
        uri = importer.artifact_uri.constant.string_value
        return {output: self._artifact(importer.type_schema, uri, importer.metadata)}

    def _launch(self, name: str, command: list[str], attempt: int) -> tuple[int, str]:
        workplace = self._root / "containers" / name  # a container starts in a directory without our sources
        workplace.mkdir(parents=True, exist_ok=True)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the image's `python` is the one with Feedline
        log, end = workplace / "log", time.monotonic() + self._timeout_s
        with log.open("w") as stream:
            container = subprocess.Popen(
                command,
                cwd=workplace,
                env={**os.environ, "PATH": path, "TF_CPP_MIN_LOG_LEVEL": "2"},
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            while container.poll() is None:
                late = time.monotonic() > end
                if late or (name in self._kill and self._kill[name](attempt)):
                    os.killpg(container.pid, signal.SIGKILL)
                    container.wait()
                    assert not late, f"{name} took more than {self._timeout_s} s"
                time.sleep(0.01)
        return container.returncode, log.read_text(errors="replace")


def _tasks(spec: pb.PipelineSpec) -> Mapping[str, pb.PipelineTaskSpec]:
    return spec.root.dag.tasks


def _before(spec: pb.PipelineSpec) -> dict[str, set[str]]:
    """Returns task -> those that it waits for, by name or for their data."""
    return {name: {*task.dependent_tasks, *_producers(task)} for name, task in _tasks(spec).items()}


def _producers(task: pb.PipelineTaskSpec) -> Iterator[str]:
    if task.trigger_policy.condition:
        raise Unsupported(f"{task.task_info.name} runs on a condition, and none is supported")
    for name, source in task.inputs.artifacts.items():
        if source.WhichOneof("kind") != "task_output_artifact":
            raise Unsupported(f"{task.task_info.name} takes {name} from outside; only outputs of tasks are supported")
        yield source.task_output_artifact.producer_task


def _check_declared(given: pb.ExecutorInput, component: pb.ComponentSpec) -> None:
    """A driver refuses what the component did not declare."""
    declared = component.input_definitions
    assert given.inputs.artifacts.keys() <= declared.artifacts.keys()
    assert given.inputs.parameter_values.keys() <= declared.parameters.keys()


def _command(container: pb.PipelineDeploymentConfig.PipelineContainerSpec, given: pb.ExecutorInput) -> list[str]:
    """Returns command and arguments with their placeholders filled in."""
    values = dict(_placeholders(given))

    def value(found: re.Match[str]) -> str:
        if found.group() not in values:
            raise ValueError(f"nothing is known for {found.group()}")
        return values[found.group()]

    return [re.sub(r"\{\{\$.*?\}\}", value, part) for part in (*container.command, *container.args)]


def _placeholders(given: pb.ExecutorInput) -> Iterator[tuple[str, str]]:
    yield "{{$}}", json_format.MessageToJson(given, indent=None)
    for side, artifacts in (("inputs", given.inputs.artifacts), ("outputs", given.outputs.artifacts)):
        for name, listed in artifacts.items():
            for what in ("uri", "path"):  # one and the same where directories stand for the bucket
                yield f"{{{{$.{side}.artifacts['{name}'].{what}}}}}", listed.artifacts[0].uri
    for name, value in given.inputs.parameter_values.items():
        plain = json_format.MessageToDict(value)
        yield f"{{{{$.inputs.parameters['{name}']}}}}", plain if isinstance(plain, str) else json.dumps(plain)


def _outputs(given: pb.ExecutorInput, job: Path) -> dict[str, pb.RuntimeArtifact]:
    """Returns the outputs as the launcher publishes them: what was asked for, and over it what the container said."""
    said = pb.ExecutorOutput()
    path = Path(given.outputs.output_file)
    if path.exists():
        json_format.Parse(path.read_text(encoding="utf-8"), said)
    made = {}
    for name, listed in given.outputs.artifacts.items():
        artifact = listed.artifacts[0]
        if name in said.artifacts and said.artifacts[name].artifacts:
            own = said.artifacts[name].artifacts[0]
            artifact.uri = own.uri or artifact.uri
            if not artifact.uri.startswith(f"{job}/"):
                raise TaskFailed(f"URI {artifact.uri!r} does not have expected bucket prefix {str(job)!r}")
            if any(value.WhichOneof("kind") == "null_value" for value in own.metadata.fields.values()):
                raise ValueError(f"{name} has metadata without a value, which Kubeflow Pipelines refuses")
            artifact.metadata.MergeFrom(own.metadata)
        made[name] = artifact
    return made
