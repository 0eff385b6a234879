"""Ingests on a Flink cluster whose command is ended by signals while its job runs, and the same command again."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beam_jobs.runs import files_under
from tests.engines import flink_parts
from tests.engines.flink_processes import Cluster, cluster, wait_until
from tests.faults.leaving import hangs, summary, tried_again
from tests.faults.process import FEEDLINE, feedline, finish, start, wait_for
from tests.make_images import jpeg

pytestmark = pytest.mark.timeout(1800)

SEED = 28
IMAGES, BUCKET = 400, 8
TRIES, ENDED = 2, {"CANCELED", "FINISHED"}
LATE_S = 2.0  # a job takes longer than that and the start of the next command
LEFT = "the job continues; the same command, run again, waits for it and ends with the same bytes"
CANCELLED = "the job is cancelled; the same command, run again, continues and ends with the same bytes"
ROWS = {"SIGINT": LEFT, "SIGTERM": LEFT, "SIGKILL": CANCELLED}


@pytest.fixture(scope="module")
def standalone(short, tmp_path_factory) -> Iterator[Cluster]:
    if short:
        pytest.skip("full form only: it needs a Flink cluster, and half a minute a try")
    try:
        flink_parts.distribution()
    except flink_parts.Missing as reason:
        pytest.skip(f"no Flink here: {reason}")
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def source(standalone, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("left") / "source"
    for number in range(IMAGES):
        place = folder / ("even", "odd")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:03d}.jpg").write_bytes(jpeg(number))
    (folder.parent / "ingest.yaml").write_text(f"ingest: {{bucket_images: {BUCKET}, shards: 4}}")
    return folder


def command(source: Path, out: Path, cluster: Cluster | None = None) -> list[object]:
    line = ["ingest", source, "--out", out, "-c", source.parent / "ingest.yaml", "--splits", "train=0.8,eval=0.2"]
    if cluster is None:
        return line
    settings = {"flink_master": f"localhost:{cluster.rest_port}", "parallelism": 1}
    settings["job_server_jar"] = flink_parts.job_server()
    options = [part for key, value in settings.items() for part in ("--runner-option", f"{key}={value}")]
    return [*line, "--runner", "flink", *options]


@pytest.fixture(scope="module")
def clean(source) -> dict[str, bytes]:
    outcome = feedline(*command(source, source.parent / "clean"))
    assert outcome.code == 0, outcome.err
    return files_under(source.parent / "clean")


def tried(standalone: Cluster, source: Path, out: Path, late: float, number: signal.Signals) -> dict:
    """Ends a command some time after its job began, runs it again, and returns what became of both."""
    line, before = command(source, out, standalone), standalone.jobs()
    process = start([FEEDLINE, *line])
    wait_for(lambda: bool(standalone.jobs().keys() - before.keys()), process)
    time.sleep(late)
    os.kill(process.pid, number)
    outcome = finish(process, since=time.monotonic())
    if number == signal.SIGKILL:
        wait_until(lambda: {standalone.jobs()[job] for job in standalone.jobs().keys() - before} <= ENDED, 60)
    again = feedline(*line, timeout=600.0)
    return {
        "code": None if outcome.hang else outcome.code,
        "seconds": outcome.seconds,
        "said": outcome.err,
        "again": None if again.hang else again.code,
        "told": again.err,
        "states": sorted(state for name, state in standalone.jobs().items() if name not in before),
        "same": files_under(out),
    }


def is_wrong(one: dict, name: str, clean: dict[str, bytes]) -> bool:
    """Returns whether a command ended otherwise than it should, its job did, or what the same command made of it."""
    number = signal.Signals[name]
    killed = number == signal.SIGKILL
    left = "continues; run the same command to reattach to it" in one["said"]
    good = (
        one["code"] == (-number if killed else 128 + number)
        and left is not killed
        and "Traceback" not in one["said"] + one["told"]
        and one["again"] == 0
        and set(one["states"]) <= (ENDED if killed else {"FINISHED"})
        and one["same"] == clean
    )
    return not good


@pytest.mark.parametrize("name", ROWS)
def test_the_command_of_a_job_on_a_cluster_is_ended(fault, standalone, source, clean, tmp_path, name):
    says = "" if name == "SIGKILL" else "the process ends within 5 s; one line names the job; "
    row = fault("kills", f"{name} of `feedline ingest` on a Flink cluster, without a terminal", says + ROWS[name])
    choose = random.Random(f"{SEED} {name}")
    all_attempts = []
    for index in range(TRIES):
        late = choose.uniform(0, LATE_S)

        def attempt(again: int, index: int = index, late: float = late) -> dict:
            return tried(standalone, source, tmp_path / f"{index}-{again}", late, signal.Signals[name])

        attempts = tried_again(attempt, lambda one: one["seconds"])
        wrong = [is_wrong(one, name, clean) for one in attempts]
        shown = {key: value for key, value in attempts[wrong.index(True) if any(wrong) else 0].items() if key != "same"}
        row.tried(f"{late:.3f} s after the job began: {shown}", hang=hangs(attempts, name), wrong=any(wrong))
        all_attempts.append(attempts)
    followed = ["reattached to the job" in one["told"] for attempts in all_attempts for one in attempts]
    assert any(followed) is (name != "SIGKILL")
    sys.stdout.write(summary(name, [[one["seconds"] for one in attempts] for attempts in all_attempts]))
