from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from beam_jobs import ingest
from beam_jobs.errors import DiskError
from beam_jobs.options import IngestOptions, PixelOptions
from beam_jobs.stages import work_dir
from beam_jobs.stages.scan import Scan
from beam_jobs.storage import disk
from tests.beam_jobs.loaded_plan import load
from tests.beam_jobs.runs import Recorder, shards_under
from tests.make_images import encode
from tests.small_disk import small_disk

FOUND = Scan(buckets=(), found=100, bytes=1_200_000, copied_bytes=1_000_000, reject_files=(), reject_count=0)


def options(tmp_path, **values) -> IngestOptions:
    return IngestOptions(source="photos", out=str(tmp_path / "out"), max_reject_ratio=0.1, **values)


def to_examine(tmp_path, **values) -> int:
    return work_dir.min_bytes_to_examine(options(tmp_path, **values), FOUND, str(tmp_path / "out" / "_work"))


def test_copied_files_take_their_size_but_for_those_that_may_be_rejected(tmp_path):
    assert to_examine(tmp_path) == 900_000


def test_raw_pixels_lie_in_the_spool_and_in_the_shards(tmp_path):
    assert to_examine(tmp_path, pixels=PixelOptions(policy="raw", side_px=10)) == 90 * 2 * 300


@pytest.mark.parametrize("kind", ["duplicates", "near_duplicates"])
def test_raw_pixels_of_what_is_dropped_lie_in_the_spool(tmp_path, kind):
    assert to_examine(tmp_path, pixels=PixelOptions(policy="raw", side_px=10), **{kind: "drop"}) == 90 * 300


@pytest.mark.parametrize(
    "values", [{"duplicates": "drop"}, {"pixels": PixelOptions(policy="resize")}, {"out": "gs://bucket/out"}]
)
def test_nothing_is_asked_for_that_nobody_knows(tmp_path, values):
    chosen = IngestOptions(**{"source": "photos", "out": str(tmp_path), **values})
    assert work_dir.min_bytes_to_examine(chosen, FOUND, str(tmp_path / "_work")) == 0


def test_what_an_earlier_run_wrote_needs_no_room_again(tmp_path):
    for name, size in (("out/Split-train/data", 30_000), ("out/_work/examined/spool.bin", 10_000)):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(size))
    assert to_examine(tmp_path) == 900_000 - 30_000  # the spool holds what is changed, and that is not counted
    assert to_examine(tmp_path, pixels=PixelOptions(policy="raw", side_px=10)) == 90 * 2 * 300 - 40_000


def test_shards_take_about_what_was_planned(stages, tmp_path):
    written = work_dir.bytes_to_write(IngestOptions(source="photos", out=str(tmp_path / "new")), stages.plan)
    images = [load(split).images for split in stages.plan.splits]
    bytes_ = sum(sum(rows["bytes"].to_pylist()) for rows in images)
    assert bytes_ < written < 1.2 * bytes_ + 1000 * sum(map(len, images))


@pytest.mark.parametrize(("stage", "has_facts"), [("min_bytes_to_examine", False), ("bytes_to_write", True)])
def test_an_ingest_stops_before_the_stage_that_there_is_no_room_for(photos, tmp_path, monkeypatch, stage, has_facts):
    out = tmp_path / "out"
    asked = IngestOptions(source=str(photos), out=str(out), splits={"all": 1})
    with monkeypatch.context() as patch:
        patch.setattr(work_dir, stage, lambda *_: 1 << 60)
        with pytest.raises(DiskError, match=r"are needed and .* are free; make room, then run the same command again"):
            ingest.run(asked)
    assert not shards_under(out)
    assert any(out.glob("_work/examined/facts-*")) == has_facts
    assert ingest.run(asked).counts.written == 24
    assert disk.used_bytes(str(out / "_work")) == 0


@pytest.fixture
def place(tmp_path) -> Iterator[Callable[[int], Path]]:
    """Makes a disk of so many bytes, or changes the one there is."""
    with small_disk(tmp_path / "disk") as make:
        yield make


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
@pytest.mark.parametrize(
    ("duplicates", "what", "jobs"), [("report", "the dataset", 0), ("drop", "the shards", 1)], ids=["copy", "drop"]
)
def test_a_dataset_that_no_small_disk_holds_is_not_begun(photos, place, duplicates, what, jobs):
    size = sum(path.stat().st_size for path in photos.rglob("*.*"))
    out = place(size) / "out"
    asked = IngestOptions(
        source=str(photos), out=str(out), splits={"all": 1}, max_reject_ratio=0, duplicates=duplicates
    )
    recorder = Recorder()
    with pytest.raises(DiskError) as caught:
        ingest.run(asked, recorder)
    told = re.search(
        rf"not enough room for {what}, about ([\d.]+) kB are needed and ([\d.]+) kB are free", str(caught.value)
    )
    assert told, caught.value
    needed, free = (1000 * float(number) for number in told.groups())
    assert free < size <= needed + 50  # of rounding
    assert needed < size + 1000 * 24
    assert len(recorder.pipelines) == jobs  # no image is opened but in a job
    assert not shards_under(out)
    assert any(out.glob("_work/examined/*")) == bool(jobs)
    place(16 << 20)
    assert ingest.run(asked).counts.written == 24


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_images_that_become_smaller_are_not_refused(place, tmp_path):
    source = tmp_path / "source" / "grey"
    source.mkdir(parents=True)
    for number in range(10):
        (source / f"{number}.bmp").write_bytes(encode(np.full((200, 300, 3), number, np.uint8), "BMP"))
    size = sum(path.stat().st_size for path in source.iterdir())
    asked = IngestOptions(source=str(source.parent), out=str(place(size // 4) / "out"), splits={"all": 1})
    assert ingest.run(asked).counts.written == 10
