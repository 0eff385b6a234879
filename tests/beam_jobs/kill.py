"""Ingests that are killed at a moment and run again, in processes of their own; see `test_ingest_killed.py`.

`python -m tests.beam_jobs.kill SOURCE FOLDER SEED COUNT` runs one ingest in peace, into FOLDER/clean, and COUNT that
are killed, into FOLDER/0, FOLDER/1, ..., each run again after it. What it saw is printed as one JSON object.

A moment is a number: of the files opened and renamed so far in the source and the output. An audit hook of the
interpreter counts them, so any write, rename or read can be the last, but for what a decoder reads. All processes are
forked from one that has imported everything and done nothing. They decode as ever, in processes that are forked from
one fork server: each would start its own, and spend ten seconds on the import of TensorFlow.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from beam_jobs import ingest
from beam_jobs.common import process_pool as pool
from beam_jobs.images import sandbox
from beam_jobs.options import IngestOptions
from tests import image_table
from tests.beam_jobs.runs import Recorder
from tests.make_images import class_folders, crop, encode

OPTIONS = {"splits": {"train": 0.6, "eval": 0.4}, "shards": 3, "bucket_images": 4, "threads": 2}
_ARGUMENT = {"open": 0, "os.rename": 1, "os.link": 1}  # audit event -> which of its arguments is the path
PATIENCE_S = 180.0  # for one ingest of a few images, on a machine that is busy with other things


def make_source(folder: Path) -> Path:
    """Makes 28 images in two classes; four of them are changed, so they pass through the spool."""
    class_folders(folder)
    for number in range(4):
        (folder / "china" / f"{number}.webp").write_bytes(encode(crop(500 + number), "WEBP"))
    return folder


def options_of(source: str, out: Path) -> IngestOptions:
    return IngestOptions(source=source, out=str(out), **OPTIONS)


def share_decoders() -> int:
    """Has all processes that are forked from now on share a fork server of decoders; returns its process id."""
    fork_server = pool._ForkServer("beam_jobs.images.sandbox.worker")

    def inherit() -> None:
        sandbox._own.pool._fork_server = fork_server

    os.register_at_fork(after_in_child=inherit)
    return fork_server._process.pid


def in_a_child(work: Callable[[], object]) -> int | None:
    """Runs a function in a process of its own.

    Returns:
      its exit code, or the signal that ended it, negative; None when it did not end in time, and was ended.
    """
    child = forked(work)
    end = time.monotonic() + PATIENCE_S
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.005)


def forked(work: Callable[[], object]) -> int:
    """Starts a process that runs a function and ends; returns its number."""
    gc.freeze()  # a collection in the child would copy the pages that both share
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        finally:
            os._exit(status)
    return child


def on_each_moment(places: tuple[str, ...], act: Callable[[str], None]) -> None:
    """Calls a function before each opening and renaming of a file below one of the places, for good."""

    def hook(event: str, arguments: tuple, positions: dict[str, int] = _ARGUMENT) -> None:
        if event in positions:  # a global would be None while the interpreter ends
            path = arguments[positions[event]]
            if isinstance(path, str) and path.startswith(places):
                act(path)

    sys.addaudithook(hook)


def counted(places: tuple[str, ...], source: str, report: Path, work: Callable[[], dict]) -> None:
    """Does something, and writes down how many moments it had, what it read of the source, and what it returned."""
    moments = itertools.count(1)
    seen: Counter[str] = Counter()
    last = 0

    def note(path: str) -> None:
        nonlocal last
        last = next(moments)
        if path.startswith(source):
            seen[os.path.relpath(path, source)] += 1

    def examine(images: list, *rest: Any) -> list:
        seen.update(uri for uri, _ in images)  # a decoder reads them
        return by_decoder(images, *rest)

    on_each_moment(places, note)
    by_decoder, sandbox.examine = sandbox.examine, examine
    found = work()
    report.write_text(json.dumps({"moments": last, "read": seen, **found}))


def run(source: str, out: Path, report: Path) -> None:
    """Ingests to the end, and writes down how it went and the counters."""

    def work() -> dict:
        recorder = Recorder()
        ingest.run(options_of(source, out), recorder)
        return {"counters": recorder.counters()}

    counted((source, str(out)), source, report, work)


def die_at(moment: int, places: tuple[str, ...]) -> None:
    """Has this process killed at a moment; see `on_each_moment`."""
    moments = itertools.count(1)

    def die(path: str) -> None:
        if next(moments) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    on_each_moment(places, die)


def run_until(source: str, out: Path, moment: int) -> None:
    """Ingests, and is killed at a moment."""
    die_at(moment, (source, str(out)))
    ingest.run(options_of(source, out))


def left_behind(out: Path) -> dict[str, list[str]]:
    """Returns which buckets and shards a killed run had finished."""
    work = out / "_work"
    return {
        "buckets": sorted(path.name for path in work.glob("examined/done-*.json")),
        # Without the digest of the plan.
        "shards": sorted(path.name.partition(".tfrecord")[0] for path in work.glob("written/*.json")),
    }


def still_to_read(source: Path, clean: Path, left: dict[str, list[str]]) -> Counter[str]:
    """Returns how often each file of the source has to be read once these buckets and shards are done.

    Args:
      source: of the images.
      clean: dataset of a run in peace.
      left: see `left_behind`.
    """
    keys = sorted(str(path.relative_to(source)) for path in source.rglob("*.*"))
    done = {int(name.removeprefix("done-").partition("-")[0]) for name in left["buckets"]}
    reads = Counter(key for place, key in enumerate(keys) if place // OPTIONS["bucket_images"] not in done)
    for row in image_table.read(clean).to_pylist():
        shard = f"{row['split']}-data-{row['shard']:05d}-of-{OPTIONS['shards']:05d}"
        if shard not in left["shards"] and not row["normalised"]:  # what was changed comes out of the spool
            reads[row["key"]] += 1
    return reads


def chosen(choose: random.Random, last: int, count: int) -> list[int]:
    """Returns moments, one of each of so many equal parts of a run; some of them twice where it has fewer."""
    edges = [1 + last * part // count for part in range(count + 1)]
    return [choose.randrange(first, max(after, first + 1)) for first, after in itertools.pairwise(edges)]


def main(source: str, folder: Path, seed: int, count: int) -> dict:
    share_decoders()
    report = folder / "report.json"
    assert in_a_child(lambda: run(source, folder / "clean", report)) == 0
    clean = json.loads(report.read_text())
    killed = []
    for number, moment in enumerate(chosen(random.Random(seed), clean["moments"], count)):
        out = folder / str(number)
        assert in_a_child(lambda out=out, moment=moment: run_until(source, out, moment)) == -signal.SIGKILL
        left = left_behind(out)
        assert in_a_child(lambda out=out: run(source, out, report)) == 0
        killed.append({"moment": moment, "left": left, **json.loads(report.read_text())})
    return {"clean": clean, "killed": killed}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))))
