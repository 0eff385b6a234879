from __future__ import annotations

import pytest

from tests.beam_jobs.runners.test_dataflow import NEEDED
from tests.command import feedline

DATAFLOW = ["--runner", "dataflow", *(f"--runner-option={name}={value}" for name, value in NEEDED.items())]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--runner", "flink"], "--work is not set; name a directory for the reports of the workers of flink"),
        ([*DATAFLOW, "--work", "gs://bucket/work"], "DATASET is '{}', which no Dataflow worker can read"),
        (["--work", "gs://bucket/work"], "--work is set, but the local runner does not use it"),
    ],
)
def test_what_workers_cannot_reach_is_refused_before_anything_starts(dataset, options, message):
    done = feedline("verify", dataset, *options)
    assert done.returncode == 2
    assert message.format(dataset) in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_runner_of_the_configuration_is_used(dataset, tmp_path):
    (tmp_path / "pipeline.yaml").write_text("engine: {runner: flink}\n")
    done = feedline("verify", dataset, "-c", tmp_path / "pipeline.yaml")
    assert (done.returncode, "--work is not set" in done.stderr) == (2, True)
    done = feedline("verify", dataset, "-c", tmp_path / "pipeline.yaml", "--runner", "local")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sound: 24 records in 4 shards")
