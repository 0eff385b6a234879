from __future__ import annotations

import dataclasses
import shutil

import pytest

from beam_jobs.dataset import manifest
from beam_jobs.dataset.manifest import Shard
from beam_jobs.errors import CorruptDataset, DatasetChanged
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions
from tests import image_table
from trainer.input.index import RecordIndex, load_index


def index_of(directory, split="train") -> RecordIndex:
    return load_index(str(directory), manifest.load(str(directory)), split)


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
        CorruptDataset, match=r"the image table of .* does not name the records that the shards of 'train'"
    ):
        load_index(copy, changed, "train")


def test_records_left_out_close_the_gap(shades):
    index = index_of(shades)
    rest = index.exclude({0, 95, 40})
    kept = [number for number in range(96) if number not in {0, 95, 40}]
    for name in ("shard", "offset", "label"):
        assert getattr(rest, name).tolist() == getattr(index, name)[kept].tolist()
    assert (rest.files, rest.size) == (index.files, index.size)
    assert len(index.exclude(())) == 96
    assert rest.exclude({0}).split_numbers.tolist() == kept[1:]
