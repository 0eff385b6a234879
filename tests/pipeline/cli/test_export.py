"""`feedline export`, through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import python


@pytest.fixture
def place(dataset, monkeypatch) -> Path:
    """The directory that `dataset` lies in."""
    monkeypatch.chdir(dataset.parent)
    return dataset.parent


def test_the_result_is_said_a_line_a_split(place, said):
    lines = said("export", "dataset", "--to", "webdataset", "--out", "tars").splitlines()
    assert [line.split(",")[:2] for line in lines[:2]] == [
        ["train      20 images", " 2 files"],
        ["eval       4 images", " 2 files"],
    ]
    assert lines[2] == "webdataset tars"
    assert sorted(os.listdir(place)) == ["dataset", "tars"]


def test_the_result_is_said_as_one_object(place, said):
    line = "export dataset --to parquet --out out --split eval --shard-mb 1 --json"
    result = json.loads(said(*line.split()))
    assert result == json.loads((place / "out" / "export.json").read_text())
    assert [file["name"] for file in result["splits"]["eval"]["files"]] == ["data/eval-00000-of-00001.parquet"]


def test_metadata_goes_into_the_dataset_itself(place, said):
    assert said("export", "dataset", "--to", "croissant", "--out", "dataset") == "croissant  dataset\n"
    assert (place / "dataset" / "croissant.json").is_file()


# The command itself, slowed down after the first image so that a signal finds it at work.
SLOW = """
import sys, time
from beam_jobs.common import system
from pipeline import cli
add = system.local_progress.add
def slow(done):
    add(done)
    print("at work", flush=True)
    time.sleep(60)
system.local_progress.add = slow
cli.main(["export", "dataset", "--to", "webdataset", "--out", "out"])
"""


# The same, ended by whoever waits for the export, which is whole by then.
LATE = """
from beam_jobs.export import run
from pipeline import cli
export = run.export
def late(*arguments, **options):
    export(*arguments, **options)
    raise KeyboardInterrupt
run.export = late
cli.main(["export", "dataset", "--to", "{}", "--out", "out"])
"""


@pytest.mark.parametrize(
    ("to", "left"), [("webdataset", "the export in out is complete"), ("dali", "out is complete or unchanged")]
)
def test_an_interruption_of_a_whole_export_does_not_say_that_nothing_was_exported(place, to, left):
    run = python(LATE.format(to))
    assert run.returncode == 130
    assert run.stderr.splitlines()[-1] == f"feedline: error: interrupted; {left}"
    assert sorted(os.listdir(place)) == ["dataset", "out"]


def test_an_interruption_says_that_nothing_was_exported(place):
    command = [sys.executable, "-W", "ignore", "-c", SLOW]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "at work\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 143
    assert said.splitlines()[-1] == "feedline: error: interrupted; nothing was exported, out is unchanged"
    assert "Traceback" not in said
    assert os.listdir(place) == ["dataset"]
