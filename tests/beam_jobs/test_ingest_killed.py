from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from beam_jobs import manifest, tables
from tests.beam_jobs.runs import files_under
from tests.make_images import class_folders, crop, encode

ROOT = Path(__file__).parents[2]
MOMENTS = 8
BUCKET, BUCKETS, SHARDS = 4, 7, 6  # as `kill.py` cuts the work


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    folder = class_folders(tmp_path_factory.mktemp("killed") / "source")
    for number in range(4):  # these are changed, so they pass through the spool
        (folder / "china" / f"{number}.webp").write_bytes(encode(crop(500 + number), "WEBP"))
    return folder


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
def test_a_rerun_gives_the_bytes_of_a_run_in_peace(killed, source, number):
    clean, again = source.parent / "clean", source.parent / str(number)
    assert files_under(again) == files_under(clean)
    assert manifest.load(str(again)).counts.written == 28


@pytest.mark.parametrize("number", range(MOMENTS))
def test_a_rerun_does_only_what_was_unfinished(killed, source, number):
    run = killed["killed"][number]
    left, counters = run["left"], run["counters"]
    buckets, shards = len(left["buckets"]), len(left["shards"])
    assert (counters["resumed_buckets"], counters["resumed_shards"]) == (buckets, shards)
    assert (counters["written_shards"], counters["images"]) == (SHARDS - shards, 28)
    # Not only said so, but done: each file is read once for its bucket and once for its shard.
    assert Counter(run["read"]) == still_to_read(source, left)


def test_a_run_in_peace_reads_an_image_twice_and_one_that_it_changes_once(killed, source):
    assert Counter(killed["clean"]["read"]) == still_to_read(source, {"buckets": [], "shards": []})
    assert set(killed["clean"]["read"].values()) == {1, 2}


def still_to_read(source: Path, left: dict[str, list[str]]) -> Counter[str]:
    """Returns how often each file of the source has to be read once these buckets and shards are done."""
    keys = sorted(str(path.relative_to(source)) for path in source.rglob("*.*"))
    done = {int(name.removeprefix("done-").partition("-")[0]) for name in left["buckets"]}
    reads = Counter(key for place, key in enumerate(keys) if place // BUCKET not in done)
    for row in tables.read(str(source.parent / "clean" / "images.parquet")).to_pylist():
        sidecar = f"{row['split']}-data-{row['shard']:05d}-of-00003.tfrecord.json"
        if sidecar not in left["shards"] and not row["normalised"]:  # what was changed comes out of the spool
            reads[row["key"]] += 1
    return reads
