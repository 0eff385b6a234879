from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from beam_jobs import storage
from beam_jobs.dataset import manifest, schemas
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import CorruptDataset, OptionError, SourceError
from beam_jobs.stages import work_dir
from beam_jobs.stages.upgrade import upgrade
from tests import image_table
from tests.beam_jobs import gcs_server
from tests.beam_jobs.runs import files_under, shards_under


@pytest.fixture
def old(dataset) -> Path:
    image_table.make_format_1(dataset)
    assert verify(str(dataset)).problems == []
    return dataset


def test_the_rows_the_shards_and_the_digest_stay(old, monkeypatch):
    monkeypatch.setattr(schemas, "IMAGE_ROWS", 1)  # a row group for each batch that is read
    rows, shards, digest = image_table.read(old), shards_under(old), manifest.load(str(old)).digest
    assert upgrade(str(old)) is True
    upgraded = manifest.load(str(old))
    assert (upgraded.format_version, upgraded.digest) == (2, digest)
    assert image_table.read(old) == rows
    assert shards_under(old) == shards
    assert not (old / "images.parquet").exists()
    assert verify(str(old)).problems == []
    files = files_under(old)
    assert upgrade(str(old)) is False
    assert files_under(old) == files


def test_a_table_of_many_row_groups_becomes_several_files(old, monkeypatch):
    monkeypatch.setattr("beam_jobs.stages.upgrade._PART_GROUPS", 2)
    monkeypatch.setattr(schemas, "IMAGE_ROWS", 5)
    monkeypatch.setattr("beam_jobs.storage.parquet._BATCH_ROWS", 5)
    rows = image_table.read(old)
    upgrade(str(old))
    assert [part.rows for part in manifest.load(str(old)).images] == [10, 10, 4]
    assert image_table.read(old) == rows
    assert verify(str(old)).problems == []


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (Path.unlink, "is missing; write the dataset again"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "has changed since it was published; write the"),
    ],
)
def test_a_damaged_table_is_refused_and_nothing_changes(old, harm, message):
    harm(old / "images.parquet")
    files = files_under(old)
    with pytest.raises(CorruptDataset, match=f"^{old / 'images.parquet'} {message}"):
        upgrade(str(old))
    assert files_under(old) == files


def test_what_a_killed_upgrade_left_goes(old):
    table = shutil.copy(old / "images.parquet", old.parent)
    upgrade(str(old))
    shutil.copy(table, old)
    assert upgrade(str(old)) is False
    assert not (old / "images.parquet").exists()


def test_no_dataset_and_one_that_is_written_are_refused(old, tmp_path):
    with pytest.raises(SourceError, match="is not a dataset"):
        upgrade(str(tmp_path / "none"))
    with work_dir.exclusive(str(old)), pytest.raises(OptionError, match="is in use by another ingest"):
        upgrade(str(old))
    (old / "_work").mkdir()
    (old / "_work" / "mine").write_text("of another program")
    with pytest.raises(OptionError, match="_work was not created by Feedline; move it elsewhere"):
        upgrade(str(old))
    assert manifest.load(str(old)).format_version == 1


def test_a_dataset_in_a_store_is_upgraded(old, monkeypatch, tmp_path):
    with gcs_server.serving(monkeypatch, tmp_path) as server:
        for name, data in files_under(old).items():
            storage.write_bytes(f"gs://bucket/out/{name}", data)
        server.asked.clear()
        assert upgrade("gs://bucket/out") is True
        assert not [asked for asked in server.asked if ".tfrecord" in asked]
        assert "out/images.parquet" not in server.objects
        assert verify("gs://bucket/out").problems == []
