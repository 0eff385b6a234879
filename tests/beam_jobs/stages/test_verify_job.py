from __future__ import annotations

import shutil

import pytest

from beam_jobs import ingest
from beam_jobs.dataset import verify
from beam_jobs.errors import DatasetChanged, FeedlineError, SourceError
from beam_jobs.options import IngestOptions
from beam_jobs.runners.beam_job import local_pipeline
from beam_jobs.stages import resume
from beam_jobs.stages.verify_job import verify_on_runner
from tests import image_table
from tests.beam_jobs.runs import files_under
from tests.make_images import flipped

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


def test_problems_of_every_file_reach_the_caller_in_order(dataset, tmp_path):
    (dataset / SHARD).write_bytes(flipped((dataset / SHARD).read_bytes(), -1))
    image_table.files(dataset)[0].write_bytes(b"no table")
    (dataset / "rejects.parquet").unlink()
    expected = verify.verify(str(dataset))
    assert len(expected.problems) > 3
    assert verify_on_runner(str(dataset), local_pipeline, str(tmp_path / "work")) == expected


def test_only_the_reports_are_removed(dataset, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "other").write_bytes(b"")
    verify_on_runner(str(dataset), local_pipeline, str(tmp_path / "work"))
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["other"]
    with pytest.raises(SourceError):
        verify_on_runner(str(tmp_path / "nothing"), local_pipeline, str(tmp_path / "work"))
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["other"]


def test_reports_that_do_not_arrive_are_named(dataset, tmp_path, monkeypatch):
    write = resume.write_checked
    monkeypatch.setattr(resume, "write_checked", lambda path, values: write(path + ".lost", values))
    with pytest.raises(FeedlineError, match="of a worker cannot be read .* name a --work that all these machines can"):
        verify_on_runner(str(dataset), local_pipeline, str(tmp_path / "work"))


def test_a_dataset_that_is_replaced_meanwhile_is_no_damaged_one(photos, dataset, tmp_path):
    def make_pipeline():
        shutil.rmtree(dataset)
        ingest.run(IngestOptions(source=str(photos), out=str(dataset), splits={"train": 1, "eval": 1}, seed=1))
        return local_pipeline()

    with pytest.raises(DatasetChanged, match="was replaced while it was verified; run the command again"):
        verify_on_runner(str(dataset), make_pipeline, str(tmp_path / "work"))
