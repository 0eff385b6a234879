"""Pipelines that are ended by signals at seeded random moments, from the Trainer on; see `killing_runs`."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from tests.faults.leaving import hangs, summary
from tests.faults.process import finish, start

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

SEED = 25
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
TIMEOUT_S = 2300.0
KEPT = "no partial model is pushed; a rerun takes finished components from the cache, and ends with the same weights"
AGAIN = "run the same command again to continue"
BEFORE = ("ImageExampleGen", "StatisticsGen", "InferredSchema", "ExampleValidator", "DatasetGate", "Transform")


def test_a_run_is_ended(fault, tries, short, tmp_path):
    if short:
        pytest.skip("full form only: it imports TFX and trains, which takes minutes")
    module = [sys.executable, "-W", "ignore", "-m", "tests.faults.killing_runs"]
    outcome = finish(start([*module, tmp_path, SEED, tries(2, 1), *SIGNALS]), TIMEOUT_S)
    assert outcome.code == 0, outcome.err[-2000:]
    found = json.loads(outcome.out)
    assert not found["clean"]["left"], found["clean"]["left"]
    for name in SIGNALS:
        says = "" if name == "SIGKILL" else "the process ends within 5 s; one line explains how to resume; "
        row = fault("kills", f"{name} of `feedline run`, during or after the training", says + KEPT)
        mine = [attempts for attempts in found["tries"] if attempts[0]["signal"] == name]
        for attempts in mine:
            lost = any(not one["versions"] for one in attempts)
            row.tried(str(attempts), hang=hangs(attempts, name), lost=lost, wrong=any(map(is_wrong, attempts)))
        sys.stdout.write(summary(name, [[one["seconds"] for one in attempts] for attempts in mine]))


def is_wrong(one: dict) -> bool:
    """Returns whether a run ended otherwise than it should, or its rerun did."""
    number = signal.Signals[one["signal"]]
    killed = number == signal.SIGKILL
    code = -number if killed else 128 + number
    through = one["code"] == 0  # the signal came when all was done
    told = through or killed or one["said"].rstrip().endswith(AGAIN)
    lines = [line.split() for line in one["told"].splitlines()]
    cached = {line[0] for line in lines if line[-1:] == ["cached"]}
    good = (
        (one["code"] == code or through)
        and told
        and "Traceback" not in one["said"] + one["told"]
        and not one["processes"]
        and one["again"] == 0
        and (cached.issuperset(BEFORE) or (through and "nothing changed since the run of" in one["told"]))
        and one["same"]
        and len(one["versions"]) == 1
        and one["versions"][: len(one["pushed"])] == one["pushed"]
        and not one["left"]
    )
    return not good
