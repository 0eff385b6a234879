"""What a cluster says of itself, as the ingest and the doctor take it."""

from __future__ import annotations

import json

import pytest

from beam_jobs.errors import OptionError
from beam_jobs.runners import flink
from beam_jobs.runners.flink import Options
from pipeline.doctor import flink as doctor
from tests.beam_jobs.web_server import body, raw
from tests.command import executable
from tests.engines.flink_parts import program


@pytest.fixture
def cluster(server):
    """Answers as the cluster of an overview, and returns its address."""

    def answer(overview: object) -> str:
        server.pages["/overview"] = body(json.dumps(overview).encode())
        return server.url("")

    return answer


@pytest.mark.parametrize(
    ("overview", "parallelism", "problem"),
    [
        ({"flink-version": "1.20.1", "slots-total": 4}, 0, "runs Flink 1.20.1, flink_version is 1.19; set .*=1.20"),
        ({"flink-version": "1.19.3", "slots-total": 4}, 5, "has 4 slots, parallelism is 5; start more"),
        ({"flink-version": "1.19.3", "slots-total": 0}, 0, "has 0 slots, parallelism is 0; start more task managers"),
        ([], 0, "does not answer as the REST endpoint of a Flink cluster"),
    ],
)
def test_a_cluster_that_does_not_fit_is_named_before_anything_is_sent(overview, parallelism, problem, cluster):
    with pytest.raises(OptionError, match=problem):
        Options(flink_master=cluster(overview), parallelism=parallelism).cluster()


def test_a_cluster_that_fits_gives_its_slots_and_each_has_a_worker(cluster):
    url = cluster({"flink-version": "1.19.3", "slots-total": 9, "taskmanagers": 2})
    for options, parallelism, workers in (
        (Options(flink_master=url.removeprefix("http://")), 9, 5),
        (Options(flink_master=f"{url}/", parallelism=3), 3, 5),
        (Options(flink_master=url, parallelism=9), 9, 5),
        (Options(flink_master=url, workers=2), 9, 2),
        (Options(parallelism=4), 4, 4),
    ):
        arguments = options.beam_arguments("", options.cluster())
        assert {f"--parallelism={parallelism}", f"--sdk_worker_parallelism={workers}"} <= set(arguments)


def test_no_cluster_at_all_is_said_with_the_remedy():
    with pytest.raises(OptionError, match=r"flink_master is localhost:1, which does not answer .*refused.*; start the"):
        Options(flink_master="localhost:1").cluster()


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\x16\x03\n\xff\n"])
def test_a_port_that_speaks_no_http_is_no_cluster(server, greeting):
    server.pages["/overview"] = raw(greeting)
    options = Options(flink_master=server.host)
    with pytest.raises(OptionError, match=r"does not answer .* \(the answer is not HTTP\); start the cluster"):
        options.cluster()
    assert doctor.cluster(options).detail.endswith("does not answer as Flink: the answer is not HTTP")


@pytest.mark.parametrize("overview", [[], {"flink-version": "1.19.3", "slots-total": None}])
def test_a_server_that_is_no_cluster_does_not_break_the_doctor(overview, cluster):
    assert doctor.cluster(Options(flink_master=cluster(overview))).mark == "missing"


def test_the_remedies_of_the_doctor_are_whole_commands(cluster, tmp_path):
    old = program(tmp_path / "python3.9", "echo 3.9.1")
    other = executable(tmp_path / "worker", f"#!{old}\n")
    checks = [
        doctor.cluster(Options(flink_master=cluster({"flink-version": "1.20.1", "slots-total": 4}))),
        *doctor.job_server(Options(job_server_jar="absent.jar")),
        doctor.worker(Options(worker_command=str(other))),
    ]
    start = "feedline ingest SOURCE --out DIR --runner flink --runner-option "
    assert [check.remedy.removeprefix(start) for check in checks] == [
        "\"flink_version='1.20'\"",
        "job_server_jar=PATH",
        "worker_command=PATH",
    ]


def test_without_a_cluster_every_core_is_a_slot_with_a_worker(monkeypatch):
    monkeypatch.setattr(flink, "cores", lambda: 3)
    arguments = Options().beam_arguments("", Options().cluster())
    assert {"--parallelism=3", "--sdk_worker_parallelism=3"} <= set(arguments)
