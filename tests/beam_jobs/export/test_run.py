"""Exports as a whole: what goes where, in bounded memory, and that nothing half stands where an export belongs."""

from __future__ import annotations

import json
import os
import re
import signal
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from beam_jobs import ingest, storage
from beam_jobs.dataset import manifest, shards
from beam_jobs.errors import CorruptDataset, OptionError, SourceError
from beam_jobs.export import formats, staging
from beam_jobs.export.options import STREAMED, ExportOptions
from beam_jobs.export.run import EXPORT_NAME, Exported, export
from beam_jobs.options import About, IngestOptions
from tests.beam_jobs.runs import files_under
from tests.command import python
from tests.make_images import encode, flipped
from tests.rewrite_records import rewrite


def run(dataset: Path, to: str, out: Path, **given) -> Exported:
    return export(ExportOptions(dataset=str(dataset), to=to, out=str(out), **given))


def images_of(exported: Exported) -> dict[str, int]:
    return {split: sum(file.samples for file in files) for split, files in exported.splits.items()}


@pytest.mark.parametrize("to", STREAMED)
def test_a_copy_has_every_image_what_it_holds_and_the_same_bytes_each_time(dataset, tmp_path, to):
    exported = run(dataset, to, tmp_path / "out")
    published = manifest.load(str(dataset))
    assert images_of(exported) == {name: info.records for name, info in published.splits.items()}
    said = json.loads((tmp_path / "out" / EXPORT_NAME).read_text())
    assert said == exported.to_json()
    assert said["digest"] == published.digest
    sizes = {file["name"]: file["bytes"] for part in said["splits"].values() for file in part["files"]}
    assert sizes == {name: (tmp_path / "out" / name).stat().st_size for name in sizes}
    assert len(sizes) == 4
    (tmp_path / "again").mkdir()  # empty, so it may be taken
    run(dataset, to, tmp_path / "again")
    assert files_under(tmp_path / "out") == files_under(tmp_path / "again")
    assert not any(name.endswith((".tmp", "feedline-export")) for name in os.listdir(tmp_path))


@pytest.mark.parametrize("to", ["parquet", "dali"])
def test_one_split_is_exported_alone(dataset, tmp_path, to):
    exported = run(dataset, to, tmp_path / "out", splits=("eval",))
    assert list(exported.splits) == ["eval"]
    assert not any("train" in name for name in files_under(tmp_path / "out"))


def test_files_are_as_large_as_asked(dataset, tmp_path):
    info = manifest.load(str(dataset)).splits["train"]
    exported = run(dataset, "webdataset", tmp_path / "out", splits=("train",), shard_mb=0.02)
    count = shards.shard_count(info.bytes, info.records, 20_000)
    assert count > len(info.shards)
    assert [file.name for file in exported.splits["train"]] == [f"train-{index:06d}.tar" for index in range(count)]


@pytest.mark.parametrize("count", [1, 7])
def test_samples_are_cut_where_shards_would_be(dataset, count):
    published = manifest.load(str(dataset))
    info = published.splits["train"]
    found = list(formats.numbered_samples(formats.read_samples(str(dataset), published, "train"), info, count))
    sizes = [len(sample.payload) + 16 for _, sample in found]
    edges = [0, *shards.Cutter(len(sizes), sum(sizes), count).cut(np.array(sizes)), len(sizes)]
    assert [file for file, _ in found] == [n for n in range(count) for _ in range(edges[n], edges[n + 1])]


def test_a_sample_at_a_time_is_read(dataset):
    published = manifest.load(str(dataset))
    stream = formats.read_samples(str(dataset), published, "train")
    first = next(stream)
    for shard in published.shard_paths(str(dataset), "train")[1:]:
        os.remove(shard)  # so nobody has looked at it yet
    assert first.key
    with pytest.raises(CorruptDataset, match=r"data-00001-of-00002.tfrecord cannot be read: No such file"):
        list(stream)


# --- what is refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"to": "zip"}, "to is 'zip'; it must be one of webdataset, array_record, parquet, croissant, dali"),
        ({"to": "parquet", "shard_mb": 0}, "shard_mb is 0; it must be a number of at least 0.001"),
        ({"to": "dali", "shard_mb": 1}, "shard_mb has no effect with dali"),
        ({"to": "croissant", "splits": ("train",)}, "splits have no effect with croissant"),
        ({"to": "parquet", "splits": ("train", "train")}, "the split 'train' is given twice"),
        ({"to": "webdataset", "about": About(citation="@misc{a}")}, "citation has no effect with webdataset"),
    ],
)
def test_options_that_cannot_be_are_named(given, message):
    with pytest.raises(OptionError, match=message):
        ExportOptions(dataset="dataset", out="out", **given)


@pytest.mark.parametrize("to", ["webdataset", "croissant"])
def test_a_file_and_a_directory_that_holds_something_are_left_alone(dataset, tmp_path, to):
    mine = tmp_path / "out" / "mine"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(OptionError, match="which holds files; name a new or empty directory"):
        run(dataset, to, mine.parent)
    with pytest.raises(OptionError, match="which is a file; name a new or empty directory"):
        run(dataset, to, mine)
    assert mine.read_text() == "mine"


def test_an_unknown_split_and_no_dataset_are_named(dataset, tmp_path):
    with pytest.raises(OptionError, match="the dataset has no split 'tets'; it has train, eval"):
        run(dataset, "webdataset", tmp_path / "out", splits=("tets",))
    with pytest.raises(SourceError, match="is not a dataset"):
        run(tmp_path, "webdataset", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- what goes wrong on the way


def test_a_damaged_shard_leaves_nothing_behind(dataset, tmp_path):
    shard = dataset / "Split-eval" / "data-00001-of-00002.tfrecord"
    shard.write_bytes(flipped(shard.read_bytes(), -20))
    with pytest.raises(CorruptDataset, match="data-00001-of-00002.tfrecord has a corrupt record at offset"):
        run(dataset, "parquet", tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["dataset"]


def test_a_shard_that_lost_records_is_noticed(dataset, tmp_path):
    shard = dataset / "Split-train" / "data-00000-of-00002.tfrecord"
    first = int.from_bytes(shard.read_bytes()[:8], "little") + 16
    shard.write_bytes(shard.read_bytes()[:first])
    with pytest.raises(CorruptDataset, match=r"has 1 records, dataset.json has \d+"):
        run(dataset, "webdataset", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_exports_to_one_place_do_not_meet(tmp_path):
    out = staging.check(str(tmp_path / "out"))
    with staging.staged(out) as stage:
        storage.write_bytes(os.path.join(stage.path, "first"), b"1")
        with pytest.raises(OptionError, match="another export to .* is running"), staging.staged(out):
            pass
    assert os.listdir(out) == ["first"]


def test_what_appears_at_the_place_meanwhile_is_kept(tmp_path):
    out = staging.check(str(tmp_path / "out"))
    with pytest.raises(OptionError, match="which cannot be replaced: Directory not empty"), staging.staged(out):
        storage.write_bytes(os.path.join(out, "mine"), b"1")
    assert os.listdir(tmp_path) == ["out"]


# Exports, and stops itself hard where a signal would: in the middle of the second file.
KILLED = """
import os, signal, sys
from beam_jobs.common import system
from beam_jobs.export.options import ExportOptions
from beam_jobs.export.run import export
add, number = system.local_progress.add, getattr(signal, sys.argv[4])
def counted(done):
    add(done)
    if system.local_progress.read().images == 15:
        os.kill(os.getpid(), number)
system.local_progress.add = counted
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
try:
    export(ExportOptions(dataset=sys.argv[1], to=sys.argv[2], out=sys.argv[3]))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGKILL", -signal.SIGKILL)])
def test_an_export_that_is_stopped_leaves_nothing_that_looks_whole(dataset, tmp_path, name, code):
    out = tmp_path / "out"
    done = python(KILLED, dataset, "webdataset", out, name)
    assert done.returncode == code, done.stderr
    assert not out.exists()
    left = sorted(path for path in os.listdir(tmp_path) if path != "dataset")
    assert left == ([] if name == "SIGINT" else [".out.feedline-export", ".out.feedline-export-lock"])
    run(dataset, "webdataset", out)
    assert sorted(os.listdir(tmp_path)) == ["dataset", "out"]


def test_memory_does_not_grow_with_the_dataset(tmp_path):
    """Two exports, the second of eight times the images: what they hold at most differs by less than those images."""
    peaks = []
    for number, images in enumerate((5, 40)):
        photos = tmp_path / f"photos{number}" / "noise"
        photos.mkdir(parents=True)
        for index in range(images):
            noise = np.random.default_rng(index).integers(0, 256, (256, 256, 3), np.uint8)  # does not shrink
            (photos / f"{index}.png").write_bytes(encode(noise, "PNG"))
        dataset = tmp_path / f"dataset{number}"
        ingest.run(IngestOptions(source=str(photos.parent), out=str(dataset), splits={"all": 1}, facts="basic"))
        run(dataset, "webdataset", tmp_path / f"warm{number}")
        tracemalloc.start()
        run(dataset, "webdataset", tmp_path / f"out{number}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1_000_000


# --- datasets of strangers: their checksums are right


def bytes_of(name: str, value: bytes):
    return lambda features: features[name].bytes_list.value.__setitem__(0, value)


FORGED = {
    "another format": (bytes_of("image/format", b"webp"), "its image is b'webp'; it must be jpeg, png or raw"),
    "another image": (bytes_of("image/encoded", b"x"), "does not match its sha256"),
    "two images": (lambda features: features["image/encoded"].bytes_list.value.append(b"x"), "ValueError"),
    "no key": (lambda features: features.pop("image/filename"), "KeyError"),
    "no label": (lambda features: features.pop("image/class/label"), "KeyError"),
    "a key of bytes": (bytes_of("image/filename", b"\xff"), "UnicodeDecodeError"),
    "numbers for bytes": (lambda features: features["image/format"].int64_list.value.append(1), "it must hold bytes"),
}


FORGED_OF = [(name, ("webdataset", "parquet")[place % 2]) for place, name in enumerate(FORGED)]


@pytest.mark.parametrize(("name", "to"), FORGED_OF)
def test_a_record_that_no_ingest_writes_is_named_with_its_place(dataset, tmp_path, name, to):
    change, message = FORGED[name]
    path = rewrite(dataset, change)
    with pytest.raises(
        CorruptDataset, match=rf"{re.escape(path)} at offset 0 is not a record of a dataset: .*({message})"
    ):
        run(dataset, to, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["dataset"]


@pytest.mark.parametrize(
    ("to", "name", "content"),
    [
        *(("parquet", "features.json", text) for text in ("[" * 100_000, "[]", '{"featuresDict": 3}')),
        *(("array_record", "dataset_info.json", text) for text in ("3", "{}", '{"splits": [3]}')),
    ],
    ids=lambda value: value[:20],
)
def test_a_description_that_is_none_is_named(dataset, tmp_path, to, name, content):
    (dataset / name).write_text(content)
    with pytest.raises(CorruptDataset, match=f"{name} cannot be"):
        run(dataset, to, tmp_path / "out")
