"""Ingests whose processes are ended by signals, at seeded random moments of every stage.

Most tries fork the real command line from one process, with its real handler of signals and real decoders, which are
forked from one nursery; see `killing`. Workers are killed likewise, see `killing_workers`. The last test starts
`feedline` itself. How long an ingest takes to leave is printed; machines that run tests are busy, so a minute is the
bound of the test, not the five seconds that are promised.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.beam_jobs import kill
from tests.faults.killing import arguments, dataset
from tests.faults.killing_workers import KINDS
from tests.faults.process import FEEDLINE, Outcome, finish, start, wait_for

pytestmark = pytest.mark.timeout(1500)

SEED = 20
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
STAGES = {"scan", "examine", "plan", "write", "publish"}
LEFT_S = 60.0
TIMEOUT_S = 1200.0
RESUME = "feedline: error: interrupted; what is finished is kept, run the same command again to continue"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return kill.make_source(tmp_path_factory.mktemp("kills") / "source")


@pytest.fixture(scope="module")
def ended(source, tries, short) -> dict[str, dict]:
    """Signal -> what `killing` says of ingests that were ended by it; where they are many, in a process each."""
    module = [sys.executable, "-W", "ignore", "-m", "tests.faults.killing", source]
    parts = [SIGNALS] if short else [(name,) for name in SIGNALS]
    running = [start([*module, source.parent / "ended", SEED, tries(50, 3), *names]) for names in parts]
    found: dict[str, dict] = {}
    for outcome in [finish(process, TIMEOUT_S) for process in running]:
        assert outcome.code == 0, outcome.err[-2000:]
        found |= json.loads(outcome.out)
    return found


@pytest.mark.parametrize("name", SIGNALS)
def test_the_command_line_is_ended(fault, ended, source, short, name):
    kept = "nothing half published; a rerun does the unfinished work alone and ends with the same bytes"
    says = "" if name == "SIGKILL" else "one line says how to resume; "
    row = fault("kills", f"{name} of `feedline ingest`", says + kept)
    found = ended[name]
    assert not found["reader"], found["reader"]
    clean = source.parent / "ended" / name / "clean" / "out"
    for one in found["tries"]:
        to_read = kill.still_to_read(source, clean, one["left"])
        repeated = not one["replaces"] and one["again"] == 0 and Counter(one["read"]) != to_read
        about = f"moment {one['moment']} ({one['stage']}, {one['late']:.3f} s later): {dict(one, read=repeated)}"
        slow = name != "SIGKILL" and one["seconds"] > LEFT_S
        row.tried(
            about, hang=one["code"] is None or one["again"] is None or slow, wrong=is_wrong(one, name) or repeated
        )
    assert found["clean"]["published"]
    seconds = [one["seconds"] for one in found["tries"]]
    stages = Counter(one["stage"] for one in found["tries"])
    sys.stdout.write(f"{name}: gone after {max(seconds):.2f} s at most; by stage {dict(stages)}\n")
    if not short:
        assert stages.keys() >= STAGES


def is_wrong(one: dict, name: str) -> bool:
    """Returns whether an ingest ended otherwise than it should, or its rerun did."""
    expected = -signal.SIGKILL if name == "SIGKILL" else 128 + signal.Signals[name]
    through = one["code"] == 0 and one["between"] == "new"  # the signal came when all was done
    told = name == "SIGKILL" or through or one["said"].rstrip().endswith(RESUME)
    was_done = one["between"] == "new" and not one["replaces"]  # a rerun finds a dataset there, and says so
    good = (
        (one["code"] == expected or through)
        and told
        and "Traceback" not in one["said"] + one["told"]
        and one["between"] in ("nothing", "new", *(("old",) if one["replaces"] else ()))
        and one["again"] == (2 if was_done else 0)
        and one["state"] == "new"
        and not one["kept"]
        and not one["orphans"]
    )
    return not good


@pytest.fixture(scope="module")
def struck(source, tries) -> list[dict]:
    """What `killing_workers` says of ingests whose workers were killed."""
    module = [sys.executable, "-W", "ignore", "-m", "tests.faults.killing_workers"]
    outcome = finish(start([*module, source, source.parent / "workers", SEED, tries(3, 1)]), TIMEOUT_S)
    assert outcome.code == 0, outcome.err[-2000:]
    return json.loads(outcome.out)


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_a_worker_is_ended(fault, struck, kind, name):
    what = "a decoder process" if kind == "decoder" else "the process that decoders are forked from"
    row = fault("kills", f"{name} of {what}", "the ingest goes on with another one; same bytes, no reject")
    for one in struck:
        if (one["kind"], one["signal"]) == (kind, name):
            row.tried(str(one), hang=one["code"] is None, wrong=one["code"] != 0 or not one["same"] or not one["hit"])


def test_the_program_itself_is_ended(fault, source, short, tmp_path):
    row = fault("kills", "a signal to the program at a random time", "as above, and no process of it is left behind")
    names = ("SIGTERM",) if short else SIGNALS
    choose = random.Random(SEED)
    running = {}
    for name in names:
        (tmp_path / name).mkdir()
        running[name] = start([FEEDLINE, *arguments(str(source), tmp_path / name / "out")])
    outcomes = {name: _ended_by(process, name, choose.uniform(0, 8)) for name, process in running.items()}
    again = {name: start([FEEDLINE, *arguments(str(source), tmp_path / name / "out")]) for name in names}
    finished = {name: finish(process) for name, process in again.items()}
    wanted = dataset(tmp_path / names[0] / "out")
    assert "dataset.json" in wanted
    for name in names:
        first, second = outcomes[name], finished[name]
        code = -signal.SIGKILL if name == "SIGKILL" else 128 + signal.Signals[name]
        sys.stdout.write(f"{name}: gone after {first.seconds:.2f} s\n")
        done = first.code == 0  # it was faster than the signal
        told = done or name == "SIGKILL" or RESUME in first.err
        same = dataset(tmp_path / name / "out") == wanted
        whole = told and same and not first.shows_traceback and first.code in (0, code)
        about = f"{name}: exit {first.code}, {first.err[-300:]!r}, left {first.left}; then {second.code}, {same}"
        hang = first.hang or second.hang or (name != "SIGKILL" and first.seconds > LEFT_S)
        row.tried(about, hang=hang, wrong=not whole or bool(first.left) or second.code != (2 if done else 0))


def _ended_by(process, name: str, seconds: float) -> Outcome:
    """Sends a signal so many seconds after the program takes signals; before, Python itself ends."""
    assert wait_for(lambda: _takes_signals(process.pid), process)
    time.sleep(seconds)
    sent = time.monotonic()
    process.send_signal(signal.Signals[name])
    return finish(process, 240.0, since=sent)


def _takes_signals(pid: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) & 1 << (signal.SIGTERM - 1))
    return False
