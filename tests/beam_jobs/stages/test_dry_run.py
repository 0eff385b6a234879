"""The dry run: what it says of a source, that it writes nothing, and how near it is to what then happens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from beam_jobs.errors import OptionError, SourceError
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions, PixelOptions
from beam_jobs.runners import LocalEngine, cost_estimate, dataflow, flink
from beam_jobs.sources.image_reader import Reader
from beam_jobs.stages import dry_run
from beam_jobs.stages.dry_run import estimate


def options(source, out, **more) -> IngestOptions:
    return IngestOptions(**{"source": str(source), "out": str(out), "splits": {"train": 0.7, "eval": 0.3}, **more})


def work_of(source, out, **more):
    return estimate(options(source, out, **more), LocalEngine()).work


@pytest.mark.parametrize("pixels", [{}, {"policy": "resize", "side_px": 32}, {"policy": "raw", "side_px": 40}])
def test_it_foresees_what_is_then_written(photos, tmp_path, pixels):
    wanted = options(photos, tmp_path / "out", pixels=PixelOptions(**pixels), shard_mb=0.01)
    work = estimate(wanted, LocalEngine()).work
    made = run(wanted)
    written = sum(split.bytes for split in made.splits.values())
    assert work.images == sum(split.records for split in made.splits.values()) == 24
    assert work.read_bytes == sum(path.stat().st_size for path in photos.rglob("*.*"))
    assert work.written_bytes == pytest.approx(written, rel=0.2)
    shards = {name: len(split.shards) for name, split in made.splits.items()}
    assert all(abs(work.shards[name] - count) <= 3 for name, count in shards.items())


def test_it_prints_lines_and_json_and_writes_nothing(photos, tmp_path):
    before = sorted(photos.rglob("*"))
    found = estimate(options(photos, tmp_path / "out"), LocalEngine())
    assert sorted(photos.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []
    names = [line.split()[0] for line in found.lines()]
    assert names == ["source", "sample", "work", "out", "plan", "compute", "engine", "time"]
    assert json.loads(json.dumps(found.to_json()))["work"]["shards"] == {"train": 1, "eval": 1}


def test_no_more_than_a_sample_is_read(photos, tmp_path, monkeypatch):
    source = Path(shutil.copytree(photos, tmp_path / "photos"))
    for number in range(100):
        shutil.copy(next((source / "china").glob("*.jpg")), source / "china" / f"more-{number}.jpg")
    read = []
    real = Reader.read
    monkeypatch.setattr(Reader, "read", lambda self, *args: read.append(args) or real(self, *args))
    assert work_of(source, tmp_path / "out").images == 124
    assert len(read) == dry_run.SAMPLE_IMAGES
    read.clear()
    monkeypatch.setattr(dry_run, "SAMPLE_BYTES", 20_000)
    work_of(source, tmp_path / "out")
    assert 0 < len(read) < dry_run.SAMPLE_IMAGES


def test_an_archive_is_not_unpacked_for_it(photos, tmp_path):
    packed = shutil.make_archive(str(tmp_path / "photos"), "gztar", photos)
    found = estimate(options(packed, tmp_path / "out"), LocalEngine())
    assert found.sample.images == 0
    assert found.work.images == 24
    assert found.work.core_seconds > 0
    assert "sizes are rough estimates" in "\n".join(found.lines())


def test_what_is_bad_is_counted_and_not_foreseen_as_written(photos, tmp_path):
    source = Path(shutil.copytree(photos, tmp_path / "photos"))
    whole = work_of(source, tmp_path / "out").written_bytes
    for path in sorted((source / "china").glob("*.jpg"))[:3]:
        path.write_bytes(b"no image")
    found = estimate(options(source, tmp_path / "out"), LocalEngine())
    assert found.sample.rejected == 3
    assert found.work.written_bytes < whole
    assert "3 of them bad" in "\n".join(found.lines())


def test_hidden_names_are_told(photos, tmp_path):
    source = Path(shutil.copytree(photos, tmp_path / "photos"))
    (source / "china" / ".DS_Store").touch()
    found = estimate(options(source, tmp_path / "out"), LocalEngine())
    assert "hidden     1 name passed over: china/.DS_Store" in found.lines()
    assert (found.to_json()["listing"]["hidden"], found.work.images) == (1, 24)


def test_what_cannot_be_read_is_counted_with_the_bad_images(photos, tmp_path):
    (tmp_path / "bad.jpg").symlink_to("/proc/self/mem")  # no process can read its first byte
    good = next(photos.rglob("*.jpg"))
    (tmp_path / "table.csv").write_text(f"image,label\nbad.jpg,cat\n{good},cat\n")
    assert estimate(options(tmp_path / "table.csv", tmp_path / "out"), LocalEngine()).sample.rejected == 1
    (tmp_path / "table.csv").write_text("image,label\nbad.jpg,cat\n")
    with pytest.raises(SourceError, match=r"first: bad.jpg: unreadable \(Input/output error\)$"):
        work_of(tmp_path / "table.csv", tmp_path / "out")


def test_only_what_is_new_is_counted_when_images_are_added(photos, dataset, tmp_path):
    source = Path(shutil.copytree(photos, tmp_path / "photos"))
    shutil.copy(next((source / "china").glob("*.jpg")), source / "china" / "zz-new.jpg")
    assert work_of(source, dataset, append=True).images == 1
    with pytest.raises(OptionError, match="already holds a dataset"):
        work_of(source, dataset)


def test_the_time_holds_that_of_the_start(photos, tmp_path):
    work = work_of(photos, tmp_path / "out")
    here = estimate(options(photos, tmp_path / "out", threads=1), LocalEngine()).resources
    assert here.values["seconds"] == pytest.approx(cost_estimate.LOCAL_START_SECONDS + work.core_seconds, rel=0.01)
    assert here.lines["time"].startswith("12 s, including 12 s to start, on 1 cores")
    there = flink.Options(parallelism=1).estimate_resources(work)
    assert (there.values["cores"], flink.Options(parallelism=7).estimate_resources(work).values["cores"]) == (1, 7)
    assert there.values["start_seconds"] == cost_estimate.FLINK_START_SECONDS > cost_estimate.LOCAL_START_SECONDS
    assert there.values["seconds"] == pytest.approx(cost_estimate.FLINK_START_SECONDS + work.core_seconds, rel=0.01)


def test_an_output_that_cannot_be_written_is_told_before_the_source_is_listed(photos, dataset, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    for out, said in {
        tmp_path / "file": "is a file; --out must be a new or empty directory",
        tmp_path / "file" / "out": "file/out cannot be written: .*file is a file; choose another --out",
        tmp_path / "full": "holds 'mine.txt' and is not an unfinished ingest",
        "/proc/out": "/proc/out cannot be written: /proc cannot be written by .*: .*; choose another --out",
        photos / "out": "lies inside the source",
        dataset: "already holds a dataset",
    }.items():
        with pytest.raises(OptionError, match=said):
            estimate(options(photos, out), LocalEngine())


def test_an_output_in_a_store_is_not_replaced(photos):
    with pytest.raises(OptionError, match="object stores have no folders; choose another --out"):
        estimate(options(photos, "s3://bucket/out", overwrite=True), LocalEngine())


def test_what_dataflow_cannot_run_is_refused(photos, tmp_path):
    engine = dataflow.Options(project="my-project-1", region="us-central1", temp_location="gs://bucket/tmp")
    table = tmp_path / "photos.csv"
    rows = "\n".join(f"{path},a" for path in sorted(photos.rglob("*.jpg")))
    table.write_text(f"image,label\n{rows}\n")
    with pytest.raises(OptionError, match="is on this machine"):
        estimate(options(photos, "gs://bucket/out"), engine)
    with pytest.raises(OptionError, match="--out is"):
        estimate(options(table, tmp_path / "out"), engine)
