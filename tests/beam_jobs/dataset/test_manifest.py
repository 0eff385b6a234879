from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from beam_jobs.dataset import manifest
from beam_jobs.dataset.manifest import ChannelStatistics, ImageCounts, Manifest, Remarks, Shard, SplitInfo, TablePart
from beam_jobs.errors import CorruptDataset, OptionError, SourceError

ONE = Shard(name="data-00000-of-00002.tfrecord", records=3, bytes=100, sha256="a" * 64)
TWO = Shard(name="data-00001-of-00002.tfrecord", records=2, bytes=50, sha256="b" * 64)
ONLY = Shard(name="data-00000-of-00001.tfrecord", records=1, bytes=30, sha256="c" * 64)
PART = TablePart(name="part-train-00000.parquet", rows=6, bytes=90, sha256="e" * 64, order_hashes=("1" * 16, "e" * 16))
SOUND = Manifest(
    source="photos",
    options={"seed": 0},
    options_digest="d" * 64,
    label_kind="single",
    labels=("cat", "kätzchen"),
    splits={
        "train": SplitInfo(shards=(ONE, TWO), classes={"cat": 4, "kätzchen": 1}),
        "eval": SplitInfo(shards=(ONLY,), classes={"cat": 1}),
    },
    counts=ImageCounts(found=9, written=6, rejects={"too_small": 2, "no_label": 1}, normalised={"alpha": 1}),
    channels=ChannelStatistics(split="train", mean_rgb=(1.5, 2.5, 3.5), std_rgb=(1.0, 2.0, 3.0)),
    producer={"feedline": "1"},
    images=(PART,),
    tables={"rejects.parquet": "f" * 64},
    remarks=Remarks(warnings=("mind this",), float32_changes={"age": 2}, hidden=2, hidden_names=(".x",)),
)


def test_a_manifest_survives_the_disk(tmp_path):
    assert not manifest.is_published(str(tmp_path))
    manifest.write(SOUND, str(tmp_path))
    assert manifest.is_published(str(tmp_path))
    assert manifest.load(str(tmp_path)) == SOUND
    assert [path.name for path in tmp_path.iterdir()] == ["dataset.json"]
    assert "kätzchen" in (tmp_path / "dataset.json").read_text(encoding="utf-8")


def test_a_source_whose_path_is_not_utf8_survives_the_disk_too(tmp_path):
    changed = replace(SOUND, source=os.fsdecode(b"photos\xff"))
    manifest.write(changed, str(tmp_path))
    assert manifest.load(str(tmp_path)) == changed


def test_a_dataset_of_an_older_release_has_no_remarks():
    values = replace(SOUND, remarks=Remarks()).to_json()
    del values["remarks"], values["checksum"]
    older = {**values, "checksum": manifest.content_checksum(values)}
    assert Manifest.from_json(older) == replace(SOUND, remarks=Remarks())


def test_counts_of_what_was_not_searched_survive_the_disk_and_are_absent_without_any(tmp_path):
    assert "near_unsearched" not in SOUND.to_json()["counts"]
    some = replace(SOUND, counts=replace(SOUND.counts, near_unsearched=2))
    manifest.write(some, str(tmp_path))
    assert manifest.load(str(tmp_path)) == some


QUIET = replace(SOUND, remarks=Remarks())


@pytest.mark.parametrize(
    ("classes", "warnings"),
    [
        ({"cat": 1, "kätzchen": 2}, ()),
        ({"cat": 1, "kätzchen": 0}, ("split eval has no image of 1 class: kätzchen",)),
        ({}, ("split eval has no image of 2 classes: cat, kätzchen",)),
    ],
)
def test_classes_without_an_image_for_evaluation_are_a_warning(classes, warnings):
    eval_split = replace(SOUND.splits["eval"], classes=classes)
    assert replace(QUIET, splits={**SOUND.splits, "eval": eval_split}).warnings == warnings


def test_classes_that_the_first_split_lacks_are_no_warning_and_of_many_some_are_named():
    labels = tuple(f"{number:02d}" for number in range(30))
    empty = replace(SOUND.splits["eval"], classes={})
    many = replace(QUIET, labels=labels, splits={"train": empty, "eval": empty, "test": empty})
    assert [line.partition(":")[0] for line in many.warnings] == [
        "split eval has no image of 30 classes",
        "split test has no image of 30 classes",
    ]
    assert many.warnings[0].endswith(": 00, 01, 02, 03, 04, 05, 06, 07 and 22 more")


def test_images_that_were_not_searched_are_a_warning():
    (line,) = replace(
        QUIET, splits={"train": SOUND.splits["train"]}, counts=ImageCounts(found=9, written=6, near_unsearched=1)
    ).warnings
    assert line.startswith("1 image was not compared with all others for near duplicates: ")


# What the digest is made of is on disk and in the caches of pipelines: changing it needs a new format.
def test_the_digest_is_the_one_that_is_on_disk():
    assert SOUND.digest == "da93f85204cc2e275ea63b7f78041a65e60767b7ef138c8372b02d7da6ac92c5"


@pytest.mark.parametrize(
    "change",
    [
        {"labels": ("kätzchen", "cat")},
        {"splits": {"eval": SOUND.splits["eval"], "train": SOUND.splits["train"]}},
        {"splits": {**SOUND.splits, "eval": SplitInfo(shards=(replace(ONLY, sha256="e" * 64),), classes={})}},
        {"splits": {**SOUND.splits, "eval": SplitInfo(shards=(replace(ONLY, records=2),), classes={})}},
    ],
)
def test_the_digest_follows_the_content(change):
    assert replace(SOUND, **change).digest != SOUND.digest


def test_the_digest_ignores_where_the_content_is_from():
    assert replace(SOUND, source="elsewhere", options={"seed": 1}, producer={}, images=()).digest == SOUND.digest


def test_a_dataset_of_format_1_has_its_image_table_in_one_file(tmp_path):
    older = replace(SOUND, format_version=1, images=(), tables={"images.parquet": "e" * 64, **SOUND.tables})
    manifest.write(older, str(tmp_path))
    assert manifest.load(str(tmp_path)) == older
    assert "images" not in older.to_json()
    assert older.digest == SOUND.digest  # the shards and labels are the same
    assert older.image_paths("/data") == ["/data/images.parquet"]
    assert SOUND.image_paths("/data") == ["/data/images/part-train-00000.parquet"]
    assert list(SOUND.table_digests) == ["images/part-train-00000.parquet", "rejects.parquet"]
    assert list(older.table_digests) == ["images.parquet", "rejects.parquet"]


@pytest.mark.parametrize("use", [SOUND.split, lambda name: SOUND.shard_paths("/data", name)])
def test_an_unknown_split_is_refused_with_the_known_ones(use):
    with pytest.raises(OptionError, match="^the dataset has no split 'test'; it has train, eval$"):
        use("test")


def test_a_directory_without_manifest_is_no_dataset(tmp_path):
    with pytest.raises(SourceError, match=rf"^{tmp_path} is not a dataset: it has no dataset.json; make one with"):
        manifest.load(str(tmp_path))


def without(key):
    values = SOUND.to_json()
    del values[key]
    return sealed(values)


def sealed(values):
    values = {name: value for name, value in values.items() if name != "checksum"}
    return {**values, "checksum": manifest.content_checksum(values)}


def changed(**fields):
    return sealed({**SOUND.to_json(), **fields})


def named(split, shard):
    """A manifest that is sound, but for the names in it: they come from whoever made the dataset, and become paths."""
    return replace(SOUND, splits={split: SplitInfo(shards=(replace(ONLY, name=shard),), classes={})}).to_json()


DAMAGED = {
    "no json": (b"{", "Expecting property name"),
    "not utf-8": (b"\xff\xfe{}\x80", "codec can't decode|Expecting"),
    "deep": (b"[" * 100_000, "its JSON is nested more than 64 deep"),
    "a list": (b"[]", "indices must be"),
    "another version": (changed(format_version=3), "its format version is 3; this release reads 1 and 2"),
    "no images": (without("images"), "it lacks 'images'"),
    "an image table in format 1": (changed(format_version=1), "images"),
    "rows that are text": (changed(images=[{**vars(PART), "rows": "x"}]), "part-train-00000.parquet.rows is 'x'"),
    "hashes that are numbers": (changed(images=[{**vars(PART), "order_hashes": [1, 2]}]), "null or two strings"),
    "a part that climbs": (changed(images=[{**vars(PART), "name": "../x"}]), "the file name '../x' is not allowed"),
    "no splits": (without("splits"), "splits"),
    "no channels": (without("channels"), "it lacks 'channels'"),  # null says that there are none
    "channels without a split": (changed(channels={"mean_rgb": [], "std_rgb": []}), "it lacks 'split'"),
    "an unknown field": (changed(colour="red"), "colour"),
    "a count that is text": (changed(counts={"found": "x\nimages", "written": 1}), r"counts.found is 'x\\nimages'"),
    "a negative count": (changed(counts={"found": 1, "written": -1}), "counts.written is -1; it must be a"),
    "no checksum": ({k: v for k, v in SOUND.to_json().items() if k != "checksum"}, "checksum"),
    "a split that climbs": (named("a/../../b", "c.tfrecord"), "the split name 'a/../../b' is not allowed"),
    "a shard that climbs": (named("a", "../../c.tfrecord"), "the file name '../../c.tfrecord' is not allowed"),
    "a shard without a name": (named("a", ".."), "the file name '..' is not allowed"),
    "a table that climbs": (replace(SOUND, tables={"../x": "e" * 64}).to_json(), "'../x' is not allowed"),
    "another source": ({**SOUND.to_json(), "source": "pictures"}, "its checksum does not match its content"),
    "another label": (changed(labels=["cat", "dog"]), f"its digest is {SOUND.digest}, but its content has the digest "),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_manifest_is_a_corrupt_dataset(tmp_path, content, message):
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (tmp_path / "dataset.json").write_bytes(data)
    with pytest.raises(CorruptDataset, match=rf"dataset\.json cannot be used: .*({message})") as caught:
        manifest.load(str(tmp_path))
    assert str(caught.value).endswith("; write the dataset again")


def test_a_manifest_of_more_than_64_mebibytes_is_not_read(tmp_path):
    manifest.write(SOUND, str(tmp_path))
    with open(tmp_path / "dataset.json", "ab") as stream:
        stream.write(b" " * (64 << 20))
    with pytest.raises(CorruptDataset, match="dataset.json cannot be used: it has more than 67,108,864 bytes"):
        manifest.load(str(tmp_path))
