"""Runs that must stop: interrupted, leaking, or with too many bad images. Each command in its own process."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command import feedline
from tests.make_images import class_folders, jpeg

pytestmark = pytest.mark.e2e

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
    assert "feedline: error: interrupted; what is finished is kept" in rest
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
    assert errors.rstrip().splitlines()[-1].startswith("feedline: error: interrupted; what is finished is kept")
    assert "Traceback" not in errors


def test_the_gate_stops_a_leaking_split_column(tmp_path):
    with (tmp_path / "table.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["file", "kind", "part"])
        for index in range(12):
            (tmp_path / f"{index}.jpg").write_bytes(jpeg(index))
            rows.writerow([f"{index}.jpg", "ab"[index % 2], "train" if index < 8 else "eval"])
        (tmp_path / "twin.jpg").write_bytes(jpeg(0))
        rows.writerow(["twin.jpg", "a", "eval"])
    columns = ("--image-column", "file", "--label-column", "kind", "--split-column", "part")
    result = feedline("run", "--images", tmp_path / "table.csv", "--root", tmp_path / "work", *columns, *SMALL)
    assert result.returncode == 3
    assert "leakage: image content in eval, train: 1 images shared between splits" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "work" / "serving").exists()


def test_too_many_bad_images_stop_the_run_and_publish_nothing(tmp_path):
    photos = class_folders(tmp_path / "photos", per_class=4)
    (photos / "china" / "bad.jpg").write_bytes(b"not an image")
    result = feedline("run", "--images", photos, "--root", tmp_path / "work", *SMALL)
    assert result.returncode == 3
    assert "1 of 9 images are bad (11.1%), max_reject_ratio is 5.0%: 1 not_an_image" in result.stderr
    assert not list(tmp_path.rglob("dataset.json"))
