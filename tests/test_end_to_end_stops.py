"""Commands that are interrupted, each in its own process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command import feedline
from tests.make_images import class_folders

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

SMALL = ("--image-side", 32, "--epochs", 12, "--batch-size", 8, "--splits", "train=0.7,eval=0.3", "--shards", 2)
SMALL += ("--set", "evaluate.above_largest_class=false")  # of a handful of images no model is surely better


def test_an_interrupted_ingest_says_so_and_the_same_command_finishes_it(tmp_path):
    class_folders(tmp_path / "photos", per_class=30)
    arguments = ["ingest", str(tmp_path / "photos"), "--out", str(tmp_path / "dataset")]
    command = [str(Path(sys.executable).parent / "feedline"), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        # Its first line comes when the scan is over and nothing is examined yet: loading the decoder takes seconds.
        first = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert first.startswith("scanned")
    assert process.returncode == 130
    assert "feedline: error: interrupted; finished work is kept" in rest
    assert "Traceback" not in rest
    assert not (tmp_path / "dataset" / "dataset.json").exists()
    assert feedline(*arguments).returncode == 0
    assert feedline("verify", tmp_path / "dataset").returncode == 0


def test_a_run_in_the_background_stops_in_order_on_sigterm(tmp_path):
    photos, root = class_folders(tmp_path / "photos", per_class=12), tmp_path / "work"
    command = [Path(sys.executable).parent / "feedline", "run", "--images", photos, "--root", root, *SMALL]
    # As after `nohup feedline run ... &` in a script.
    ignoring = ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", *map(str, command)]
    with subprocess.Popen(ignoring, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while not (root / "artifacts" / "ImageExampleGen").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGHUP)  # the terminal is closed
        process.send_signal(signal.SIGTERM)
        errors = process.stderr.read()
    assert process.returncode == 143, errors
    assert errors.rstrip().splitlines()[-1].startswith("feedline: error: interrupted; finished work is kept")
    assert "Traceback" not in errors
