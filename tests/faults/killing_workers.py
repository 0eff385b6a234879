"""Ingests whose workers are killed under them; see `test_kills.py`.

`python -m tests.faults.killing_workers SOURCE FOLDER SEED COUNT` runs COUNT ingests for each kind of worker and each
signal that may end it, and prints what it saw as one JSON object. Processes are those of `tests.beam_jobs.kill`.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from beam_jobs import decoders
from tests.beam_jobs import kill
from tests.faults.killing import arguments, command, dataset

IMAGES = 28
# The nursery that all share comes last: after it, each ingest starts one of its own.
KINDS = [("decoder", "SIGKILL"), ("decoder", "SIGTERM"), ("nursery", "SIGTERM"), ("nursery", "SIGKILL")]


def workers(kind: str) -> list[int]:
    """Returns the process ids of the workers of this process."""
    pool = decoders._pool
    if kind == "nursery":
        return [pool._nursery._process.pid] if pool._nursery else []
    return [one.pid for one in (*pool._idle, *pool._busy)]


def struck(line: list[str], said: Path, source: str, kind: str, number: int, moment: int, late: float) -> None:
    """Runs the command line, and sends a worker a signal once so many images were read and there is one."""
    reads, hit = itertools.count(1), []

    def strike(_: str) -> None:
        if hit or next(reads) < moment or not (found := workers(kind)):
            return
        hit.append(found[-1])

        def now() -> None:
            time.sleep(late)
            with contextlib.suppress(ProcessLookupError):
                os.kill(hit[0], number)
            said.with_suffix(".sent").write_text(str(hit[0]))

        _thread.start_new_thread(now, ())

    kill.on_each_moment((source,), strike)
    command(line, said)


def main(source: str, folder: Path, seed: int, count: int) -> list[dict]:
    kill.share_decoders()
    (folder / "clean").mkdir(parents=True)
    clean, said = folder / "clean" / "out", folder / "clean" / "said.txt"
    assert kill.in_a_child(lambda: command(arguments(source, clean), said)) == 0, said.read_text()
    choose = random.Random(seed)
    tries = []
    for kind, name in KINDS:
        for index in range(count):
            place = folder / f"{kind}-{name}-{index}"
            place.mkdir()
            out, said = place / "out", place / "said.txt"
            drawn = choose.randrange(5, IMAGES // 2), choose.uniform(0, 0.02)
            line, number = arguments(source, out), signal.Signals[name]
            code = kill.in_a_child(
                lambda line=line, said=said, drawn=drawn, kind=kind, number=number: struck(
                    line, said, source, kind, number, *drawn
                )
            )
            same = (out / "dataset.json").exists() and dataset(out) == dataset(clean)
            hit = said.with_suffix(".sent").exists()
            tries.append({"kind": kind, "signal": name, "drawn": drawn, "code": code, "same": same, "hit": hit})
            tries[-1]["said"] = said.read_text()
    return tries


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
