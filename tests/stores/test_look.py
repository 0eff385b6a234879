"""Looking into, comparing and exporting datasets of buckets: the same as of folders, byte for byte."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from beam_jobs import storage
from beam_jobs.errors import FeedlineError
from beam_jobs.export import staging
from beam_jobs.export.options import STREAMED
from tests.beam_jobs.runs import files_under
from tests.make_images import flipped

pytestmark = [pytest.mark.stores, pytest.mark.timeout(600)]


def content(place: str | Path) -> dict[str, bytes]:
    """Name -> bytes of all files of a directory, here or in a bucket."""
    if isinstance(place, Path):
        return files_under(place)
    return {name: storage.read_bytes(f"{place}/{name}") for name, *_ in storage.list_objects(place)}


def test_a_record_and_its_picture_come_out_of_a_bucket(said, bucket, dataset, tmp_path):
    there = bucket.put_tree("dataset", dataset)
    shown = said("inspect", there, "-n", 2, "--export", tmp_path / "pictures")
    assert shown == said("inspect", dataset, "-n", 2, "--export", tmp_path / "local")
    assert content(tmp_path / "pictures") == content(tmp_path / "local") != {}
    said("inspect", there, "-n", 1, "--export", f"{bucket.url}/pictures")
    assert bucket.names("pictures") == [name for name in sorted(content(tmp_path / "local")) if "00000" in name]


def test_datasets_are_compared_wherever_they_lie(said, bucket, dataset, photos, tmp_path):
    there = bucket.put_tree("dataset", dataset)
    assert "\nequal\n" in said("diff", there, dataset)
    fewer = tmp_path / "photos"
    shutil.copytree(photos, fewer)
    (fewer / "china" / "000.jpg").unlink()
    newer = f"{bucket.url}/newer"
    said("ingest", fewer, "--out", newer, "--splits", "train=0.7,eval=0.3", "--shards", 2)
    for one in (dataset, there):
        found = json.loads(said("diff", one, newer, "--json"))
        assert [image["key"] for image in found["removed"]["images"]] == ["china/000.jpg"]
        assert found["added"]["count"] == 0


@pytest.mark.parametrize("to", [*STREAMED, "dali"])
def test_exports_from_and_into_a_bucket_are_those_of_folders(said, bucket, dataset, tmp_path, to):
    there = bucket.put_tree("dataset", dataset)
    said("export", dataset, "--to", to, "--out", tmp_path / "out")
    expected = content(tmp_path / "out")
    said("export", there, "--to", to, "--out", tmp_path / "from_bucket")
    assert content(tmp_path / "from_bucket") == expected
    said("export", there, "--to", to, "--out", f"{bucket.url}/out/")
    assert content(f"{bucket.url}/out") == expected


def test_croissant_points_to_the_bucket(said, refused, bucket, dataset):
    there = bucket.put_tree("dataset", dataset)
    said("export", there, "--to", "croissant", "--out", there)
    beside = json.loads(storage.read_bytes(f"{there}/croissant.json"))
    said("export", there, "--to", "croissant", "--out", f"{bucket.url}/meta")
    apart = json.loads(storage.read_bytes(f"{bucket.url}/meta/croissant.json"))
    assert bucket.names("meta") == ["croissant.json"]
    urls, paths = (
        [file.get("contentUrl") or file["includes"] for file in one["distribution"]] for one in (apart, beside)
    )
    assert urls == [f"{there}/{path}" for path in paths]
    assert storage.exists(urls[0])
    line = refused("export", dataset, "--to", "croissant", "--out", f"{bucket.url}/lost")
    assert "is local; export into the dataset itself" in line


def test_an_export_takes_no_place_that_holds_files(refused, bucket, dataset):
    storage.write_bytes(f"{bucket.url}/full/mine", b"mine")
    line = refused("export", dataset, "--to", "webdataset", "--out", f"{bucket.url}/full")
    assert line.endswith("/full', which holds files; name a new or empty directory")
    assert bucket.names("full") == ["mine"]
    assert "-not/out'" in refused("export", dataset, "--to", "webdataset", "--out", f"{bucket.url}-not/out")


def test_what_a_killed_export_left_in_a_bucket_is_no_export_and_is_cleared_by_the_next(said, bucket, dataset):
    url = f"{bucket.url}/out"
    for name in (staging.MARK, "train-000007.tar", ".0123.tmp"):
        storage.write_bytes(f"{url}/{name}", b"half")
    said("export", dataset, "--to", "webdataset", "--out", url)
    assert bucket.names("out") == [
        "eval-000000.tar",
        "eval-000001.tar",
        "export.json",
        "train-000000.tar",
        "train-000001.tar",
    ]


def test_a_bucket_that_takes_no_more_is_one_line_and_the_same_command_ends(said, refused, bucket, dataset):
    """The store refuses everything after the first file, so nothing can be removed either: as if it was killed."""
    writes = []

    def refuse(asked) -> int:
        if asked.method in ("PUT", "POST", "DELETE"):
            writes.append(asked)
        return 403 if any("train-000000.tar" in one.path for one in writes) else 0

    url = f"{bucket.url}/out"
    bucket.tap.refuse = refuse
    line = refused("export", dataset, "--to", "webdataset", "--out", url, code=1)
    assert ("cannot be written" in line, "run the same command again" in line) == (True, True)
    bucket.tap.refuse = lambda _: 0
    left = bucket.names("out")
    assert staging.MARK in left
    assert staging.EXPORT_NAME not in left
    said("export", dataset, "--to", "webdataset", "--out", url)
    assert staging.EXPORT_NAME in bucket.names("out")
    assert staging.MARK not in bucket.names("out")


def test_an_export_that_fails_leaves_nothing_in_the_bucket(refused, bucket, dataset):
    shard = dataset / "Split-eval" / "data-00001-of-00002.tfrecord"
    shard.write_bytes(flipped(shard.read_bytes(), -20))
    assert "corrupt record" in refused("export", dataset, "--to", "webdataset", "--out", f"{bucket.url}/out", code=3)
    assert bucket.names("out") == []


def test_of_two_exports_to_one_place_the_later_one_stays(bucket):
    url = staging.check_remote(f"{bucket.url}/out")

    def both() -> None:
        with staging.mark_remote(url), staging.mark_remote(url) as later:
            storage.write_bytes(f"{url}/a", b"1")
            staging.check_mark(url, later)
            storage.write_bytes(f"{url}/{staging.EXPORT_NAME}", b"{}")

    with pytest.raises(FeedlineError, match="another export to .* has started"):
        both()
    assert bucket.names("out") == ["a", staging.EXPORT_NAME]


# The command itself, stopped in the second of its files until a signal comes.
STOPPED = """
import sys, time
from beam_jobs.common import system
from pipeline import cli
add = system.local_progress.add
def stop(done):
    add(done)
    if system.local_progress.read().images == 15:
        print("at work", flush=True)
        time.sleep(600)
system.local_progress.add = stop
cli.main(["export", sys.argv[1], "--to", "webdataset", "--out", sys.argv[2]])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_an_export_into_a_bucket_that_is_stopped_leaves_nothing_that_looks_whole(
    said, s3_bucket, dataset, number, code
):
    url = f"{s3_bucket.url}/out"
    command = [sys.executable, "-W", "ignore", "-c", STOPPED, str(dataset), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "at work\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    left = s3_bucket.names("out")
    assert staging.EXPORT_NAME not in left
    if code > 0:
        assert left == []
        assert err.splitlines()[-1] == f"feedline: error: interrupted; nothing was exported, {url} is unchanged"
    else:
        assert {staging.MARK, "train-000000.tar"} <= set(left)
    said("export", dataset, "--to", "webdataset", "--out", url)
    assert staging.EXPORT_NAME in s3_bucket.names("out")
    assert not [name for name in s3_bucket.names("out") if name.startswith(".")]
