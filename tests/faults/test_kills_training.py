"""Trainings that are ended by signals at seeded random moments; see `killing_trainings`."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from tests.faults.process import finish, start

pytestmark = pytest.mark.timeout(1200)

SEED = 21
STEPS = 36
LEFT_S = 60.0
TIMEOUT_S = 1100.0
ROWS = {
    "SIGKILL": "the newest whole checkpoint counts; the rest is trained, to the very same weights",
    "SIGTERM": "the step is finished and a checkpoint written; the rest is trained, to the very same weights",
    "SIGINT": "the step is finished and a checkpoint written; the rest is trained, to the very same weights",
}


def test_a_training_is_ended(fault, tries, tmp_path):
    module = [sys.executable, "-W", "ignore", "-m", "tests.faults.killing_trainings"]
    outcome = finish(start([*module, tmp_path, SEED, tries(10, 1)]), TIMEOUT_S)
    assert outcome.code == 0, outcome.err[-2000:]
    found = json.loads(outcome.out)
    for name in {one["signal"]: None for one in found}:
        row = fault("kills", f"{name} of a training", ROWS[name])
        mine = [one for one in found if one["signal"] == name]
        for one in mine:
            hang = one["code"] is None or one["again"] is None or one["seconds"] > LEFT_S
            row.tried(str(one), hang=hang, wrong=is_wrong(one))
        sys.stdout.write(f"{name}: gone after {max(one['seconds'] for one in mine):.2f} s at most\n")


def is_wrong(one: dict) -> bool:
    """Returns whether a training ended otherwise than it should, or went on otherwise than from its checkpoint."""
    number = signal.Signals[one["signal"]]
    code = -number if number == signal.SIGKILL else 128 + number
    through = one["code"] == 0 and one["kept"] == STEPS  # the signal came when all was done
    good = (one["code"] == code or through) and one["same"] and one["steps"] == STEPS - one["kept"]
    if number != signal.SIGKILL and "at" in one:  # no finished step is done again
        good = good and one["kept"] >= one["at"]
    return not good
