from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from beam_jobs import storage
from beam_jobs.common.system import Progress
from beam_jobs.errors import OptionError
from beam_jobs.stages import work_dir
from beam_jobs.storage import lock
from tests.beam_jobs import kill
from tests.beam_jobs.object_store import SCHEME

DIED = 77
LOOSE = 20


def test_an_ingest_whose_lock_another_one_has_stops_before_its_next_stage(tmp_path):
    place = f"{SCHEME}://{tmp_path}/out"
    with work_dir.exclusive(place) as check:
        check()
        other = lock.Owner(host="far", machine="far")
        storage.write_bytes(f"{place}/.feedline-lock", other.to_bytes())
        match = r"out is in use by another ingest: process \d+ on host far .*; this process was stopped for 30 s, after"
        with pytest.raises(OptionError, match=match):
            check()


@pytest.fixture
def out(tmp_path) -> Path:
    """A published dataset that still has its work directory."""
    made = tmp_path / "out"
    work_dir.create(str(made), str(made / "_work"))
    loose = [f"{number}.tmp" for number in range(LOOSE)]  # one of them is likely to come after the mark in any order
    for name in ("examined/a/part", "plan/0", "written/train/0", *loose):
        path = made / "_work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (made / "dataset.json").write_text("{}")
    return made


def removed(work: Path, dies_at: int) -> int | None:
    """Removes a work directory in a child that ends before it removes so many files and directories."""

    def hook(event: str, _: tuple, number: itertools.count = itertools.count(1)) -> None:  # noqa: B008 - of this call
        if event in ("os.remove", "os.rmdir") and next(number) == dies_at:
            os._exit(DIED)

    return kill.in_a_child(lambda: (sys.addaudithook(hook), work_dir.remove(str(work))))


def test_what_is_left_of_a_work_directory_at_any_moment_is_removed_by_the_next_run(out):
    whole = out.with_name("whole")
    shutil.copytree(out, whole)
    moments = 0
    for dies_at in itertools.count(1):
        shutil.rmtree(out)
        shutil.copytree(whole, out)
        code = removed(out / "_work", dies_at)
        if code == 0:
            break
        assert (code, (out / "_work").exists()) == (DIED, True)
        moments += 1
        with pytest.raises(OptionError, match="already holds a dataset"):
            work_dir.check_out(str(out.parent / "photos"), str(out))
        assert os.listdir(out) == ["dataset.json"]
    assert moments == 4 + LOOSE + 6  # files, directories


def test_a_directory_of_that_name_that_is_not_ours_is_kept(out):
    (out / "_work" / "feedline.json").unlink()
    with pytest.raises(OptionError, match="already holds a dataset"):
        work_dir.check_out(str(out.parent / "photos"), str(out))
    assert (out / "_work" / "plan" / "0").exists()


def test_a_work_directory_that_somebody_removed_is_no_error(out):
    shutil.rmtree(out / "_work")
    work_dir.remove(str(out / "_work"))
    assert os.listdir(out) == ["dataset.json"]


def test_a_monitor_reads_how_far_a_stage_is(tmp_path, monkeypatch):
    monkeypatch.setattr(work_dir, "_PROGRESS_S", 0.02)
    path, work, done = tmp_path / "_work" / "progress.json", str(tmp_path / "_work"), []

    def read() -> Progress:
        done.append(Progress(len(done) * 10, len(done) * 1000, len(done)))
        return done[-1]

    work_dir.create(str(tmp_path), work)
    seen = []
    with work_dir.progress_file(work, "examining", Progress(1_000_000), read):
        while len(seen) < 3:
            values = json.loads(path.read_text())
            seen += [values] if values not in seen else []
    assert seen[0] | {"updated": "", "images_per_s": 0} == {
        "stage": "examining",
        "done": 0,
        "of": 1_000_000,
        "rejects": 0,
        "bytes": 0,
        "images_per_s": 0,
        "updated": "",
        "estimated_end": None,
    }
    later = seen[-1]
    assert (later["done"], later["bytes"], later["rejects"]) in {(one.images, one.bytes, one.rejects) for one in done}
    updated, end = (datetime.fromisoformat(later[name]) for name in ("updated", "estimated_end"))
    expected = (1_000_000 - later["done"]) / later["images_per_s"]
    assert abs((end - updated).total_seconds() - expected) <= 2
    assert updated.utcoffset() == timedelta()
    assert json.loads(path.read_text())["done"] == done[-1].images  # the last state of the stage


def test_the_progress_of_a_stage_does_not_bring_back_a_directory_that_was_removed(tmp_path):
    with work_dir.progress_file(str(tmp_path / "_work"), "examining", Progress(1)):
        pass
    assert list(tmp_path.iterdir()) == []
