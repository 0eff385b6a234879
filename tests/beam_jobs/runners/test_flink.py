from __future__ import annotations

import hashlib
import logging
import os
import sys
from pathlib import Path

import pytest

from beam_jobs.errors import FeedlineError, OptionError, TooManyRejects
from beam_jobs.runners import flink_job_server
from beam_jobs.runners.flink import WORKER, Options, worker_path
from pipeline.cli.ingest import parse_engine
from tests.beam_jobs.web_server import body
from tests.engines.flink_parts import program

JAR = bytes(range(256)) * 64


def test_a_version_may_look_like_a_number():
    assert parse_engine("flink", ["flink_version=1.20"]).flink_version == "1.20"


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("flink_master=''", "flink_master is ''; it must be \\[local\\], or host:port"),
        ("flink_master=a b", "flink_master is 'a b'"),
        ("flink_version=1.12", "flink_version is '1.12'; it must be one of 1.17"),
        ("parallelism=-1", "parallelism is -1; .* at least 0"),
        ("workers=-1", "workers is -1"),
        ("retries=-1", "retries is -1"),
        ("java_memory=lots", "java_memory is 'lots'"),
        ("worker_pool=localhost", "worker_pool is 'localhost'; it must be host:port"),
        ("paralelism=2", "did you mean parallelism"),
    ],
)
def test_a_wrong_setting_is_named(setting, problem):
    with pytest.raises(OptionError, match=problem):
        parse_engine("flink", [setting])


def test_workers_are_started_in_one_way():
    with pytest.raises(OptionError, match="worker_pool and worker_command are both set"):
        Options(worker_pool="localhost:50000", worker_command="/bin/true")


def test_a_worker_that_is_not_there_is_said_before_anything_starts(tmp_path):
    with (
        pytest.raises(OptionError, match="worker .*absent does not exist or is not executable; install feedline again"),
        Options(worker_command=str(tmp_path / "absent")).open(),
    ):
        pass


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ('openjdk version "1.8.0_392"', "is Java 8, which is too old for Flink; install Java 11 or newer"),
        ("command not understood", "prints no Java version"),
    ],
)
def test_a_java_that_will_not_do_is_named_with_the_remedy(answer, problem, tmp_path, monkeypatch):
    program(tmp_path / "bin" / "java", f"echo '{answer}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(OptionError, match=problem):
        flink_job_server.find_java()


@pytest.mark.parametrize("version", ["11.0.2", "25-ea"])
def test_a_newer_java_will_do(version, tmp_path, monkeypatch):
    java = program(tmp_path / "bin" / "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert flink_job_server.find_java() == str(java)


def test_no_java_is_said_with_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(OptionError, match="there is none in JAVA_HOME, which is .*none; install Java 11 or newer"):
        flink_job_server.find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OptionError, match="there is none in PATH; install"):
        flink_job_server.find_java()


@pytest.fixture
def find(server, tmp_path):
    """Finds the jar that is served, and keeps it in `cache`."""
    return lambda ask=flink_job_server.find_jar: ask("1.19", server.url("/job.jar"), cache=str(tmp_path / "cache"))


@pytest.mark.parametrize("algorithm", ["sha512", "sha256", "sha1"])
def test_a_jar_is_fetched_once_checked_and_fetched_again_when_it_is_damaged(algorithm, server, find):
    server.pages["/job.jar"] = body(JAR)
    server.pages[f"/job.jar.{algorithm}"] = body(f"{hashlib.new(algorithm, JAR).hexdigest()}  job.jar\n".encode())
    found = Path(find())
    assert found.read_bytes() == JAR
    found.write_bytes(JAR[:100])
    assert Path(find()).read_bytes() == JAR
    del server.pages["/job.jar"]
    assert find() == str(found)


def test_a_jar_that_is_not_what_its_publisher_says_is_refused(server, find, tmp_path):
    server.pages["/job.jar"] = body(JAR[:-1])
    server.pages["/job.jar.sha1"] = body(hashlib.sha1(JAR).hexdigest().encode())
    with pytest.raises(OptionError, match="has the sha1 .*, the published one is .*; try again"):
        find()
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("ask", [flink_job_server.find_jar, flink_job_server.check_jar])
def test_a_jar_that_is_not_there_is_told_apart_from_one_without_a_checksum(ask, server, find):
    with pytest.raises(OptionError, match=r"there is no job server at .*/job.jar \(404\); correct flink_version or"):
        find(ask)
    server.pages["/job.jar"] = body(JAR)
    with pytest.raises(OptionError, match="^no checksum of .* is published.*job_server_jar=PATH"):
        find(ask)


def test_a_jar_is_checked_for_without_being_fetched(server, find, tmp_path):
    server.pages["/job.jar"] = body(JAR)
    server.pages["/job.jar.sha1"] = body(hashlib.sha1(JAR).hexdigest().encode())
    find(flink_job_server.check_jar)
    assert not (tmp_path / "cache").exists()
    with pytest.raises(OptionError, match="which is not a file"):
        flink_job_server.check_jar("1.19", "absent.jar")


def test_a_server_that_is_not_there_is_one_line_with_the_remedy(tmp_path):
    with pytest.raises(OptionError, match="cannot be fetched: .*refused.*; connect to the internet, or give"):
        flink_job_server.find_jar("1.19", "http://localhost:1/job.jar", cache=str(tmp_path))


def test_a_jar_of_ones_own_needs_no_network(tmp_path):
    (tmp_path / "mine.jar").write_bytes(JAR)
    assert flink_job_server.find_jar("1.19", str(tmp_path / "mine.jar")) == str(tmp_path / "mine.jar")
    with pytest.raises(OptionError, match="job_server_jar is .*absent.jar', which is not a file"):
        flink_job_server.find_jar("1.19", str(tmp_path / "absent.jar"))


def test_the_published_jar_is_that_of_this_beam_and_of_the_version_of_flink():
    from apache_beam.version import __version__

    name = flink_job_server.published_jar("1.18").rpartition("/")[2]
    assert name == f"beam-runners-flink-1.18-job-server-{__version__}.jar"


def test_the_worker_is_that_of_this_environment_or_the_first_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setenv("PATH", str(tmp_path / "user"))
    assert worker_path() == str(tmp_path / "environment" / "bin" / WORKER)  # where it should be
    elsewhere = program(tmp_path / "user" / WORKER, "")
    assert worker_path() == str(elsewhere)
    own = program(tmp_path / "environment" / "bin" / WORKER, "")
    assert worker_path() == str(own)


def fail(error: Exception) -> None:
    logging.getLogger("beam").warning("a stack trace")
    raise error


def test_logs_of_a_good_run_are_gone_and_those_of_a_failed_job_are_named():
    with flink_job_server.log_files() as place:
        logging.getLogger("beam").warning("a stack trace")
    assert not os.path.exists(place)
    with (
        pytest.raises(FeedlineError, match="^failed; the log of Flink is .*flink.log$"),
        flink_job_server.log_files() as place,
    ):
        fail(FeedlineError("failed"))
    assert "a stack trace" in Path(place, flink_job_server.LAUNCHER_LOG).read_text()


def test_data_that_failed_a_check_has_no_log_of_flink():
    with pytest.raises(TooManyRejects, match="^too many$"), flink_job_server.log_files() as place:
        fail(TooManyRejects("too many"))
    assert not os.path.exists(place)


def test_a_directory_for_logs_is_kept(tmp_path):
    before = logging.getLogger().handlers[:]
    with flink_job_server.log_files(str(tmp_path / "logs")) as place:
        assert place == str(tmp_path / "logs")
    assert os.listdir(place) == [flink_job_server.LAUNCHER_LOG]
    assert logging.getLogger().handlers == before
    (tmp_path / "file").touch()
    with (
        pytest.raises(OptionError, match="log_dir is .*file', which cannot be written"),
        flink_job_server.log_files(str(tmp_path / "file")),
    ):
        pass
