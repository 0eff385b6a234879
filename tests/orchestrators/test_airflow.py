"""The DAG under real Airflows: their own databases in SQLite, their command line, their supervisors of tasks.

The long ways are divided between the versions: the command `dags test` on 2.11, and all services of 3.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from beam_jobs.dataset.verify import verify
from pipeline.runners import airflow as run_airflow
from pipeline.runs.history import newest_run, open_store
from tests.command import executable
from tests.doc_pages import SHELL, blocks
from tests.orchestrators.airflow_environments import VERSIONS, Airflow, outputs, settings, states

pytestmark = [pytest.mark.orchestrators, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1800)]

DATE = "2026-01-01T00:00:00+00:00"
RUN_ID = f"manual__{DATE}"  # what `airflow dags test` names a run of that date
TO_TRIGGER = {"2": "--exec-date", "3": "--logical-date"}
NOT_THERE = {  # commands of the page that are for the other version
    "2": [["api-server"], ["dags", "list-runs", "feedline"]],
    "3": [["dags", "list-runs", "-d", "feedline"]],
}
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: feedline}
spec:
  containers: [{name: base, image: none, volumeMounts: [{name: work, mountPath: /srv/work}]}]
  volumes: [{name: work, persistentVolumeClaim: {claimName: work}}]
"""
RESOLVERS = {"PreviousSpan", "BlessedModel"}  # they look at what there is, every time


def digest(root: Path) -> str:
    [dataset] = (root / "artifacts" / "ImageExampleGen" / "examples").glob("[0-9]*")
    return json.loads((dataset / "dataset.json").read_text(encoding="utf-8"))["digest"]


def pushed(root: Path) -> Path:
    [model] = (root / "serving").iterdir()
    return model


def predictions(model: Path, photos: Path) -> list[tuple[str, float]]:
    from trainer.serving.predict import predict

    paths = sorted(str(path) for path in photos.rglob("*") if path.is_file())
    return [(found.text, found.probability) for found in predict(str(model), paths)]


def wait_for(found: Callable[[], object], process: subprocess.Popen | None = None, seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert not process or process.poll() is None, f"it ended with {process.returncode} too early"
        assert time.monotonic() < deadline, f"it did not come within {seconds} s"
        time.sleep(0.005)


def kill(process: subprocess.Popen) -> None:
    """Kills a process and all that it started, as a machine that goes down does."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait(20)


@pytest.fixture(scope="module")
def airflows(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Airflow]:
    """Version -> its Airflow, whose database is migrated."""
    made: dict[str, Airflow] = {}

    def of(version: str) -> Airflow:
        if version not in made:
            made[version] = Airflow(version, tmp_path_factory.mktemp(f"airflow{version}"))
            made[version].run("db", "migrate")
        return made[version]

    return of


@pytest.fixture(params=list(VERSIONS))
def either(airflows, compiled, request: pytest.FixtureRequest) -> Airflow:
    """Each Airflow, with the DAGs in its folder."""
    return airflows(request.param)


@pytest.fixture(scope="module")
def airflow(airflows, compiled) -> Airflow:
    return airflows("2")


@pytest.fixture(scope="module")
def airflow3(airflows, compiled) -> Iterator[Airflow]:
    """Airflow 3 with its services, of which only the first needs a port."""
    found = airflows("3")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found.environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] = f"http://127.0.0.1:{port}/execution/"
    services = [("api-server", "--host", "127.0.0.1", "--port", str(port)), ("dag-processor",), ("scheduler",)]
    with contextlib.ExitStack() as running:
        for service in services:
            log = running.enter_context((found.home / f"{service[0]}.log").open("w"))
            running.callback(kill, found.start(*service, log=log))
        yield found


@pytest.fixture(scope="module")
def compiled(airflows, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name of the DAG -> root of its pipeline; the files are in the folder of every Airflow that is there."""
    roots = {name: tmp_path_factory.mktemp("roots") / name for name in ("clean", "killed", "services")}
    folder = tmp_path_factory.mktemp("compiled")
    for name, root in roots.items():
        hint = run_airflow.compile(settings(photos, root, name), str(folder / f"{name}_dag.py"))
        assert hint.endswith(f"airflow dags test {name}")
    (folder / "template.yaml").write_text(POD)
    in_pods = {"image": "registry/feedline:1", "pod_template": str(folder / "template.yaml")}
    values = {**settings(photos, folder / "root", "pods"), "airflow": in_pods}
    run_airflow.compile(values, str(folder / "pods_dag.py"))
    for version in VERSIONS:
        with contextlib.suppress(pytest.skip.Exception):
            for path in folder.glob("*_dag.py"):
                shutil.copy(path, airflows(version).dags)
    return roots


@pytest.fixture(scope="module")
def clean_run(airflow, compiled) -> str:
    return airflow.run("dags", "test", "clean")


PARSER = """
import contextlib, json, sys
from airflow.cli.cli_parser import get_parser
refused = []
for line in json.load(sys.stdin):
    try:
        get_parser().parse_args(line)
    except SystemExit:
        refused.append(line)
print(json.dumps(refused))
"""


def test_the_commands_of_the_page_are_those_of_airflow(either):
    shown = [words for block in blocks("airflow") if block.language in SHELL for words in block.commands]
    commands = [words[1:] for words in shown if words[0] == "airflow"]
    assert [command[:2] for command in commands] == [
        ["db", "migrate"],
        ["dags", "test"],
        ["db", "migrate"],
        ["scheduler"],
        ["dag-processor"],
        ["api-server"],
        ["dags", "unpause"],
        ["dags", "trigger"],
        ["dags", "list-runs"],
        ["dags", "list-runs"],
    ]
    wrong = ["dags", "start", "feedline"]
    done = either.python(PARSER, given=json.dumps([*commands, wrong]))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [*NOT_THERE[either.version], wrong]


READER = """
import json, sys
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:
    from airflow.models import DagBag
bag = DagBag()
dag, pod = bag.dags["clean"], bag.dags["pods"].get_task("Trainer")
tasks = {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks}
limits = [dag.max_active_runs, dag.max_active_tasks]
pods = [pod.image, pod.pod_template_dict["spec"]["volumes"][0]["name"], pod.cmds, pod.arguments]
print(json.dumps([bag.import_errors, limits, tasks, pods]))
"""


def test_airflow_finds_the_dag_and_reads_it_without_feedline(either):
    found = either.python(READER)
    assert found.returncode == 0, found.stderr
    errors, limits, tasks, _ = json.loads(found.stdout.splitlines()[-1])
    assert (errors, limits) == ({}, [1, 1])
    assert tasks["StatisticsGen"] == ["ImageExampleGen"]
    assert "DatasetGate" in tasks["Transform"]
    assert tasks["Finish"] == ["DatasetReport", "Pusher"]
    installed = either.python("import importlib.util as u; print([u.find_spec(n) for n in ('pipeline', 'tensorflow')])")
    assert installed.stdout == "[None, None]\n"


def test_with_an_image_a_task_is_a_pod_of_it_that_starts_the_step(either, tmp_path):
    found = either.python(READER)
    assert found.returncode == 0, found.stderr
    image, volume, command, (run_id, request) = json.loads(found.stdout.splitlines()[-1])[-1]
    assert (image, volume, run_id) == ("registry/feedline:1", "work", "{{ run_id }}")
    settings, _, step = ast.literal_eval(request)
    assert (settings["name"], step) == ("pods", "Trainer")
    # The same command, with a request that is quick to refuse.
    refused = repr(({**settings, "root": ""}, {step: []}, step))
    here = [sys.executable, *command[1:], "first", refused]
    done = subprocess.run(here, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (command[0], done.returncode) == ("python", 2), done.stderr
    assert "root is empty" in done.stdout


OPERATOR = """
import json, os, runpy, signal, sys
dag_file, python, how = sys.argv[1:]
names = runpy.run_path(dag_file)
Failed, NotRetried, Skipped = (names[f"Airflow{name}Exception"] for name in ("", "Fail", "Skip"))
if how == "pod":
    import jinja2
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
    text = "{{ x }} {% y %} {# z #} {{{ a"
    task = names["pod_task"]("python", repr({"a": text}), {"image": "i"}, task_id="pod")
    same = eval(jinja2.Template(task.arguments[1]).render()) == {"a": text}
    def execute(self, context):
        raise Skipped(f"exit code {self.skip_on_exit_code}")
    KubernetesPodOperator.execute = execute
else:
    task = names["FeedlineOperator"](python=python, request="('settings', 'steps')", task_id="step")
    same = None
    signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
try:
    task.execute({"run_id": "first"})
    result = "done"
except NotRetried as error:
    result = f"not retried: {error}"
except Failed as error:
    result = f"retried: {error}"
print("\\n" + json.dumps([result, same]))
"""
STEPS = {  # what the program does that stands in for the Python of Feedline -> what Airflow makes of it
    "exit 0": "done",
    "exit 65": "not retried: step ended with exit code 65; see the log above",
    "exit 2": "retried: step ended with exit code 2; see the log above",
    "trap 'exit 143' TERM; kill $PPID; sleep 100 & wait": ("retried: step ended with exit code 143; see the log above"),
}


@pytest.mark.parametrize("step", STEPS)
def test_what_failed_a_check_is_not_retried_and_a_task_that_is_stopped_stops_its_step(either, tmp_path, step):
    text = f'#!/bin/sh\nread request\necho "$4 $request" > {tmp_path}/given\n{step}\n'
    program = executable(tmp_path / "python3", text)
    done = either.python(OPERATOR, str(either.dags / "clean_dag.py"), str(program), "step")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])[0] == STEPS[step]
    assert (tmp_path / "given").read_text() == "first ('settings', 'steps')\n"


def test_the_settings_of_a_pod_are_no_template_and_its_failed_check_is_not_retried(either):
    done = either.python(OPERATOR, str(either.dags / "clean_dag.py"), "", "pod")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["not retried: exit code [65]", True]


def test_a_run_pushes_a_model_and_leaves_report_and_summary(clean_run, compiled, photos):
    root = compiled["clean"]
    steps = newest_run(open_store(str(root / "metadata.sqlite")))
    assert {step.state for step in steps.values()} == {"complete"}
    assert len(steps) == 12
    assert verify(steps["ImageExampleGen"].outputs["examples"]).problems == []
    assert re.search(r"images +24 found, 24 written", clean_run)
    assert "china" in (root / "report.html").read_text(encoding="utf-8")
    assert (root / "schema.inferred.pbtxt").is_file()
    found = predictions(pushed(root), photos)
    assert len(found) == 24
    assert {text for text, _ in found} <= {"china", "flower"}
    assert all(0.5 <= probability <= 1 for _, probability in found)


def test_a_second_run_is_cached(airflow, clean_run, compiled):
    before = outputs(compiled["clean"])
    airflow.run("dags", "test", "clean")
    found = states(compiled["clean"])
    assert {name: state for name, state in found.items() if name not in RESOLVERS} == {
        name: "cached" for name in found if name not in RESOLVERS
    }
    assert outputs(compiled["clean"]) == before
    assert set(before.values()) == {1}
    pushed(compiled["clean"])


def test_a_task_that_was_killed_is_retried_by_the_scheduler(airflow, compiled):
    root = compiled["killed"]
    airflow.run("dags", "reserialize")
    airflow.run("dags", "trigger", "killed", "--run-id", RUN_ID, TO_TRIGGER["2"], DATE)
    with airflow.start("scheduler") as scheduler:
        try:
            wait_for(lambda: list(root.glob("artifacts/ImageExampleGen/examples/[0-9]*")), scheduler)
            os.kill(airflow.task(RUN_ID, "ImageExampleGen")["pid"], signal.SIGKILL)
            wait_for(lambda: airflow.task(RUN_ID, "ImageExampleGen")["state"] == "up_for_retry", scheduler)
            assert states(root) == {"ImageExampleGen": "running"}
            wait_for(lambda: airflow.task(RUN_ID, "ImageExampleGen")["state"] == "success", scheduler)
        finally:
            kill(scheduler)
    assert airflow.task(RUN_ID, "ImageExampleGen")["try_number"] == 2
    assert states(root)["ImageExampleGen"] == "complete"
    assert outputs(root)["ImageExampleGen/examples"] == 1


def test_a_run_killed_in_its_training_and_taken_up_again_makes_what_a_clean_one_makes(
    airflow, clean_run, compiled, photos
):
    root = compiled["killed"]
    again = ("dags", "test", "killed", DATE)
    with airflow.start(*again) as process:
        try:
            wait_for(lambda: list(root.glob("artifacts/Trainer/model_run/*/*")), process)
        finally:
            kill(process)
    assert states(root)["Trainer"] == "running"
    said = airflow.run(*again)
    assert "StatisticsGen already succeeded in this run" in said
    assert set(states(root).values()) == {"complete"}
    assert set(outputs(root).values()) == {1}
    assert digest(root) == digest(compiled["clean"])
    assert predictions(pushed(root), photos) == predictions(pushed(compiled["clean"]), photos)


def test_airflow_3_retries_a_task_that_was_killed_and_makes_what_a_clean_run_of_2_makes(
    airflow3, clean_run, compiled, photos
):
    root = compiled["services"]
    airflow3.run("dags", "reserialize")
    airflow3.run("dags", "trigger", "services", "--run-id", RUN_ID, TO_TRIGGER["3"], DATE)

    def state(name: str) -> str:
        return airflow3.task(RUN_ID, name)["state"]

    wait_for(lambda: list(root.glob("artifacts/ImageExampleGen/examples/[0-9]*")))
    os.kill(airflow3.task(RUN_ID, "ImageExampleGen")["pid"], signal.SIGKILL)
    wait_for(lambda: state("ImageExampleGen") == "up_for_retry")
    wait_for(lambda: state("Finish") in ("success", "failed", "upstream_failed"), seconds=1200)
    assert state("Finish") == "success"
    assert airflow3.task(RUN_ID, "ImageExampleGen")["try_number"] == 2
    assert set(states(root).values()) == {"complete"}
    assert set(outputs(root).values()) == {1}
    assert digest(root) == digest(compiled["clean"])
    assert predictions(pushed(root), photos) == predictions(pushed(compiled["clean"]), photos)
