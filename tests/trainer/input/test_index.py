from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from beam_jobs.dataset import manifest, schemas
from beam_jobs.dataset.manifest import Shard
from beam_jobs.errors import CorruptDataset, DatasetChanged
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions
from tests import image_table
from tests.beam_jobs import s3_server
from tests.trainer.batches import index_of
from tests.trainer.conftest import rows_of
from trainer.input.index import load_index


def test_the_average_size_is_that_in_the_files(dataset):
    info = manifest.load(str(dataset)).split("train")
    assert index_of(dataset).record_bytes == pytest.approx(info.bytes / info.records)


def test_records_of_other_splits_and_dropped_copies_are_not_in_it(photos, tmp_path):
    source, out = shutil.copytree(photos, tmp_path / "photos"), tmp_path / "out"
    shutil.copy(source / "china" / "000.jpg", source / "china" / "copy.jpg")
    run(IngestOptions(source=str(source), out=str(out), splits={"train": 1}, duplicates="drop"))
    rows = image_table.read(out).to_pylist()
    assert min(row["shard"] for row in rows) == -1
    assert len(rows) == 25
    assert len(index_of(out)) == 24


def test_a_table_of_other_shards_is_refused(shades, tmp_path):
    dataset = manifest.load(str(shades))
    first, *others = dataset.split("train").shards
    fewer = Shard(name=first.name, records=first.records - 1, bytes=first.bytes, sha256=first.sha256)
    split = dataclasses.replace(dataset.split("train"), shards=(fewer, *others))
    changed = dataclasses.replace(dataset, splits={"train": split})
    with pytest.raises(DatasetChanged, match=f"^{shades} was replaced by another dataset while it was read; start"):
        load_index(str(shades), changed, "train")
    copy = str(shutil.copytree(shades, tmp_path / "copy"))
    manifest.write(changed, copy)
    with pytest.raises(
        CorruptDataset, match=r"the image table of .* does not list the records in the shards of 'train'"
    ):
        load_index(copy, changed, "train")


def opened(monkeypatch) -> list[tuple[str, set[str]]]:
    """File and columns of each part of the image table that is read from now on."""
    found = []
    read = schemas.read_images

    def read_images(paths, columns):
        found.extend((Path(path).name, set(columns)) for path in paths)
        return read(paths, columns)

    monkeypatch.setattr(schemas, "read_images", read_images)
    return found


def test_only_files_of_the_split_are_read_and_two_columns_of_a_shard(dataset, monkeypatch):
    expected = rows_of(dataset, "train")
    found = opened(monkeypatch)
    index = index_of(dataset)
    assert sorted(name for name, _ in found) == [f"part-train-{number:05d}.parquet" for number in range(2)]
    assert all(columns - {"height", "width"} == {"offset", "label_index"} for _, columns in found)
    for name, column in (("shard", "shard"), ("offset", "offset"), ("label", "label_index")):
        assert getattr(index, name).tolist() == [row[column] for row in expected]


def test_rows_of_any_shard_in_one_file_are_those_of_their_shards(photos, tmp_path, monkeypatch):
    source, out = shutil.copytree(photos, tmp_path / "photos"), tmp_path / "out"
    later = [(path, path.read_bytes()) for path in sorted(source.glob("*/00*.jpg"))[:4]]
    for path, _ in later:
        path.unlink()
    options = IngestOptions(source=str(source), out=str(out), splits={"train": 0.5, "eval": 0.5}, shards=2)
    run(options)
    for path, data in later:
        path.write_bytes(data)
    run(dataclasses.replace(options, append=True))
    found = opened(monkeypatch)
    for split in ("train", "eval"):
        expected, index = rows_of(out, split), index_of(out, split)
        assert index.shard.tolist() == [row["shard"] for row in expected]
        assert index.offset.tolist() == [row["offset"] for row in expected]
    assert "part-existing.parquet" in {name for name, _ in found}


def test_the_index_of_a_dataset_in_a_store_is_that_of_the_dataset(shades, monkeypatch):
    bucket = s3_server.new_bucket(monkeypatch)
    for path in Path(shades).rglob("*"):
        if path.is_file():
            s3_server.put(bucket, f"set/{path.relative_to(shades)}", path.read_bytes())
    local, remote = index_of(shades), index_of(f"{bucket}/set")
    for name in ("shard", "offset", "label"):
        assert getattr(remote, name).tolist() == getattr(local, name).tolist()
    assert remote.size == local.size


def test_a_manifest_that_names_more_records_than_fit_in_memory_is_refused(shades, tmp_path):
    dataset = manifest.load(str(shades))
    first, *others = dataset.split("train").shards
    split = dataclasses.replace(dataset.split("train"), shards=(dataclasses.replace(first, records=1 << 60), *others))
    copy = str(shutil.copytree(shades, tmp_path / "copy"))
    manifest.write(dataclasses.replace(dataset, splits={**dataset.splits, "train": split}), copy)
    with pytest.raises(CorruptDataset, match=r"does not list the records in the shards of 'train'"):
        index_of(copy)


def test_records_left_out_close_the_gap(shades):
    index = index_of(shades)
    rest = index.exclude({0, 95, 40})
    kept = [number for number in range(96) if number not in {0, 95, 40}]
    for name in ("shard", "offset", "label"):
        assert getattr(rest, name).tolist() == getattr(index, name)[kept].tolist()
    assert (rest.files, rest.size) == (index.files, index.size)
    assert len(index.exclude(())) == 96
    assert rest.exclude({0}).split_numbers.tolist() == kept[1:]
