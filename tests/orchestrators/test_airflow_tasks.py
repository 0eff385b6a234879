"""The steps of a DAG without Airflow: what a task runs, and what `compile` refuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from beam_jobs.errors import FeedlineError, GateFailed, OptionError
from pipeline.config import build
from pipeline.runners import airflow, airflow_tasks
from pipeline.runs.history import open_store
from tests.make_images import class_folders, jpeg
from tests.orchestrators.airflow_environments import outputs, settings, states

pytestmark = [pytest.mark.orchestrators, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

COMMAND = [sys.executable, "-I", "-c", "from pipeline.runners.airflow_tasks import main; main()", "first"]


def run_all(values: dict, steps: dict) -> None:
    for step in steps:
        airflow_tasks.run_step(values, steps, step, "first")


@pytest.fixture
def by_hand(tmp_path) -> tuple[dict, dict]:
    """Settings of a pipeline with images of its own, and its steps; the tasks are called as Airflow calls them."""
    photos = class_folders(tmp_path / "photos", per_class=6)
    values = settings(photos, tmp_path / "root", "by_hand")
    return values, airflow_tasks.list_steps(airflow_tasks.load_pipeline(build(values)))


def test_a_step_ends_with_its_task(by_hand, tmp_path):
    values, steps = by_hand
    with subprocess.Popen(COMMAND, cwd=tmp_path, stdin=subprocess.PIPE, start_new_session=True, text=True) as process:
        process.stdin.write(f"{(values, steps, 'ImageExampleGen')!r}\n")
        process.stdin.close()
        assert process.wait(200) == -signal.SIGKILL


def test_a_gate_that_stops_the_run_is_not_retried_and_leaves_the_report(by_hand):
    values, steps = by_hand
    values = {**values, "gate": {"min_images_per_class": 100}}
    steps = airflow_tasks.list_steps(airflow_tasks.load_pipeline(build(values)))
    with pytest.raises(GateFailed, match="100"):
        run_all(values, steps)
    assert states(Path(values["root"]))["DatasetGate"] == "failed"
    assert "100" in Path(values["root"], "report.html").read_text(encoding="utf-8")
    request = repr((values, steps, "DatasetGate"))
    again = subprocess.run([*COMMAND, request], capture_output=True, text=True, timeout=250)
    assert again.returncode == os.EX_DATAERR, again.stderr
    assert "min_images_per_class" in again.stdout.splitlines()[-1]


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
    values, steps = by_hand
    with pytest.raises(FeedlineError, match="StatisticsGen has no result"):
        airflow_tasks.run_step(values, steps, "StatisticsGen", "first")


def test_a_dag_of_other_steps_says_to_compile_it_again(by_hand):
    values, steps = by_hand
    with pytest.raises(OptionError, match="compile it again"):
        airflow_tasks.run_step(values, {**steps, "Extra": []}, "ImageExampleGen", "first")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "my pipeline"}, "name is 'my pipeline'"),
        ({"root": "gs://bucket/work"}, "root is 'gs://bucket/work'; the tasks share"),
        ({"ingest": {"source": "nowhere"}}, "nowhere"),
        ({"train": {"model": "resnet9000"}}, "resnet9000"),
        ({"airflow": {"schedule": "sometimes"}}, "airflow.schedule is 'sometimes'; write five cron fields"),
        ({"airflow": {"retry": 1}}, "airflow.retry"),
        ({"airflow": {"environment": "/nowhere"}}, "airflow.environment is '/nowhere', which has no bin/feedline"),
        ({"airflow": {"image": "IMAGE", "pod_template": "x"}}, "airflow.image is 'IMAGE'; name a container image"),
        ({"airflow": {"image": "feedline"}}, "airflow.pod_template is ''; give both or neither"),
        ({"airflow": {"image": "feedline", "pod_template": "no.yaml"}}, "airflow.pod_template no.yaml cannot be read"),
        (
            {"airflow": {"image": "feedline", "pod_template": __file__}},
            f"airflow.pod_template {__file__} cannot be read",
        ),
        (
            {"airflow": {"image": "feedline", "pod_template": os.devnull}},
            "airflow.pod_template /dev/null has no `kind: Pod`",
        ),
        ({"airflow": {"image": "f", "pod_template": "x", "environment": "y"}}, "airflow.environment is 'y'; leave it"),
    ],
)
def test_settings_that_cannot_run_are_refused_before_a_file_is_written(photos, tmp_path, change, message):
    out = tmp_path / "dag.py"
    with pytest.raises(Exception, match=re.escape(message)) as raised:
        airflow.compile({**settings(photos, tmp_path / "root", "refused"), **change}, str(out))
    assert raised.value.exit_code == 2
    assert not out.exists()


def test_the_file_must_have_a_name_that_airflow_reads(photos, tmp_path):
    with pytest.raises(OptionError, match=r"--out is '.*dag.txt'; Airflow reads DAGs from files that end in .py"):
        airflow.compile(settings(photos, tmp_path / "root", "named"), str(tmp_path / "dag.txt"))


def test_the_file_holds_schedule_retries_and_absolute_paths(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(photos.parent)
    values = {
        **settings(Path(photos.name), Path("root"), "written"),
        "schema": "not_there.pbtxt",
        "engine": {"name": "flink"},
        "input": {"image_side_px": 32, "cache": "disk", "cache_dir": "cache"},
        "airflow": {"schedule": "@daily", "retries": 3, "retry_delay_s": 7},
    }
    hint = airflow.compile(values, str(tmp_path / "dag.py"))
    text = (tmp_path / "dag.py").read_text(encoding="utf-8")
    for argument in ("schedule='@daily'", "retries=3", "retry_delay_s=7.0", f"python='{sys.prefix}/bin/python3'"):
        assert f"    {argument},\n" in text
    assert len(text.partition("\nSETTINGS = ")[2].splitlines()) < 50
    for path in (photos, photos.parent / "root", photos.parent / "cache"):
        assert f"'{path}'" in text
    assert "not_there" not in text
    assert f"schema {photos.parent}/not_there.pbtxt does not exist: the DAG infers one" in hint
    assert "engine is ignored" in hint
    assert "flink" not in text
    assert not (photos.parent / "root").exists()
