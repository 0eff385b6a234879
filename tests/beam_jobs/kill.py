"""Ingests that are killed at a moment and run again, in processes of their own; see `test_ingest_killed.py`.

`python -m tests.beam_jobs.kill SOURCE FOLDER SEED COUNT` runs one ingest in peace, into FOLDER/clean, and COUNT that
are killed, into FOLDER/0, FOLDER/1, ..., each run again after it. What it saw is printed as one JSON object.

A moment is a number: of the files opened and renamed so far in the source and the output. An audit hook of the
interpreter counts them, so nothing of the ingest is replaced, and any write, rename or read can be the last. All
processes are forked from one that has imported everything and done nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import tensorflow  # noqa: F401 - imported once, not once a process

from beam_jobs import ingest
from beam_jobs.options import IngestOptions
from tests.beam_jobs.runs import Recorder

OPTIONS = {"splits": {"train": 0.6, "eval": 0.4}, "shards": 3, "bucket_images": 4, "threads": 2}
_ARGUMENT = {"open": 0, "os.rename": 1}  # audit event -> which of its arguments is the path


def options_of(source: str, out: Path) -> IngestOptions:
    return IngestOptions(source=source, out=str(out), **OPTIONS)


def in_a_child(work: Callable[[], object]) -> int:
    """Runs a function in a process of its own; returns the signal that ended it, or 0."""
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def on_each_moment(places: tuple[str, ...], act: Callable[[str], None]) -> None:
    """Calls a function before each opening and renaming of a file below one of the places, for good."""

    def hook(event: str, arguments: tuple) -> None:
        if event in _ARGUMENT:
            path = arguments[_ARGUMENT[event]]
            if isinstance(path, str) and path.startswith(places):
                act(path)

    sys.addaudithook(hook)


def run(source: str, out: Path, report: Path) -> None:
    """Ingests to the end, and writes down how many moments it had, what it read of the source, and its counters."""
    moments = itertools.count(1)
    seen: Counter[str] = Counter()
    last = 0

    def note(path: str) -> None:
        nonlocal last
        last = next(moments)
        if path.startswith(source):
            seen[os.path.relpath(path, source)] += 1

    on_each_moment((source, str(out)), note)
    recorder = Recorder()
    ingest.run(options_of(source, out), recorder)
    report.write_text(json.dumps({"moments": last, "read": seen, "counters": recorder.counters()}))


def run_until(source: str, out: Path, moment: int) -> None:
    """Ingests, and is killed at a moment."""
    moments = itertools.count(1)

    def die(path: str) -> None:
        if next(moments) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    on_each_moment((source, str(out)), die)
    ingest.run(options_of(source, out))


def left_behind(out: Path) -> dict[str, list[str]]:
    """Returns which buckets and shards a killed run had finished."""
    work = out / "_work"
    return {
        "buckets": sorted(path.name for path in work.glob("examined/done-*.json")),
        "shards": sorted(path.name for path in work.glob("written/*.json")),
    }


def main(source: str, folder: Path, seed: int, count: int) -> dict:
    report = folder / "report.json"
    assert in_a_child(lambda: run(source, folder / "clean", report)) == 0
    clean = json.loads(report.read_text())
    choose = random.Random(seed)
    edges = [1 + clean["moments"] * part // count for part in range(count + 1)]  # one of each part of the run
    killed = []
    for number, (first, after) in enumerate(itertools.pairwise(edges)):
        moment, out = choose.randrange(first, after), folder / str(number)
        assert in_a_child(lambda out=out, moment=moment: run_until(source, out, moment)) == signal.SIGKILL
        left = left_behind(out)
        assert in_a_child(lambda out=out: run(source, out, report)) == 0
        killed.append({"moment": moment, "left": left, **json.loads(report.read_text())})
    return {"clean": clean, "killed": killed}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))))
