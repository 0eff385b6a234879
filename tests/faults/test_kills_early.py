"""Signals in the first seconds of a command, while Python starts and libraries are imported.

Before the first line of the product runs, a signal is answered by Python itself, and no program can change that: it
shows a traceback of its own files or dies of the signal. From that line on, the answer is ours.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.beam_jobs import kill
from tests.faults.leaving import LEAVE_S, summary, tried_again
from tests.faults.process import FEEDLINE, ROOT, Outcome, finish, start, wait_for
from tests.faults.test_kills import RESUME

pytestmark = pytest.mark.timeout(1200)

SEED = 23
LATEST_S = 1.5
PROGRAM = (FEEDLINE,)
SIGNALS = (signal.SIGINT, signal.SIGTERM)
PRODUCT = tuple(str(ROOT / package) for package in ("pipeline", "beam_jobs", "trainer", "components"))


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return Path(kill.make_source(tmp_path_factory.mktemp("early") / "source"))


@pytest.fixture(scope="module")
def dataset(source, ingests, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("early") / "dataset"
    assert ingests.ingest(source, out).code == 0
    return out


@pytest.mark.parametrize("name", ["ingest", "verify", "run", "--help"])
def test_a_signal_while_a_command_starts(fault, tries, source, dataset, tmp_path, name):
    row = fault(
        "kills",
        "a signal while Python and libraries are imported",
        "the process ends within 5 s; as soon as code of Feedline runs, with one line and the exit code of the signal",
    )
    choose = random.Random(f"{SEED} {name}")
    took = []
    for index in range(tries(16, 2)):
        number, waits, late = SIGNALS[index % 2], index // 2 % 2 == 0, choose.uniform(0, LATEST_S)

        def attempt(before: int, index=index, number=number, waits=waits, late=late) -> Early:
            out = tmp_path / f"{index}-{before}"
            arguments = {
                "ingest": [source, "--out", out],
                "verify": [dataset],
                "run": ["--images", source, "--root", out],
                "--help": [],
            }[name]
            ours, outcome = ended([*PROGRAM, name, *arguments], number, waits, late)
            published = any(out.rglob("dataset.json")) and outcome.code != 0
            wrong = not answered(outcome, number, ours) or published or bool(outcome.left)
            return Early(outcome=outcome, ours=ours, wrong=wrong)

        attempts = tried_again(attempt, lambda one: 0.0 if one.outcome.hang else one.outcome.seconds)
        took.append([one.outcome.seconds for one in attempts])
        about = f"{name}: {number.name} {late:.2f} s after {'the handler' if waits else 'the start'}: {attempts}"
        hang = any(one.outcome.hang for one in attempts) or min(took[-1]) > LEAVE_S
        row.tried(about, hang=hang, wrong=any(one.wrong for one in attempts))
    sys.stdout.write(summary(name, took))


@dataclass(frozen=True, kw_only=True)
class Early:
    """A command that was sent a signal.

    Attributes:
      outcome: how it ended.
      ours: whether the product took signals already.
      wrong: whether it ended otherwise than it should.
    """

    outcome: Outcome
    ours: bool
    wrong: bool


def ended(command: list[object], number: signal.Signals, waits: bool, late: float) -> tuple[bool, Outcome]:
    """Sends a command a signal; returns whether the product took signals by then, and how it ended."""
    process = start(command)
    if waits:  # or a busy machine would have spent the time on the start of Python alone
        assert wait_for(lambda: takes_signals(process), process)
    time.sleep(late)
    ours = takes_signals(process)
    sent = time.monotonic()
    process.send_signal(number)
    return ours, finish(process, 120.0, since=sent)


def answered(outcome, number: signal.Signals, ours: bool) -> bool:
    """Returns whether a signal was answered as it should be, by the product or by Python before it."""
    through = outcome.code == 0
    if not ours and outcome.code != 128 + number:
        by_python = outcome.code in (-number, 1)  # 1: it could not finish its own start
        return through or (by_python and not any(folder in outcome.err for folder in PRODUCT))
    told = outcome.code == 128 + number and outcome.err.rstrip().endswith(RESUME)
    return (through or told) and not outcome.shows_traceback


def takes_signals(process: subprocess.Popen) -> bool:
    """Returns whether a process has a handler for SIGTERM, which Python itself never has."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) & 1 << (signal.SIGTERM - 1))
    return False
