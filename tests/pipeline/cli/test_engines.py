"""What every engine has in common, from the command line on."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import pty
import re
import sys

import pytest
import yaml

from beam_jobs import runners, stack
from beam_jobs.errors import OptionError
from beam_jobs.options import IngestOptions
from beam_jobs.runners import flink
from pipeline.cli import ingest as ingest_command
from pipeline.cli.ingest import parse_engine
from pipeline.runs import signals
from tests.engines.flink_parts import program


@pytest.mark.parametrize(
    ("assignment", "message"), [("parallelism", "write it as parallelism=4"), ("a=[", "which is not a YAML value")]
)
def test_a_setting_that_cannot_be_read_is_named(assignment, message):
    with pytest.raises(OptionError, match=message):
        parse_engine("flink", [assignment])


def test_the_command_line_names_what_is_wrong_and_writes_nothing(photos, tmp_path, refused):
    out = tmp_path / "dataset"
    line = refused("ingest", photos, "--out", out, "--runner-option", "parallelism=4")
    assert "the local runner has no options" in line
    assert not out.exists()


def test_a_number_stays_the_text_it_was_typed_as_where_text_is_wanted():
    with pytest.raises(OptionError, match="project is '12345678'; it must be the id of a project"):
        parse_engine("dataflow", ["project=12345678", "region=us-central1", "temp_location=gs://bucket/temp"])


# --- the section `engine`


def test_options_win_over_the_section_of_the_same_engine():
    section = {"runner": "flink", "parallelism": 3, "retries": 1}
    assert parse_engine(None, [], section) == flink.Options(parallelism=3, retries=1)
    assert parse_engine("flink", ["parallelism=4"], section) == flink.Options(parallelism=4, retries=1)
    assert parse_engine("flink", [], {"retries": 1}) == flink.Options(retries=1)
    assert parse_engine("local", [], section) == runners.engine_settings("local")()
    assert parse_engine(None, [], None) == runners.engine_settings("local")()


def test_settings_without_a_runner_are_not_passed_over():
    with pytest.raises(OptionError, match="engine.retries is set, but engine.runner is not; set it, or give --runner"):
        parse_engine(None, [], {"retries": 1})


@pytest.fixture
def parts(tmp_path, monkeypatch) -> str:
    """As much of Flink as a dry run looks for: a Java that says its version, a worker and a jar; gives the settings."""
    program(tmp_path / "bin" / "java", "echo 'openjdk version \"17.0.15\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    jar = program(tmp_path / "job.jar", "")
    return f"runner: flink, job_server_jar: {jar}, worker_command: {program(tmp_path / 'worker', '')}"


def test_the_configuration_and_the_environment_choose_the_engine(photos, parts, tmp_path, said, refused, monkeypatch):
    config, out = tmp_path / "pipeline.yaml", tmp_path / "dataset"
    config.write_text(f"engine: {{{parts}, parallelism: 3}}\n")
    given = ["ingest", photos, "--out", out, "-c", config, "--dry-run"]
    assert re.search(r"engine +flink", said(*given))
    assert re.search(r"engine +local", said(*given, "--runner", "local"))
    config.write_text("root: work\n")
    assert re.search(r"engine +local", said(*given))
    monkeypatch.setenv("FEEDLINE_ENGINE__RUNNER", "flink")
    jar = f"--runner-option=job_server_jar={tmp_path / 'job.jar'}"
    assert re.search(r"engine +flink", said(*given, jar))
    monkeypatch.setenv("FEEDLINE_ENGINE__RUNNER", "flinc")
    refused(*given[:-1])


@pytest.mark.parametrize(
    ("setting", "value", "problem"),
    [
        ("job_server_jar", "absent.jar", "job_server_jar is 'absent.jar', which is not a file"),
        ("job_server_jar", "http://localhost:1/job.jar", "http://localhost:1/job.jar.sha512 cannot be fetched"),
        ("flink_master", "localhost:1", "flink_master is localhost:1, which does not answer"),
        ("worker_command", "absent", "the worker absent does not exist or is not executable"),
    ],
)
def test_a_dry_run_looks_for_what_flink_needs(setting, value, problem, photos, parts, tmp_path, refused):
    config = tmp_path / "pipeline.yaml"
    config.write_text(yaml.safe_dump({"engine": {**yaml.safe_load(f"{{{parts}}}"), setting: value}}))
    assert problem in refused("ingest", photos, "--out", tmp_path / "out", "-c", config, "--dry-run")


def test_the_section_ingest_counts_but_for_its_source_and_options_win(photos, dataset, tmp_path, said):
    config, out = tmp_path / "pipeline.yaml", tmp_path / "again"
    config.write_text("ingest: {source: nowhere, shards: 5, splits: {train: 0.7, eval: 0.3}}\n")
    said("ingest", photos, "--out", out, "-c", config, "--shards", "2", "--runner", "local")
    assert (out / "dataset.json").read_bytes() == (dataset / "dataset.json").read_bytes()


# --- what workers of Dataflow have


def test_a_source_in_s3_needs_workers_that_have_a_client_for_it(monkeypatch):
    monkeypatch.setattr(stack, "name", lambda: stack.CURRENT)  # on the legacy stack every source needs an image
    ingest = IngestOptions(source="s3://bucket/photos", out="gs://bucket/dataset")
    where = ["project=my-project-1", "region=us-central1", "temp_location=gs://bucket/temp"]
    with pytest.raises(OptionError, match="is in S3, .*; set sdk_container_image to an image built with"):
        parse_engine("dataflow", where).check(ingest)
    parse_engine("dataflow", [*where, "sdk_container_image=registry/feedline"]).check(ingest)
    parse_engine("dataflow", where).check(dataclasses.replace(ingest, source="gs://bucket/photos"))


# --- Ctrl-C while a job runs on a service


@pytest.mark.parametrize(("typed", "left"), [(b"c\n", False), (b"\n", True), (b"", True)])
def test_ctrl_c_leaves_a_job_unless_c_is_typed_and_names_the_command_that_follows_it(typed, left, monkeypatch, capsys):
    assert ingest_command.ANSWER_TIMEOUT_S == 10
    monkeypatch.setattr(ingest_command, "ANSWER_TIMEOUT_S", 10 if typed else 0.1)
    monkeypatch.setattr(sys, "argv", ["/bin/feedline", "ingest", "my photos", "--out", "gs://bucket/out"])
    keyboard, terminal = pty.openpty()
    with open(keyboard, "wb", buffering=0) as keys, open(terminal, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        keys.write(typed)
        assert ingest_command.leave_job("the job far away") is left
    errors = capsys.readouterr().err
    assert "the job far away continues in " in errors
    assert bool(re.search(r"to follow the job: \S*feedline ingest 'my photos' --out gs://bucket/out\n", errors)) == left


@pytest.mark.parametrize(("stdin", "code"), [(None, 0), (io.StringIO("c\n"), 0), (io.StringIO(), signals.TERMINATED)])
def test_without_anyone_to_ask_a_job_is_left_also_where_nothing_can_be_printed(stdin, code, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(signals, "code", lambda: code)
    assert ingest_command.leave_job("the job far away")
    assert capsys.readouterr().err.startswith("to follow the job: ")
    full = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115 - closing it fails like every write
    monkeypatch.setattr(sys, "stderr", full)
    assert ingest_command.leave_job("the job far away")
    with contextlib.suppress(OSError):
        full.close()
