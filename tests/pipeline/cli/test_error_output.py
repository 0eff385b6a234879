"""What the commands print of names that came with the data."""

from __future__ import annotations

import json

import pytest

from beam_jobs.dataset import tfrecord
from beam_jobs.dataset.record import encode_example
from beam_jobs.errors import FeedlineError
from pipeline.cli import cli, common
from pipeline.cli import execute as run
from tests.make_images import jpeg

TITLE = "\x1b]0;title\x07"


@pytest.fixture
def record(here) -> str:
    """A file of one record whose names set the title of a terminal."""
    features = {f"image/{TITLE}\nforged": ("int64", [1]), "image/class/text": ("bytes", [TITLE.encode()])}
    path = here / "x.tfrecord"
    path.write_bytes(b"".join(tfrecord.frame(encode_example(features))))
    return path.name


def test_names_of_features_are_printed_without_controls(record, said):
    shown = said("inspect", record)
    assert "image/\\x1b]0;title\\x07\\x0aforged" in shown
    assert "\x1b" not in shown
    assert "\nforged" not in shown
    # JSON holds them as they are, and prints no control either.
    shown = said("inspect", record, "--json")
    assert f"image/{TITLE}\nforged" in json.loads(shown)["features"]
    assert "\x1b" not in shown


def test_images_that_leak_between_splits_are_warnings_of_a_sound_dataset(here, said):
    for name in ("one", "two"):
        (here / f"{name}.jpg").write_bytes(jpeg(1))
    (here / "table.csv").write_text("image,label,split\none.jpg,cat,train\ntwo.jpg,cat,eval\n")
    said("ingest", "table.csv", "--out", "dataset", "--split-column", "split")
    assert said("verify", "dataset").startswith("warning   copies: two.jpg in eval and one.jpg in train\nsound: 2")


def test_errors_are_printed_without_controls(monkeypatch, capsys):
    def fail(*_, **__):
        raise FeedlineError(f"{TITLE} cannot be read\nnor seen")

    monkeypatch.setattr(cli, "main", fail)
    assert run(["--debug", "verify", "x"]) == 1
    shown = capsys.readouterr().err
    assert "\\x1b]0;title\\x07 cannot be read\\x0anor seen\n" in shown
    assert "\x1b" not in shown


def test_lines_of_progress_are_printed_without_controls(capsys):
    common.say(f"reading {TITLE}")
    assert capsys.readouterr().err == "reading \\x1b]0;title\\x07\n"


def test_a_message_of_a_library_that_holds_data_is_cut(monkeypatch, refused):
    def fail(*_, **__):
        raise ValueError("Not a valid record: " + "00" * 50_000)

    monkeypatch.setattr(cli, "main", fail)
    shown = refused("verify", "x", code=1)
    assert shown.startswith("feedline: error: ValueError: Not a valid record: 00")
    assert shown.endswith("... and 99,020 more characters (run again with --debug for the traceback)")
    assert len(shown) < 1200
