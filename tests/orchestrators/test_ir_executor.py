"""What the executor of Kubeflow files does not run, it refuses by name instead of running something else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

TRAIN = """
components:
  comp-train: {executorLabel: exec-train}
  comp-inner: {dag: {tasks: {}}}
deploymentSpec:
  executors:
    exec-train: {container: {image: registry.example/none, command: ["true"]}}
pipelineInfo: {name: photos}
root:
  dag:
    tasks:
      train:
        taskInfo: {name: train}
        componentRef: {name: comp-train}
"""


@pytest.mark.parametrize(
    ("place", "more", "message"),
    [
        ("task", {"triggerPolicy": {"condition": "1 == 2"}}, "train runs on a condition"),
        (
            "task",
            {"inputs": {"artifacts": {"images": {"componentInputArtifact": "images"}}}},
            "train takes images from outside; only outputs of tasks are supported",
        ),
        (
            "task",
            {"inputs": {"parameters": {"epochs": {"componentInputParameter": "epochs"}}}},
            "train takes epochs from elsewhere; only constants are supported",
        ),
        ("task", {"componentRef": {"name": "comp-inner"}}, "train is run by nothing; only containers and importers"),
        ("executor", {"resolver": {}}, "train is run by resolver; only containers and importers"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, place, more, message):
    from tests.orchestrators.ir_executor import Executor, Unsupported, load

    values = yaml.safe_load(TRAIN)
    if place == "task":
        values["root"]["dag"]["tasks"]["train"] |= more
    else:
        values["deploymentSpec"]["executors"]["exec-train"] = more
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(Unsupported, match=re.escape(message)):
        Executor(tmp_path).run(load(tmp_path / "pipeline.yaml"))


def test_what_is_supported_runs(tmp_path: Path):
    from tests.orchestrators.ir_executor import Executor, load

    (tmp_path / "pipeline.yaml").write_text(TRAIN)
    assert Executor(tmp_path).run(load(tmp_path / "pipeline.yaml")).order == ["train"]


ELSEWHERE = """
import json, os, sys
path = json.loads(sys.argv[1])["outputs"]["outputFile"]
os.makedirs(os.path.dirname(path))
with open(path, "w") as stream:
    json.dump({"artifacts": {"examples": {"artifacts": [{"uri": "/adopted"}]}}}, stream)
"""


def test_an_output_outside_of_the_directory_of_the_run_is_rejected_as_the_launcher_does(tmp_path: Path):
    from tests.orchestrators.ir_executor import Executor, TaskFailed, load

    values = yaml.safe_load(TRAIN)
    schema = {"artifactType": {"instanceSchema": "title: tfx.Examples"}}
    values["components"]["comp-train"]["outputDefinitions"] = {"artifacts": {"examples": schema}}
    container = {"image": "registry.example/none", "command": ["python", "-c", ELSEWHERE], "args": ["{{$}}"]}
    values["deploymentSpec"]["executors"]["exec-train"]["container"] = container
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(TaskFailed, match="URI '/adopted' does not have expected bucket prefix"):
        Executor(tmp_path).run(load(tmp_path / "pipeline.yaml"))
