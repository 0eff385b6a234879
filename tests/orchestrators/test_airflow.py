"""The DAG under a real Airflow: its own database in SQLite, its command line, its supervisor of tasks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from beam_jobs.errors import OptionError
from beam_jobs.verify import verify
from pipeline import airflow_tasks, run_airflow
from pipeline.config import build
from pipeline.history import newest_run, open_store
from tests.doc_pages import SHELL, blocks
from tests.make_images import class_folders, jpeg

pytestmark = [pytest.mark.orchestrators, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

BIN = Path(sys.executable).parent
DATE = "2026-01-01T00:00:00+00:00"
RUN_ID = f"manual__{DATE}"  # what `airflow dags test` names a run of that date
RESOLVERS = {"PreviousSpan", "BlessedModel"}  # they look at what there is, every time


class Airflow:
    """An Airflow of its own: home, database, folder of DAGs."""

    def __init__(self, home: Path) -> None:
        self.home, self.dags = home, home / "dags"
        self.dags.mkdir()
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "SequentialExecutor",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }

    def run(self, *arguments: str, timeout: int = 400) -> str:
        """Runs a command of Airflow, which has to succeed; returns what it said."""
        with (self.home / "last.log").open("w+", encoding="utf-8") as log:
            with self.start(*arguments, log=log) as process:
                try:
                    code = process.wait(timeout)
                finally:
                    process.kill()
            log.seek(0)
            said = log.read()
        assert code == 0, said[-5000:]
        return said

    def task(self, name: str) -> dict:
        """Returns what the database says about a task of the run `RUN_ID`: its state, attempts and process."""
        query = "SELECT state, try_number, pid FROM task_instance WHERE run_id = ? AND task_id = ?"
        with contextlib.closing(sqlite3.connect(f"file:{self.home}/airflow.db?mode=ro", uri=True)) as database:
            [row] = database.execute(query, (RUN_ID, name)).fetchall()
        return dict(zip(("state", "try_number", "pid"), row, strict=True))

    def start(self, *arguments: str, log=subprocess.DEVNULL) -> subprocess.Popen:
        """Starts a command of Airflow."""
        return subprocess.Popen(
            [str(BIN / "airflow"), *arguments],
            env=self.environment,
            cwd=self.home,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def settings(photos: Path, root: Path, name: str) -> dict:
    return {
        "name": name,
        "root": str(root),
        "ingest": {"source": str(photos), "splits": {"train": 0.7, "eval": 0.3}, "shards": 2},
        "input": {"image_side_px": 32, "batch_size": 8},
        "train": {"epochs": 1, "deterministic": True},
        "evaluate": {"max_drop": 1.0, "above_largest_class": False},
        "airflow": {"retries": 1, "retry_delay_s": 1},
    }


def states(root: Path) -> dict[str, str]:
    return {name: step.state for name, step in newest_run(open_store(str(root / "metadata.sqlite"))).items()}


def outputs(root: Path) -> dict[str, int]:
    """Returns component/key -> number of outputs that were ever made; one each is what readers can work with."""
    found = [path.parent for path in (root / "artifacts").glob("*/*/*")]
    return {str(path.relative_to(root / "artifacts")): found.count(path) for path in found}


def digest(root: Path) -> str:
    [dataset] = (root / "artifacts" / "ImageExampleGen" / "examples").glob("[0-9]*")
    return json.loads((dataset / "dataset.json").read_text(encoding="utf-8"))["digest"]


def pushed(root: Path) -> Path:
    [model] = (root / "serving").iterdir()
    return model


def predictions(model: Path, photos: Path) -> list[tuple[str, float]]:
    from trainer.predict import predict

    paths = sorted(str(path) for path in photos.rglob("*") if path.is_file())
    return [(found.text, found.probability) for found in predict(str(model), paths)]


def run_all(values: dict, steps: dict) -> None:
    for step in steps:
        airflow_tasks.run_step(values, steps, step, "first")


def wait_for(found: Callable[[], object], process: subprocess.Popen, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert process.poll() is None, f"it ended with {process.returncode} before it could be killed"
        assert time.monotonic() < deadline, f"nothing to kill within {seconds} s"
        time.sleep(0.005)


def kill(process: subprocess.Popen) -> None:
    """Kills a process and all that it started, as a machine that goes down does."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait(20)


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of Airflow, into which importing it writes already."""
    folder = tmp_path_factory.mktemp("airflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def airflow(home: Path) -> Airflow:
    airflow = Airflow(home)
    airflow.run("db", "migrate")
    return airflow


@pytest.fixture(scope="module")
def compiled(airflow: Airflow, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name of the DAG -> root of its pipeline."""
    roots = {name: tmp_path_factory.mktemp("roots") / name for name in ("clean", "killed")}
    for name, root in roots.items():
        hint = run_airflow.compile(settings(photos, root, name), str(airflow.dags / f"{name}_dag.py"))
        assert hint.endswith(f"airflow dags test {name}")
    return roots


@pytest.fixture(scope="module")
def clean_run(airflow, compiled) -> str:
    return airflow.run("dags", "test", "clean")


PARSER = """
import json, sys
from airflow.cli.cli_parser import get_parser
for line in json.load(sys.stdin):
    print("parsing: airflow", *line, file=sys.stderr)
    get_parser().parse_args(line)
"""


def parsed(airflow: Airflow, commands: list[list[str]]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PARSER],
        env=airflow.environment,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_commands_of_the_page_are_those_of_airflow(airflow):
    shown = [words for block in blocks("airflow") if block.language in SHELL for words in block.commands]
    commands = [words[1:] for words in shown if words[0] == "airflow"]
    assert [command[:2] for command in commands] == [
        ["db", "migrate"],
        ["dags", "test"],
        ["db", "migrate"],
        ["scheduler"],
        ["dags", "unpause"],
        ["dags", "trigger"],
        ["dags", "list-runs"],
    ]
    done = parsed(airflow, commands)
    assert done.returncode == 0, done.stderr
    wrong = parsed(airflow, [["dags", "start", "feedline"]])
    assert wrong.returncode == 2
    assert "invalid choice: 'start'" in wrong.stderr


def test_airflow_finds_the_dag_and_reads_it_without_tensorflow(airflow, compiled):
    program = (
        "import sys, json; from airflow.models import DagBag; bag = DagBag(include_examples=False)\n"
        "heavy = sorted({'tensorflow', 'tfx', 'apache_beam', 'ml_metadata'} & set(sys.modules))\n"
        "dag = bag.dags['clean']\n"
        "tasks = {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks}\n"
        "print(json.dumps([bag.import_errors, heavy, [dag.max_active_runs, dag.max_active_tasks], tasks]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], env=airflow.environment, capture_output=True, text=True, timeout=100
    )
    assert found.returncode == 0, found.stderr
    errors, heavy, limits, tasks = json.loads(found.stdout.splitlines()[-1])
    assert (errors, heavy, limits) == ({}, [], [1, 1])
    assert tasks["StatisticsGen"] == ["ImageExampleGen"]
    assert "DatasetGate" in tasks["Transform"]
    assert tasks["Finish"] == ["DatasetReport", "Pusher"]
    assert len((airflow.dags / "clean_dag.py").read_text(encoding="utf-8").splitlines()) < 50


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
    airflow.run("dags", "trigger", "killed", "--run-id", RUN_ID, "--exec-date", DATE)
    with airflow.start("scheduler") as scheduler:
        try:
            wait_for(lambda: list(root.glob("artifacts/ImageExampleGen/examples/[0-9]*")), scheduler)
            os.kill(airflow.task("ImageExampleGen")["pid"], signal.SIGKILL)
            wait_for(lambda: airflow.task("ImageExampleGen")["state"] == "up_for_retry", scheduler)
            assert states(root) == {"ImageExampleGen": "running"}
            wait_for(lambda: airflow.task("ImageExampleGen")["state"] == "success", scheduler)
        finally:
            kill(scheduler)
    assert airflow.task("ImageExampleGen")["try_number"] == 2
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
    assert "StatisticsGen succeeded in this run before" in said
    assert set(states(root).values()) == {"complete"}
    assert set(outputs(root).values()) == {1}
    assert digest(root) == digest(compiled["clean"])
    assert predictions(pushed(root), photos) == predictions(pushed(compiled["clean"]), photos)


@pytest.fixture
def by_hand(tmp_path) -> tuple[dict, dict]:
    """Settings of a pipeline with images of its own, and its steps; the tasks are called as Airflow calls them."""
    photos = class_folders(tmp_path / "photos", per_class=6)
    values = settings(photos, tmp_path / "root", "by_hand")
    return values, airflow_tasks.steps_of(airflow_tasks.pipeline_of(build(values)))


def test_a_gate_that_stops_the_run_is_not_retried_and_leaves_the_report(by_hand):
    from airflow.exceptions import AirflowFailException

    values, steps = by_hand
    values = {**values, "gate": {"min_images_per_class": 100}}
    steps = airflow_tasks.steps_of(airflow_tasks.pipeline_of(build(values)))
    with pytest.raises(AirflowFailException, match="100"):
        run_all(values, steps)
    assert states(Path(values["root"]))["DatasetGate"] == "failed"
    assert "100" in Path(values["root"], "report.html").read_text(encoding="utf-8")


def test_changed_images_are_ingested_anew_by_the_next_run_and_not_by_a_repetition_in_the_same_run(by_hand):
    values, steps = by_hand
    root = Path(values["root"])
    airflow_tasks.run_step(values, steps, "ImageExampleGen", "first")
    Path(values["ingest"]["source"], "china", "new.jpg").write_bytes(jpeg(seed=77))
    airflow_tasks.run_step(values, steps, "ImageExampleGen", "first")
    assert outputs(root) == {"ImageExampleGen/examples": 1}
    airflow_tasks.run_step(values, steps, "ImageExampleGen", "second")
    assert outputs(root) == {"ImageExampleGen/examples": 2}


def test_a_resolver_that_runs_twice_in_a_run_leaves_one_execution(by_hand):
    values, steps = by_hand
    for step in ("ImageExampleGen", "PreviousSpan", "PreviousSpan"):
        airflow_tasks.run_step(values, steps, step, "first")
    executions = open_store(str(Path(values["root"], "metadata.sqlite"))).get_executions()
    assert len(executions) == 2


def test_a_step_without_its_input_fails(by_hand):
    from airflow.exceptions import AirflowException

    values, steps = by_hand
    with pytest.raises(AirflowException, match="StatisticsGen came to no result"):
        airflow_tasks.run_step(values, steps, "StatisticsGen", "first")


def test_a_dag_of_other_steps_says_to_compile_it_again(by_hand):
    from airflow.exceptions import AirflowException

    values, steps = by_hand
    with pytest.raises(AirflowException, match="compile it again"):
        airflow_tasks.run_step(values, {**steps, "Extra": []}, "ImageExampleGen", "first")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "my pipeline"}, "name is 'my pipeline'"),
        ({"root": "gs://bucket/work"}, "root is 'gs://bucket/work'; the tasks share"),
        ({"ingest": {"source": "nowhere"}}, "nowhere"),
        ({"train": {"model": "resnet9000"}}, "resnet9000"),
        ({"airflow": {"schedule": "sometimes"}}, "airflow.schedule is 'sometimes'; write five cron fields"),
        ({"airflow": {"retries": -1}}, "airflow.retries is -1"),
        ({"airflow": {"retry_delay_s": -1}}, "airflow.retry_delay_s is -1"),
        ({"airflow": {"retry": 1}}, "airflow.retry"),
    ],
)
def test_settings_that_cannot_run_are_refused_before_a_file_is_written(photos, tmp_path, change, message):
    out = tmp_path / "dag.py"
    with pytest.raises(Exception, match=re.escape(message)) as raised:
        run_airflow.compile({**settings(photos, tmp_path / "root", "refused"), **change}, str(out))
    assert raised.value.exit_code == 2
    assert not out.exists()


def test_the_file_must_have_a_name_that_airflow_reads(photos, tmp_path):
    with pytest.raises(OptionError, match=r"--out is '.*dag.txt'; Airflow reads DAGs from files that end in .py"):
        run_airflow.compile(settings(photos, tmp_path / "root", "named"), str(tmp_path / "dag.txt"))


def test_the_file_holds_schedule_retries_and_absolute_paths(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(photos.parent)
    values = {
        **settings(Path(photos.name), Path("root"), "written"),
        "schema": "not_there.pbtxt",
        "engine": {"name": "flink"},
        "input": {"image_side_px": 32, "cache": "disk", "cache_dir": "cache"},
        "airflow": {"schedule": "@daily", "retries": 3, "retry_delay_s": 7},
    }
    hint = run_airflow.compile(values, str(tmp_path / "dag.py"))
    text = (tmp_path / "dag.py").read_text(encoding="utf-8")
    assert "schedule='@daily', retries=3, retry_delay_s=7.0" in text
    for path in (photos, photos.parent / "root", photos.parent / "cache"):
        assert f"'{path}'" in text
    assert "not_there" not in text
    assert f"schema {photos.parent}/not_there.pbtxt is not there: the DAG infers one" in hint
    assert "engine is left out" in hint
    assert "flink" not in text
    assert not (photos.parent / "root").exists()
