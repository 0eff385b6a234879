from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from beam_jobs.dataset import manifest
from tests.beam_jobs import kill
from tests.beam_jobs.runs import files_under

ROOT = Path(__file__).parents[2]
MOMENTS = 8
BUCKETS, SHARDS = 7, 6  # as `kill.py` cuts the work


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return kill.make_source(tmp_path_factory.mktemp("killed") / "source")


@pytest.fixture(scope="module")
def killed(source) -> dict:
    """What `kill.py` says of one clean run and of eight that were killed with SIGKILL and run again."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.beam_jobs.kill", str(source), str(source.parent)]
    done = subprocess.run([*command, "0", str(MOMENTS)], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_the_moments_lie_before_between_and_after_buckets_and_shards(killed):
    left = [(len(run["left"]["buckets"]), len(run["left"]["shards"])) for run in killed["killed"]]
    assert left[0] == (0, 0)
    assert any(0 < buckets < BUCKETS for buckets, _ in left)
    assert any(buckets == BUCKETS and shards == 0 for buckets, shards in left)
    assert any(0 < shards < SHARDS for _, shards in left)
    assert left[-1] == (BUCKETS, SHARDS)


@pytest.mark.parametrize("number", range(MOMENTS))
def test_a_rerun_gives_the_bytes_of_a_run_in_peace_and_does_only_what_was_unfinished(killed, source, number):
    clean, again = source.parent / "clean", source.parent / str(number)
    assert files_under(again) == files_under(clean)
    run = killed["killed"][number]
    left, counters = run["left"], run["counters"]
    buckets, shards = len(left["buckets"]), len(left["shards"])
    assert (counters["resumed_buckets"], counters["resumed_shards"]) == (buckets, shards)
    assert (counters["written_shards"], counters["images"]) == (SHARDS - shards, 28)
    # Each file is read once for its bucket and once for its shard.
    assert Counter(run["read"]) == kill.still_to_read(source, clean, left)


def test_a_run_in_peace_reads_an_image_twice_and_one_that_it_changes_once(killed, source):
    assert manifest.load(str(source.parent / "clean")).counts.written == 28
    unfinished = kill.still_to_read(source, source.parent / "clean", {"buckets": [], "shards": []})
    assert Counter(killed["clean"]["read"]) == unfinished
    assert set(killed["clean"]["read"].values()) == {1, 2}
