from __future__ import annotations

import pytest

from beam_jobs import disk, ingest, room
from beam_jobs.errors import DiskError
from beam_jobs.options import IngestOptions, PixelOptions
from beam_jobs.scan import Scan
from tests.beam_jobs.runs import shards_under

FOUND = Scan(buckets=(), found=100, bytes=1_000_000, rejects=())


def options(tmp_path, **values) -> IngestOptions:
    return IngestOptions(source="photos", out=str(tmp_path / "out"), max_reject_ratio=0.1, **values)


def to_examine(tmp_path, **values) -> int:
    return room.to_examine(options(tmp_path, **values), FOUND, str(tmp_path / "out" / "_work"))


def test_copied_files_take_their_size_but_for_those_that_may_be_rejected(tmp_path):
    assert to_examine(tmp_path) == 900_000


def test_raw_pixels_lie_in_the_spool_and_in_the_shards(tmp_path):
    assert to_examine(tmp_path, pixels=PixelOptions(policy="raw", side_px=10)) == 90 * 2 * 300


@pytest.mark.parametrize(
    "values",
    [
        {"duplicates": "drop"},
        {"near_duplicates": "drop"},
        {"pixels": PixelOptions(policy="resize")},
        {"out": "gs://bucket/out"},
    ],
)
def test_nothing_is_asked_for_that_nobody_knows(tmp_path, values):
    chosen = IngestOptions(**{"source": "photos", "out": str(tmp_path), **values})
    assert room.to_examine(chosen, FOUND, str(tmp_path / "_work")) == 0


def test_what_an_earlier_run_wrote_needs_no_room_again(tmp_path):
    for name, size in (("out/Split-train/data", 300_000), ("out/_work/examined/spool.bin", 100_000)):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(size))
    assert to_examine(tmp_path) == 500_000


def test_shards_take_about_what_was_planned(stages, tmp_path):
    written = room.to_write(IngestOptions(source="photos", out=str(tmp_path / "new")), stages.plan)
    images = [split.images for split in stages.plan.splits]
    bytes_ = sum(sum(rows["bytes"].to_pylist()) for rows in images)
    assert bytes_ < written < 1.2 * bytes_ + 1000 * sum(map(len, images))


@pytest.mark.parametrize(("stage", "has_facts"), [("to_examine", False), ("to_write", True)])
def test_an_ingest_stops_before_the_stage_that_there_is_no_room_for(photos, tmp_path, monkeypatch, stage, has_facts):
    out = tmp_path / "out"
    asked = IngestOptions(source=str(photos), out=str(out), splits={"all": 1})
    with monkeypatch.context() as patch:
        patch.setattr(room, stage, lambda *_: 1 << 60)
        with pytest.raises(DiskError, match=r"are needed and .* are free; make room, then run the same command again"):
            ingest.run(asked)
    assert not shards_under(out)
    assert any(out.glob("_work/examined/facts-*")) == has_facts
    assert ingest.run(asked).counts.written == 24
    assert disk.used_bytes(str(out / "_work")) == 0
