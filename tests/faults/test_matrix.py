"""Tests of the matrix itself: a row that is not all zeros must be seen."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading

import pytest

from tests.faults import process
from tests.faults.bounded import bounded
from tests.faults.matrix import Row, markdown, merged


def test_a_row_fails_by_what_went_wrong_or_was_never_tried():
    row = Row("kills", "SIGKILL", "ends")
    assert row.verdict() == "SIGKILL: nothing was tried"
    row.tried("the first")
    assert row.verdict() == ""
    row.tried("the second", hang=True, wrong=True)
    assert row.verdict() == "SIGKILL:\nthe second: hang, wrong bytes"


def test_rows_of_one_fault_are_added_up_and_stand_in_their_group():
    rows = [Row("fuzz", "bytes", "found", tries=2), Row("kills", "SIGKILL", "ends", tries=3, losses=1)]
    found = merged([row.to_json() for row in [*rows, rows[0]]])
    assert [(row.fault, row.tries) for row in found] == [("SIGKILL", 3), ("bytes", 4)]
    text = markdown(found)
    assert "2 faults, 7 tries, 0 hangs, 1 losses, 0 with wrong bytes." in text
    assert "| SIGKILL | 3 | 0 | 1 | 0 | ends |" in text


def test_a_command_that_does_not_end_is_a_hang_and_is_ended_with_its_children():
    found = process.run(["sh", "-c", "sleep 300 & sleep 300"], timeout=0.5)
    assert found.hang
    assert found.code == -9


def test_what_outlives_a_command_is_counted_and_ended():
    found = process.run(["sh", "-c", "sleep 300 > /dev/null 2>&1 & exit 3"], timeout=20)
    assert (found.code, found.hang, found.left) == (3, False, 1)


def test_a_call_that_does_not_return_is_a_hang_and_others_tell_what_came_of_them():
    assert bounded(threading.Event().wait, 0.05).hang
    assert bounded(lambda: 7, 20).value == 7
    failed = bounded(lambda: {}["none"], 20)
    assert (failed.hang, type(failed.error), failed.value) == (False, KeyError, None)


TESTS = """
import os
import pytest

@pytest.mark.parametrize("name", ["one", "two"])
def test_tried(fault, name):
    fault("disk", f"a disk of {name}", "ends").tried(name, lost=name == os.environ.get("LOSES"))

@pytest.mark.skipif(True, reason="no btrfs (yet)")
def test_not_tried(fault):
    fault("disk", "a quota", "ends")
"""
NOT_TRIED = "tests/faults/test_it.py::test_not_tried"


@pytest.fixture
def suite(tmp_path):
    """Runs a few tests with the very files that make the matrix; returns what is printed and what is kept."""
    here = tmp_path / "tests" / "faults"
    here.mkdir(parents=True)
    (here.parent / "__init__.py").touch()
    for name in ("__init__", "conftest", "matrix", "rows", "trials", "process"):
        shutil.copy(process.ROOT / "tests" / "faults" / f"{name}.py", here)
    (here / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = faults: breaks things\n")

    def run(*arguments: str, **environment: str) -> tuple[str, dict]:
        others = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "FEEDLINE"))}
        command = ["env", "-i", *(f"{name}={value}" for name, value in {**others, **environment}.items())]
        found = process.run([*command, sys.executable, "-m", "pytest", *arguments], cwd=tmp_path)
        return found.out + found.err, json.loads((tmp_path / "build" / "faults.json").read_text())

    return run


def test_a_run_says_what_it_could_not_try_and_how_long_it_took(suite):
    said, kept = suite("-m", "faults", "-n", "2", "tests/faults")
    rows = sorted((row["fault"], row["tries"]) for row in kept.pop("rows"))  # two workers, whichever ends first
    assert rows == [("a disk of one", 1), ("a disk of two", 1)]
    seconds = kept.pop("seconds")
    assert 0 < seconds < 240
    assert kept == {"form": "full", "whole": True, "passed": True, "skipped": {NOT_TRIED: "no btrfs (yet)"}}
    assert f"\nnot tried: no btrfs (yet) ({NOT_TRIED})\nfull form, {seconds:,.0f} seconds\n" in said


@pytest.mark.parametrize(
    ("arguments", "environment", "found"),
    [
        (("tests/faults",), {"FEEDLINE_FAULTS": "short", "LOSES": "two"}, ("short", True, False)),
        (("-k", "tried", "tests/faults"), {}, ("full", False, True)),
        (("tests/faults/test_it.py::test_tried",), {}, ("full", False, True)),
    ],
    ids=["short", "chosen", "one"],
)
def test_a_run_says_what_it_was(suite, arguments, environment, found):
    _, kept = suite("-m", "faults", *arguments, **environment, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert (kept["form"], kept["whole"], kept["passed"]) == found
