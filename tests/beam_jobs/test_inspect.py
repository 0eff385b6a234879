from __future__ import annotations

import re

import pytest
import tensorflow as tf

from beam_jobs import record, tables
from beam_jobs.errors import CorruptDataset, OptionError, SourceError
from beam_jobs.ingest import run
from beam_jobs.inspect import find_record, shown_value, summarise_file, viewable_image
from beam_jobs.options import IngestOptions
from tests.make_images import class_folders, flipped, jpeg


def example(**features: list) -> bytes:
    kinds = {int: "int64_list", float: "float_list", bytes: "bytes_list"}
    lists = {int: tf.train.Int64List, float: tf.train.FloatList, bytes: tf.train.BytesList}
    message = tf.train.Example()
    for name, values in features.items():
        if values:
            kind = type(values[0])
            message.features.feature[name].CopyFrom(tf.train.Feature(**{kinds[kind]: lists[kind](value=values)}))
        else:
            message.features.feature[name].CopyFrom(tf.train.Feature())
    return message.SerializeToString()


RECORDS = [example(a=[1], b=[b"x"], c=[]), example(a=[1, 2, 3], b=[b"y"]), example(b=[b"z"], d=[0.5])]


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_a_foreign_file_is_summed_up_whatever_its_compression(tmp_path, compression):
    path = str(tmp_path / "any.tfrecord")
    with tf.io.TFRecordWriter(path, compression) as writer:
        for payload in RECORDS:
            writer.write(payload)
    summary = summarise_file(path, shown=2)
    assert (summary.records, summary.compression) == (3, compression.lower() or "none")
    assert summary.payload_bytes == sum(map(len, RECORDS))
    assert {name: (f.kind, f.records, f.least, f.most) for name, f in summary.features.items()} == {
        "a": ("int64", 2, 1, 3),
        "b": ("bytes", 3, 1, 1),
        "c": ("none", 1, 0, 0),
        "d": ("float", 1, 1, 1),
    }
    assert [values["b"] for values in summary.first] == [[b"x"], [b"y"]]


def test_records_that_are_no_examples_are_counted(tmp_path):
    path = str(tmp_path / "raw.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(b"\xff\xff not an example")
    summary = summarise_file(path)
    assert (summary.records, summary.features, summary.first) == (1, {}, [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not records at all", "corrupt length at offset 0"),
        (b"\x1f\x8b broken", "cannot be unpacked"),
        (b"\x78\x9c broken", "cannot be unpacked"),
    ],
)
def test_what_is_no_tfrecord_file_is_refused(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CorruptDataset, match=message):
        summarise_file(str(tmp_path / "file"))


def test_a_missing_file_is_named():
    with pytest.raises(SourceError, match=r"^/nowhere cannot be read: No such file"):
        summarise_file("/nowhere")


def test_every_image_of_a_dataset_is_found_by_its_key(dataset):
    for expected in tables.read(str(dataset / "images.parquet")).to_pylist():
        row, values = find_record(str(dataset), expected["key"])
        assert row == expected
        assert values[record.FILENAME] == [expected["key"].encode()]
        assert values[record.SHA256] == [expected["sha256"].encode()]


def test_an_unknown_key_is_named(dataset):
    with pytest.raises(OptionError, match="has no image with the key 'cat/9.jpg'"):
        find_record(str(dataset), "cat/9.jpg")


def test_a_dropped_copy_is_said_to_be_one(tmp_path):
    photos = class_folders(tmp_path / "photos", per_class=3)
    (photos / "china" / "zz.jpg").write_bytes((photos / "china" / "000.jpg").read_bytes())
    run(IngestOptions(source=str(photos), out=str(tmp_path / "out"), splits={"all": 1}, duplicates="drop"))
    with pytest.raises(OptionError, match=r"'china/zz.jpg' was dropped as a copy; its duplicate set is [0-9a-f]{16}"):
        find_record(str(tmp_path / "out"), "china/zz.jpg")


def test_a_dropped_near_duplicate_names_the_set_of_what_it_looks_like(tmp_path):
    photos = class_folders(tmp_path / "photos", per_class=3)
    for name, quality in (("y.jpg", 95), ("z.jpg", 80)):
        (photos / "china" / name).write_bytes(jpeg(5, quality=quality))
    run(IngestOptions(source=str(photos), out=str(tmp_path / "out"), splits={"all": 1}, near_duplicates="drop"))
    rows = tables.read(str(tmp_path / "out" / "images.parquet")).to_pylist()
    near = next(row["near"] for row in rows if row["key"] == "china/y.jpg")
    with pytest.raises(OptionError, match=rf"'china/z.jpg' was dropped .* set is {near}$"):
        find_record(str(tmp_path / "out"), "china/z.jpg")
    assert near


def test_a_damaged_or_missing_shard_is_named(dataset):
    shard = dataset / "Split-train" / "data-00000-of-00002.tfrecord"
    rows = tables.read(str(dataset / "images.parquet")).to_pylist()
    key = next(row["key"] for row in rows if (row["split"], row["shard"], row["offset"]) == ("train", 0, 0))
    shard.write_bytes(flipped(shard.read_bytes(), 40))
    with pytest.raises(CorruptDataset, match=re.escape(f"{shard} has a corrupt record at offset 0")):
        find_record(str(dataset), key)
    shard.unlink()
    with pytest.raises(CorruptDataset, match=re.escape(f"{shard} cannot be read: No such file")):
        find_record(str(dataset), key)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([b"cat"], "cat"),
        ([jpeg()], f"<{len(jpeg()):,} bytes>"),
        ([b"x" * 49], "<49 bytes>"),
        ([1], "1"),
        ([0.123456789, 2.0], "0.123457, 2"),
        ([1, 2, 3, 4, 5], "1, 2, 3, 4, ... (5 values)"),
        ([], ""),
    ],
)
def test_values_are_shown_short(values, shown):
    assert shown_value(values) == shown


def test_only_a_record_with_an_image_has_one():
    assert viewable_image({record.ENCODED: [b"x"]}) == b"x"
    assert viewable_image({record.ENCODED: []}) is None
    assert viewable_image({}) is None
