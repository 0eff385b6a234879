"""The Flex Template: its parameters, what is checked before a job is made, and its one step; the job: tests/engines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from beam_jobs.runners.beam_job import local_pipeline
from pipeline.cli import dataflow_template
from pipeline.cli.dataflow_template import RunIngest
from tests.beam_jobs.runs import shards_under

METADATA = Path(dataflow_template.__file__).with_name("dataflow_template.json")
REQUIRED = ("--source=gs://bucket/photos", "--out=gs://bucket/dataset")
JOB = (
    "--runner=DataflowRunner",
    "--project=my-project-1",
    "--region=us-central1",
    "--temp_location=gs://bucket/tmp",
    "--job_name=photos",
)


def test_the_parameters_are_those_of_the_program_in_the_words_of_the_service():
    clients = "apache_beam.runners.dataflow.internal.clients"  # newer ones do not describe templates
    messages = pytest.importorskip(f"{clients}.dataflow", reason="this Beam has no message types of templates")
    from apitools.base.py import encoding

    metadata = encoding.JsonToMessage(messages.TemplateMetadata, METADATA.read_text())
    assert not metadata.all_unrecognized_fields()
    assert not any(parameter.all_unrecognized_fields() for parameter in metadata.parameters)
    required = {parameter.name: not parameter.isOptional for parameter in metadata.parameters}
    flags = [action for action in dataflow_template.parser()._actions if action.dest != "help"]
    of_beam = {"sdk_container_image": False}
    assert required == {action.dest: action.required for action in flags} | of_beam
    given = dict(argument.removeprefix("--").split("=") for argument in REQUIRED)
    for parameter in metadata.parameters:
        for pattern in parameter.regexes:
            assert re.fullmatch(pattern, given.get(parameter.name, "gs://bucket/pipeline.yaml"))
            assert not re.fullmatch(pattern, "photos")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arguments=--polcy copy"], "there is no option '--polcy'; did you mean --policy?"),
        (["--arguments=--label-column 'kind"], "No closing quotation; quote them as for a shell"),
        (["--arguments=--runner local"], "the local runner has no options; name another one with --runner"),
        (["--config=/nowhere/own.yaml"], "config is '/nowhere/own.yaml', which cannot be read: "),
        (["--max_num_workers=1", "--num_workers=2"], "num_workers is 2, above max_num_workers, 1"),
        (["--arguments=--dry-run"], "arguments contains --dry-run, with which the job would write nothing; remove it"),
        (["--labels={team: vision"], "labels is '{team: vision'; write it as team=vision, or as {team: vision}"),
        (["--out=dataset"], "--out is 'dataset'; Dataflow workers write to buckets"),
    ],
)
def test_a_mistake_is_named_before_a_job_is_made(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr("sys.argv", ["feedline-dataflow-template", *REQUIRED, *JOB, *arguments])
    with pytest.raises(SystemExit) as caught:
        dataflow_template.main()
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("feedline: error: ")
    assert message in line


def test_the_ingest_gets_project_workers_and_code_of_the_job(tmp_path):
    arguments = [
        "--max_num_workers=20",
        "--worker_machine_type=n2-highmem-8",
        "--labels=team=vision",
        "--labels={'cost': '42'}",
    ]
    arguments += [
        "--sdk_container_image=region-docker.pkg.dev/p/r/i",
        "--no_use_public_ips",
        "--network=corp",
        "--worker_disk_type=pd-ssd",
        "--template_location=gs://b/t",
    ]
    parameters, others = dataflow_template.parser().parse_known_args([*REQUIRED, *JOB, *arguments])
    command = dataflow_template.command_line(parameters, others)
    config = b"engine: {runner: dataflow, vcpu_hour_price: 0.5, max_num_workers: 3}\ningest: {seed: 7}"
    options, engine = RunIngest(command, "gs://bucket/own.yaml", config).read_request()
    assert (options.source, options.out, options.seed) == ("gs://bucket/photos", "gs://bucket/dataset", 7)
    assert (engine.project, engine.region, engine.temp_location) == ("my-project-1", "us-central1", "gs://bucket/tmp")
    assert (engine.max_num_workers, engine.worker_machine_type, engine.use_public_ips) == (20, "n2-highmem-8", False)
    assert engine.beam_args == ("--network=corp", "--worker_disk_type=pd-ssd")
    assert engine.sdk_container_image == "region-docker.pkg.dev/p/r/i"
    assert (engine.labels, engine.job_name, engine.vcpu_hour_price) == ({"team": "vision", "cost": "42"}, "photos", 0.5)


def run(step: RunIngest) -> None:
    with local_pipeline() as made:
        made | step.label >> step


def test_the_step_is_the_command(photos, dataset, tmp_path, caplog):
    caplog.set_level("INFO")
    out = tmp_path / "out"
    config = json.dumps({"ingest": {"splits": {"train": 0.7, "eval": 0.3}, "shards": 2}}).encode()
    run(RunIngest((str(photos), "--out", str(out)), "settings.yaml", config))
    assert shards_under(out) == shards_under(dataset)
    assert f"dataset      {out}" in caplog.messages


def test_a_step_that_fails_has_the_message_of_the_command(tmp_path):
    with pytest.raises(Exception, match="nothing does not exist; give a folder") as caught:
        run(RunIngest((str(tmp_path / "nothing"), "--out", str(tmp_path / "out"))))
    assert "feedline: error" not in str(caught.value)
