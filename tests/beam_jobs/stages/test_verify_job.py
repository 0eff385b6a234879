from __future__ import annotations

import shutil

import pytest

from beam_jobs import ingest
from beam_jobs.dataset import manifest, verify
from beam_jobs.errors import DatasetChanged, OptionError, SourceError
from beam_jobs.options import IngestOptions
from beam_jobs.runners.beam_job import local_pipeline
from beam_jobs.stages.verify_job import verify_on_runner
from tests import image_table
from tests.beam_jobs.runs import files_under
from tests.make_images import flipped, png

SHARD = "Split-train/data-00001-of-00002.tfrecord"


@pytest.mark.parametrize("format_version", [1, 2])
def test_workers_find_what_one_process_finds(dataset, tmp_path, format_version):
    if format_version == 1:
        image_table.make_format_1(dataset)
    expected = verify.verify(str(dataset))
    assert (expected.shards, expected.records, expected.problems) == (4, 24, [])
    before = files_under(dataset)
    assert verify_on_runner(str(dataset), local_pipeline, str(tmp_path / "work")) == expected
    assert files_under(dataset) == before
    assert not (tmp_path / "work").exists()


def test_problems_of_every_file_reach_the_caller_in_order(dataset, tmp_path):
    (dataset / SHARD).write_bytes(flipped((dataset / SHARD).read_bytes(), -1))
    image_table.files(dataset)[0].write_bytes(b"no table")
    (dataset / "rejects.parquet").unlink()
    expected = verify.verify(str(dataset))
    assert len(expected.problems) > 3
    assert verify_on_runner(str(dataset), local_pipeline, str(tmp_path / "work")) == expected


def test_each_image_is_read_by_a_worker(dataset, tmp_path, monkeypatch):
    inside = []
    check = verify.UnitChecker.check
    monkeypatch.setattr(verify.UnitChecker, "check", lambda self, unit: inside.append(unit) or check(self, unit))
    verify_on_runner(str(dataset), local_pipeline, str(tmp_path / "work"))
    assert sorted(inside) == sorted(verify.list_units(manifest.load(str(dataset))))
    assert len(inside) == 8


def test_a_work_directory_that_is_in_use_stays(dataset, tmp_path):
    with pytest.raises(OptionError, match="is not empty; name a new directory"):
        verify_on_runner(str(dataset), local_pipeline, str(dataset))
    assert manifest.is_published(str(dataset))
    with pytest.raises(SourceError):
        verify_on_runner(str(tmp_path / "nothing"), local_pipeline, str(tmp_path / "work"))
    assert not (tmp_path / "work").exists()


def test_a_dataset_that_is_replaced_meanwhile_is_no_damaged_one(dataset, tmp_path):
    def make_pipeline():
        shutil.rmtree(dataset)
        ingest.run(IngestOptions(source=str(photos), out=str(dataset), seed=1))
        return local_pipeline()

    photos = tmp_path / "photos"
    (photos / "a").mkdir(parents=True)
    for number in range(40):
        (photos / "a" / f"{number}.png").write_bytes(png(number, 8, 8))
    with pytest.raises(DatasetChanged, match="was replaced while it was verified; run the command again"):
        verify_on_runner(str(dataset), make_pipeline, str(tmp_path / "work"))
