"""Trainings that are ended by signals at seeded random moments; see `killing_trainings`.

They go through `fit`, which raises and says nothing: the line that says how to resume is that of the command line.
"""

from __future__ import annotations

import json
import signal
import sys

import pytest

from tests.faults.leaving import hangs, summary
from tests.faults.process import finish, start

pytestmark = pytest.mark.timeout(1200)

SEED = 21
STEPS = 36
TIMEOUT_S = 1100.0
HELD = "the process ends within 5 s, after a step and a checkpoint; a rerun ends with exactly the same weights"
ROWS = {
    "SIGKILL": "a rerun continues from the newest complete checkpoint and ends with exactly the same weights",
    "SIGTERM": HELD,
    "SIGINT": HELD,
}


def test_a_training_is_ended(fault, tries, tmp_path):
    module = [sys.executable, "-W", "ignore", "-m", "tests.faults.killing_trainings"]
    outcome = finish(start([*module, tmp_path, SEED, tries(10, 3)]), TIMEOUT_S)
    assert outcome.code == 0, outcome.err[-2000:]
    found = json.loads(outcome.out)
    for name, text in ROWS.items():
        row = fault("kills", f"{name} of a training", text)
        mine = [attempts for attempts in found if attempts[0]["signal"] == name]
        for attempts in mine:
            row.tried(str(attempts), hang=hangs(attempts, name), wrong=any(map(is_wrong, attempts)))
        sys.stdout.write(summary(name, [[one["seconds"] for one in attempts] for attempts in mine]))


def is_wrong(one: dict) -> bool:
    """Returns whether a training ended otherwise than it should, or went on otherwise than from its checkpoint."""
    number = signal.Signals[one["signal"]]
    code = -number if number == signal.SIGKILL else 128 + number
    through = one["code"] == 0 and one["kept"] == STEPS  # the signal came when all was done
    good = (one["code"] == code or through) and one["same"] and one["steps"] == STEPS - one["kept"]
    if number != signal.SIGKILL and "at" in one:  # no finished step is done again
        good = good and one["kept"] >= one["at"]
    return not good
