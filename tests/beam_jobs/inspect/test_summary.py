from __future__ import annotations

import gzip
import re
import tracemalloc
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from beam_jobs.dataset import manifest, record, schemas, tfrecord
from beam_jobs.dataset.lookup import record_lengths
from beam_jobs.errors import CorruptDataset, OptionError, SourceError
from beam_jobs.ingest import run
from beam_jobs.inspect import find_record, shown_value, summarise, summarise_file
from beam_jobs.inspect.parquet import view_table
from beam_jobs.inspect.records import MAX_PAYLOAD_BYTES
from beam_jobs.options import IngestOptions
from tests import image_table
from tests.make_images import class_folders, flipped, jpeg
from tests.rewrite_records import framed


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
def test_a_file_of_another_program_is_summarised_with_any_compression(tmp_path, compression):
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
        (b"hi\n", "offset 0: 3 of 12 header bytes; it is truncated, or not a TFRecord file$"),
        (b"\x1f\x8b broken", "cannot be unpacked"),
    ],
)
def test_what_is_no_tfrecord_file_is_refused(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CorruptDataset, match=message):
        summarise_file(str(tmp_path / "file"))


def test_every_image_of_a_dataset_is_found_by_its_key(dataset):
    for expected in image_table.read(dataset).to_pylist():
        row, values = find_record(str(dataset), expected["key"])
        assert row == expected
        assert values[record.FILENAME] == [expected["key"].encode()]
        assert values[record.SHA256] == [expected["sha256"].encode()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shard": 1 << 40}, r"offset \d+ of shard 1099511627776 of train"),
        ({"offset": -1}, "offset -1 of shard . of train"),
        ({"offset": 1 << 62}, f"offset {1 << 62} of shard . of train"),
    ],
)
def test_a_row_that_leads_nowhere_is_a_corrupt_dataset(dataset, change, message):
    rows = [{**row, **change} for row in image_table.read(dataset).to_pylist() if row["split"] == "train"]
    image_table.write(dataset, pa.Table.from_pylist(rows, schemas.IMAGES))
    with pytest.raises(CorruptDataset, match=rf"table of .* lists a record at {message}, which does not exist"):
        find_record(str(dataset), rows[0]["key"])


def test_a_key_is_found_without_the_files_that_cannot_have_it(dataset):
    one, other = image_table.files(dataset)[:2]  # of one split, which is cut by the hashes of the keys
    for path, damaged in ((one, other), (other, one)):
        key = schemas.read(str(path), ["key"])["key"][0].as_py()
        content = damaged.read_bytes()
        damaged.write_bytes(b"not parquet")
        assert find_record(str(dataset), key)[0]["key"] == key
        damaged.write_bytes(content)


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
    rows = image_table.read(tmp_path / "out").to_pylist()
    near = next(row["near"] for row in rows if row["key"] == "china/y.jpg")
    with pytest.raises(OptionError, match=rf"'china/z.jpg' was dropped .* set is {near}$"):
        find_record(str(tmp_path / "out"), "china/z.jpg")
    assert near


def test_a_damaged_or_missing_shard_is_named(dataset):
    shard = dataset / "Split-train" / "data-00000-of-00002.tfrecord"
    rows = image_table.read(dataset).to_pylist()
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
        ([jpeg(), b"b"], f"<{len(jpeg()):,} bytes>, b"),
        ([b"x" * 49], "<49 bytes>"),
        ([0.123456789, 2.0], "0.123457, 2"),
        ([1, 2, 3, 4, 5], "1, 2, 3, 4, ... (5 values)"),
        ([], ""),
        ([b"", b"b"], "<empty>, b"),
    ],
)
def test_values_are_shown_short(values, shown):
    assert shown_value(values) == shown


# --- damage, and what is too large


PACK = {"none": bytes, "gzip": gzip.compress, "zlib": zlib.compress}


@pytest.mark.parametrize("compression", ["none", "zlib"])
def test_what_stands_before_the_damage_is_summed_up_and_the_place_is_named(tmp_path, compression):
    path = tmp_path / "torn"
    offset = len(framed(*RECORDS[:2]))
    path.write_bytes(PACK[compression](flipped(framed(*RECORDS), offset + 14)))
    summary = summarise([str(path)])
    assert (summary.records, summary.compression, len(summary.first)) == (2, compression, 2)
    assert [str(error) for error in summary.errors] == [
        f"{path} has a corrupt record at offset {offset}; it is damaged"
    ]
    with pytest.raises(CorruptDataset, match=f"at offset {offset};"):
        summarise_file(str(path))


@pytest.mark.parametrize("lost", [1, 20])
def test_a_file_that_ends_too_soon_says_in_which_record(tmp_path, lost):
    path, whole = tmp_path / "torn", framed(*RECORDS)
    path.write_bytes(whole[:-lost])
    with pytest.raises(CorruptDataset, match=f"ends inside the record at offset {len(framed(*RECORDS[:2]))}: "):
        summarise_file(str(path))


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_a_compressed_file_that_ends_too_soon_says_in_which_record(tmp_path, compression):
    path = tmp_path / "torn"
    noise = [bytes(example(a=[seed], b=[jpeg(seed)])) for seed in range(3)]
    path.write_bytes(PACK[compression](framed(*noise))[:-40])
    summary = summarise([str(path)])
    assert summary.records == 2
    said = f"{path} cannot be unpacked: .*end-of-stream marker.*, in the record at offset {len(framed(*noise[:2]))}$"
    assert re.match(said, str(summary.errors[0]))


def test_a_length_that_is_forged_allocates_nothing(tmp_path):
    length = (1 << 39).to_bytes(8, "little")
    head = length + masked(length)
    (tmp_path / "forged").write_bytes(framed(RECORDS[0]) + head + b"short")
    tracemalloc.start()
    try:
        summary = summarise([str(tmp_path / "forged")])
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert summary.records == 1
    assert f"at offset {len(framed(RECORDS[0]))}: 5 of {(1 << 39) + 4} bytes" in str(summary.errors[0])


def masked(data: bytes) -> bytes:
    """The checksum of the format, of some bytes: what stands behind them when they are a record."""
    return tfrecord.frame(data)[2]


def test_a_record_that_unpacks_to_much_is_checked_and_not_held(tmp_path):
    path = tmp_path / "bomb"
    huge = bytes(MAX_PAYLOAD_BYTES + 1)
    path.write_bytes(gzip.compress(framed(RECORDS[0], huge, RECORDS[1])))
    size = len(huge)
    del huge
    tracemalloc.start()
    try:
        summary = summarise([str(path)])
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert (summary.records, summary.long, len(summary.first), summary.errors) == (3, 1, 2, [])
    assert summary.sizes["max"] == size


@pytest.mark.parametrize("start", [b"\x78\x9c", b"\x1f\x8b"])
def test_a_plain_file_whose_first_length_looks_like_a_packed_one_is_plain(tmp_path, start):
    path = tmp_path / "plain"
    path.write_bytes(framed(bytes(int.from_bytes(start, "little"))))
    assert path.read_bytes().startswith(start)
    summary = summarise_file(str(path))
    assert (summary.records, summary.compression) == (1, "none")


# --- sizes and several files


def test_several_files_are_summed_up_together(tmp_path):
    for place, payloads in enumerate((RECORDS[:1], RECORDS[1:])):
        (tmp_path / str(place)).write_bytes(framed(*payloads))
    summary = summarise([str(tmp_path / "0"), str(tmp_path / "1"), str(tmp_path / "no")], shown=2)
    assert [file.records for file in summary.files] == [1, 2, 0]
    assert summary.features["b"].records == 3
    assert [values["b"] for values in summary.first] == [[b"x"], [b"y"]]
    sizes = sorted(map(len, RECORDS))
    assert summary.sizes == {"min": sizes[0], "median": sizes[1], "max": sizes[2]}
    assert isinstance(summary.errors[0], SourceError)
    assert "no cannot be read: No such file" in str(summary.errors[0])


def test_the_lengths_of_all_records_are_known_without_the_shards(dataset):
    described = manifest.load(str(dataset))
    paths = [Path(path) for name in described.splits for path in described.shard_paths(str(dataset), name)]
    expected = []
    for path in paths:
        with open(path, "rb") as stream:
            expected += [len(payload) for _, payload in tfrecord.read_records(stream, str(path))]
        path.unlink()
    assert record_lengths(str(dataset), described).tolist() == expected


def test_a_table_of_another_dataset_is_found_out(dataset):
    images = image_table.read(dataset)
    image_table.write(dataset, images.filter(pc.not_equal(images["key"], "china/000.jpg")))
    with pytest.raises(CorruptDataset, match=r"the image table of .* does not match dataset.json"):
        record_lengths(str(dataset), manifest.load(str(dataset)))


def test_an_image_table_that_names_a_shard_that_is_none_is_damage(dataset):
    rows = [{**row, "shard": 1 << 40} for row in image_table.read(dataset).to_pylist()]
    image_table.write(dataset, pa.Table.from_pylist(rows, schemas.IMAGES))
    with pytest.raises(CorruptDataset, match=r"the image table of .* does not match dataset.json"):
        record_lengths(str(dataset), manifest.load(str(dataset)))


def test_a_parquet_table_that_unpacks_to_far_more_than_an_honest_one_is_refused(tmp_path):
    path = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"note": ["x" * (65 << 20)]}), path, use_dictionary=False, compression="zstd")
    with pytest.raises(
        CorruptDataset, match=f"^{path} cannot be read as Parquet: column note has 68157450 bytes in a page;"
    ):
        view_table(path, 1)
    pq.write_table(pa.table({"note": ["x" * 400_000] * 4096}), path, compression="zstd")
    before = pa.total_allocated_bytes()
    (row,) = view_table(path, 1).records
    assert len(row["note"][0]) == 300
    assert pa.total_allocated_bytes() - before < 1 << 20
