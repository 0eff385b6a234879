"""Ingests whose processes are ended by signals, at seeded random moments of every stage.

Most tries fork the real command line from one process, with its real handler of signals and real decoders, which are
forked from one nursery; see `killing`. Workers are ended likewise, see `killing_workers`; `test_kills_early` starts
`feedline` itself. How long an ingest takes to leave is bounded as promised and printed, see `leaving`.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beam_jobs import kill
from tests.beam_jobs.web_server import Page, serving
from tests.faults.killing import WAYS
from tests.faults.killing_workers import FATAL, KINDS
from tests.faults.leaving import hangs, summary
from tests.faults.process import finish, start

pytestmark = pytest.mark.timeout(1500)

SEED = 20
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
STAGES = {"scanning", "examining", "planning", "writing", "publishing"}
TIMEOUT_S = 1200.0
# Kind of worker -> stages in which it is ended, and what happens then.
WORKS = {"decoder": {"examining", "writing"}, "nursery": {"examining", "writing"}}
WORKS |= {"writer": {"writing"}, "fetcher": {"examining"}}
GOES_ON = dict.fromkeys(KINDS, "another process takes over")
GOES_ON["fetcher"] = "the process that started it fetches the remaining images of its bucket"
RESUME = "feedline: error: interrupted; finished work is kept, run the same command again to continue"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return kill.make_source(tmp_path_factory.mktemp("kills") / "source")


@pytest.fixture(scope="module")
def ended(source, tries, short) -> dict[str, dict]:
    """Way -> what `killing` says of ingests that were ended so; where they are many, in several processes at once."""
    module = [sys.executable, "-W", "ignore", "-m", "tests.faults.killing", source]
    terminal = [name for name in WAYS if name not in SIGNALS]
    parts = [(WAYS, 3)] if short else [*(((name,), 50) for name in SIGNALS), (terminal, 8)]
    running = [start([*module, source.parent / "ended", SEED, count, *names]) for names, count in parts]
    found: dict[str, dict] = {}
    for outcome in [finish(process, TIMEOUT_S) for process in running]:
        assert outcome.code == 0, outcome.err[-2000:]
        found |= json.loads(outcome.out)
    return found


KEPT = "no partial dataset is published; a rerun does only the unfinished work and ends with the same bytes"
SAYS = f"the process ends within 5 s; one line explains how to resume; {KEPT}"
ROWS = {
    "SIGKILL": ("SIGKILL of `feedline ingest`", KEPT),
    "SIGTERM": ("SIGTERM of `feedline ingest`", SAYS),
    "SIGINT": ("SIGINT of `feedline ingest`", SAYS),
    "Ctrl-C": ("Ctrl-C: SIGINT of every process of `feedline ingest`", SAYS),
    "Ctrl-C twice": ("Ctrl-C, and again while the first is handled", SAYS),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_command_line_is_ended(fault, ended, source, short, name):
    row = fault("kills", *ROWS[name])
    found = ended[name]
    assert not found["reader"], found["reader"]
    clean = source.parent / "ended" / name / "clean" / "out"
    for attempts in found["tries"]:
        judged = [is_wrong(one, name) or does_again(one, source, clean) for one in attempts]
        row.tried(about(attempts, judged), hang=hangs(attempts, name), wrong=any(judged))
    assert found["clean"]["published"]
    sys.stdout.write(summary(name, [[one["seconds"] for one in attempts] for attempts in found["tries"]]))
    stages = Counter(attempts[0]["stage"] for attempts in found["tries"])
    sys.stdout.write(f"{name}: by stage {dict(stages)}\n")
    if not short and name in SIGNALS:
        assert stages.keys() >= STAGES
    if not short and WAYS[name].twice:
        assert any(one["twice"] for attempts in found["tries"] for one in attempts)


def about(attempts: list[dict], judged: list[bool]) -> str:
    """Returns what names a try in the message of a failure: the first attempt that is wrong, or the first."""
    one = attempts[judged.index(True) if any(judged) else 0]
    return f"moment {one['moment']} ({one['stage']}, {one['late']:.3f} s later), attempts {len(attempts)}: {one}"


def does_again(one: dict, source: Path, clean: Path) -> bool:
    """Returns whether a rerun read other files than those of unfinished buckets and shards."""
    return one["again"] == 0 and Counter(one["read"]) != kill.still_to_read(source, clean, one["left"])


def is_wrong(one: dict, name: str) -> bool:
    """Returns whether an ingest ended otherwise than it should, or its rerun did."""
    number = WAYS[name].number
    expected = -number if number == signal.SIGKILL else 128 + number
    through = one["code"] == 0 and one["between"] == "new"  # the signal came when all was done
    told = number == signal.SIGKILL or through or one["said"].rstrip().endswith(RESUME)
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
def urls(source) -> Iterator[Path]:
    """A table of URLs of the images, which are served while it is used, after a time in which a signal comes."""
    found = sorted(path for path in source.rglob("*.*"))

    def page(path: Path) -> Page:
        return lambda handler: time.sleep(0.03) or handler.answer(200, path.read_bytes())

    with serving({f"/{path.relative_to(source)}": page(path) for path in found}) as server:
        rows = [f"{server.url(f'/{path.relative_to(source)}')},{path.parent.name}" for path in found]
        table = source.parent / "urls.csv"
        table.write_text("\n".join(["image,label", *rows]))
        yield table


@pytest.fixture(scope="module")
def struck(source, urls, tries) -> list[dict]:
    """What `killing_workers` says of ingests whose workers were sent signals: 51 of each kind."""
    module = [sys.executable, "-W", "ignore", "-m", "tests.faults.killing_workers"]
    outcome = finish(start([*module, source, urls, source.parent / "workers", SEED, tries(17, 1)]), TIMEOUT_S)
    assert outcome.code == 0, outcome.err[-2000:]
    return json.loads(outcome.out)


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_is_ended(fault, struck, short, kind, name):
    goes_on = GOES_ON[kind] if name in FATAL else "the process ignores the signal"
    row = fault("kills", f"{name} of {KINDS[kind]}", f"{goes_on}; the ingest ends with the same bytes and no reject")
    mine = [one for one in struck if (one["kind"], one["signal"]) == (kind, name)]
    for one in mine:
        wrong = one["code"] != 0 or not one["same"] or one["gone"] is not (name in FATAL)
        row.tried(str(one), hang=one["code"] is None, wrong=wrong)
    stages = Counter(one["stage"] for one in mine)
    sys.stdout.write(f"{name} of {KINDS[kind]}: by stage {dict(stages)}\n")
    if not short:
        assert stages.keys() >= WORKS[kind]
