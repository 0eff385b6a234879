"""What the doctor asks of clusters, clouds and schedulers, with one thing broken at a time."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_jobs.runners.flink import Options
from pipeline.cli import execute
from pipeline.doctor import Check, dataflow, flink, orchestrators
from tests.beam_jobs.web_server import serving
from tests.command import executable
from tests.orchestrators.airflow_environments import bin_of
from tests.pipeline.doctor.test_common import by_name

SETTINGS = {"root": "work", "ingest": {"source": "photos"}}


@pytest.fixture
def overview() -> Iterator[tuple[str, dict[str, object]]]:
    """The address of a server that answers as the REST endpoint of Flink does, and what it will say."""
    said: dict[str, object] = {"flink-version": "1.19.1", "slots-total": 4, "taskmanagers": 2}
    with serving({"/overview": lambda handler: handler.answer(200, json.dumps(said).encode())}) as server:
        yield server.host, said


# --- checks and targets


def test_a_cluster_is_asked_for_its_version_and_its_slots(overview):
    address, said = overview
    assert flink.cluster(Options(flink_master=address)).detail == "Flink 1.19.1 with 2 task managers and 4 slots"
    wrong = flink.cluster(Options(flink_master=address, flink_version="1.20"))
    assert wrong.detail.endswith("; the job server is for 1.20")
    assert "flink_version='1.19'" in wrong.remedy
    assert flink.cluster(Options(flink_master=address, parallelism=8)).remedy == "taskmanager.sh start"
    said["slots-total"] = 0
    assert flink.cluster(Options(flink_master=f"http://{address}/")).mark == "missing"


def test_a_cluster_that_does_not_answer_is_given_up_in_time(monkeypatch):
    monkeypatch.setattr(flink, "NETWORK_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        silence = flink.cluster(Options(flink_master=address))
    assert silence.detail.endswith("does not answer as Flink: timed out")
    assert "flink_master=HOST:PORT of the REST endpoint" in silence.remedy


def test_a_machine_that_refuses_a_name_that_leads_nowhere_and_an_answer_of_something_else_are_told_apart(overview):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    refused = flink.cluster(Options(flink_master=address))
    assert refused.detail.startswith(f"nothing listens at http://{address}: ")
    assert (refused.mark, refused.remedy) == ("missing", "start-cluster.sh")
    nowhere = flink.cluster(Options(flink_master="no-such-host.invalid:8081"))
    assert nowhere.detail.startswith("the name no-such-host.invalid does not resolve: ")
    assert "start-cluster" not in nowhere.remedy
    assert "flink_master=HOST:PORT" in nowhere.remedy
    there, said = overview
    said.clear()
    other = flink.cluster(Options(flink_master=there))
    assert " does not answer as Flink: " in other.detail
    assert "start-cluster" not in other.remedy


def test_a_jar_that_is_named_has_to_be_there(tmp_path):
    (tmp_path / "my.jar").write_bytes(b"jar")
    found = {
        name: [check.mark for check in flink.job_server(Options(job_server_jar=name))]
        for name in ("", str(tmp_path / "my.jar"), str(tmp_path / "no.jar"), "https://example.com/my.jar")
    }
    assert list(found.values()) == [[], ["ok"], ["missing"], ["ok"]]


def test_a_worker_of_another_python_is_named(tmp_path):
    old = executable(tmp_path / "python3.9", "#!/bin/sh\necho 3.9.1\n")
    other = executable(tmp_path / "feedline-worker", f"#!{old}\n")
    different = flink.worker(Options(worker_command=str(other)))
    assert f" has Python 3.9.1, this program {platform.python_version()}" in different.detail
    same = executable(tmp_path / "same", f"#!{sys.executable}\n")
    assert flink.worker(Options(worker_command=str(same))).ok
    assert flink.worker(Options(worker_command=str(tmp_path / "absent"))).mark == "missing"
    elsewhere = Options(worker_command=str(tmp_path / "absent"), flink_master="host:8081")
    assert flink.worker(elsewhere).mark == "warn"
    assert flink.worker(Options(worker_pool="localhost:50000")).ok


def test_wrong_settings_of_the_engine_are_named():
    checks = by_name(flink.checks({"engine": {"runner": "flink", "paralelism": 2}}))
    assert "did you mean parallelism?" in checks["section engine"].detail
    assert "section engine" not in by_name(flink.checks({"engine": {"runner": "flink", "parallelism": 2}}))


def test_a_file_that_asks_for_another_runner_is_told_so_and_what_was_looked_at(tmp_path, capsys):
    given = tmp_path / "pipeline.yaml"
    given.write_text("root: work\ningest: {source: photos}\nengine: {runner: dataflow, project: p}\n")
    execute(["doctor", "--target", "flink", "--config", str(given), "--json"])
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    found = checks["section engine"]
    assert found["mark"] == "warn"
    assert found["detail"] == "engine.runner is dataflow; flink is checked with default settings"
    assert found["remedy"].startswith("feedline doctor --target dataflow -c pipeline.yaml, or ")
    assert "cluster" in checks


# --- dataflow


def test_credentials_that_are_not_found_in_time_are_called_that(tmp_path, monkeypatch):
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "NO_GCE_CHECK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setattr(dataflow, "NETWORK_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # In place of the server that tells a machine of Google's what it is.
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{silent.getsockname()[1]}")
        assert dataflow.credentials()[1].detail == "no answer in 0.2 s"


# --- kubeflow


def of_kubeflow(
    root: str = "gs://bucket/work", source: str = "gs://bucket/photos", image: str = "registry/feedline:1"
) -> dict[str, Check]:
    settings = {"root": root, "ingest": {"source": source}, "kubeflow": {"image": image}}
    return by_name(orchestrators.kubeflow_checks(settings))


def test_kubeflow_needs_an_image_and_a_bucket():
    checks = by_name(orchestrators.kubeflow_checks(SETTINGS))
    assert {name for name, check in checks.items() if not check.ok} == {"container image", "bucket"}
    assert checks["bucket"].detail == "work"
    assert "compile" not in checks  # which would say the same once more
    without = by_name(orchestrators.kubeflow_checks({}))
    assert {name for name, check in without.items() if check.mark == "warn"} == {"container image", "bucket"}


def test_kubeflow_takes_no_placeholders_for_image_and_bucket():
    image = "europe-docker.pkg.dev/PROJECT/REPOSITORY/feedline:1"
    found = of_kubeflow(root="gs://BUCKET/photos", image=image)
    assert {name: check.detail for name, check in found.items() if not check.ok} == {
        "container image": f"{image}; replace PROJECT with a real name",
        "bucket": "gs://BUCKET/photos; replace BUCKET with a real name",
    }


def test_what_the_checks_do_not_know_is_found_by_compiling():
    check = of_kubeflow(source="gs://BUCKET/photos")["compile"]
    assert check.detail == "ingest.source is 'gs://BUCKET/photos'; replace BUCKET by your name"
    assert check.remedy.startswith("feedline run --config pipeline.yaml --show-config")


@pytest.mark.orchestrators
def test_kubeflow_compiles_what_is_complete():
    checks = of_kubeflow()
    assert [check.detail for check in checks.values() if not check.ok] == []
    assert checks["compile"].detail.endswith("bytes of YAML")


# --- airflow


def test_without_an_airflow_home_there_is_nothing_to_ask(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    checks = by_name(orchestrators.airflow_checks({**SETTINGS, "root": "s3://bucket/work"}))
    assert checks["AIRFLOW_HOME"].remedy == f"export AIRFLOW_HOME={tmp_path}/home && airflow db migrate"
    assert checks["root"].mark == "missing"
    assert "database" not in checks
    assert list(tmp_path.iterdir()) == []


def test_the_root_that_tasks_share_is_no_file(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    remedy = "feedline compile --target airflow -c pipeline.yaml --set root=/shared/work --out dags/feedline_dag.py"
    of_file = orchestrators.airflow_root({"root": str(file)})
    assert (of_file.mark, of_file.detail) == ("missing", f"{file} is a file")
    assert of_file.remedy == orchestrators.airflow_root({"root": "s3://bucket/work"}).remedy == remedy
    new = orchestrators.airflow_root({"root": str(tmp_path / "new")})
    assert new.ok
    assert new.detail.endswith("GB free; every worker needs it at the same path")
    assert orchestrators.airflow_root({}).ok


def test_the_root_that_tasks_share_takes_files(locked):
    found = orchestrators.airflow_root({"root": f"{locked.path}/work"})
    assert f"cannot be written by {locked.user}" in found.detail
    assert found.remedy.startswith(f"{locked.repair}, or feedline compile --target airflow -c pipeline.yaml --set root")


def test_without_the_program_of_airflow_it_says_that_compile_needs_none(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    check = by_name(orchestrators.airflow_checks(SETTINGS))["airflow"]
    assert (check.mark, "DAG file can be written without it" in check.detail) == ("warn", True)
    assert "-r constraints/airflow3.txt" in check.remedy
    executable(tmp_path / "airflow", "#!/bin/sh\n")
    assert "is not a Python script" in by_name(orchestrators.airflow_checks(SETTINGS))["airflow"].detail
    (tmp_path / "airflow").write_text(f"#!{sys.executable}\nimport airflow\n")
    (tmp_path / "airflow.py").write_text("raise OSError('the disk is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    broken = by_name(orchestrators.airflow_checks(SETTINGS))["airflow"]
    assert (broken.mark, broken.detail.endswith("does not load: OSError: the disk is broken")) == ("missing", True)


@pytest.fixture(params=["2", "3"])
def airflow_home(request, tmp_path_factory, tmp_path, monkeypatch) -> Path:
    """An empty home of a version of Airflow that is installed in an environment of its own."""
    found = bin_of(request.param)
    if isinstance(found, str):
        pytest.skip(found)
    monkeypatch.setenv("PATH", f"{found}:{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    return Path(os.environ["AIRFLOW_HOME"])


@pytest.mark.orchestrators
def test_airflow_is_asked_without_leaving_anything_behind_and_is_ready_when_it_is_migrated(airflow_home):
    fresh = by_name(orchestrators.airflow_checks(SETTINGS))
    assert list(airflow_home.iterdir()) == []
    assert {name for name, check in fresh.items() if check.mark == "missing"} == {"database", "dags folder"}
    assert fresh["database"].remedy == "airflow db migrate"
    done = subprocess.run(["airflow", "db", "migrate"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert fresh["dags folder"].remedy == f"mkdir -p {airflow_home}/dags"
    (airflow_home / "dags").mkdir()
    migrated = by_name(orchestrators.airflow_checks(SETTINGS))
    assert [check for check in migrated.values() if not check.ok] == []


@pytest.mark.orchestrators
@pytest.mark.parametrize("named", [True, False])
def test_a_database_that_cannot_be_reached_is_named_without_its_password(airflow_home, monkeypatch, named):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    address = f"postgresql+psycopg2://me:secret@127.0.0.1{f':{port}' if named else ''}/airflow"
    monkeypatch.setenv("PGPORT", "1" if named else str(port))  # what a URL without a port means
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", address)
    check = by_name(orchestrators.airflow_checks(SETTINGS))["database"]
    assert check.mark == "missing"
    assert f"127.0.0.1:{port} cannot be reached" in check.detail
    assert "secret" not in check.detail


@pytest.mark.orchestrators
def test_a_driver_that_is_not_installed_is_named(airflow_home, tmp_path, monkeypatch):
    (tmp_path / "psycopg2.py").write_text("raise ModuleNotFoundError('no psycopg2', name='psycopg2')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"postgresql+psycopg2://me:secret@127.0.0.1:{server.getsockname()[1]}/airflow"
        monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", address)
        check = by_name(orchestrators.airflow_checks(SETTINGS))["database"]
    assert check.detail.endswith("airflow needs psycopg2")
    assert check.remedy.endswith("python -m pip install psycopg2-binary")
