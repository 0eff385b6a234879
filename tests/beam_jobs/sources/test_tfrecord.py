from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

import pytest

from beam_jobs.dataset import record
from beam_jobs.errors import SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources.tfrecord import TfrecordSource
from beam_jobs.types import Annotations, ImageRef
from tests import image_table
from tests.beam_jobs.entries import contents, found_in, hidden_in, only
from tests.beam_jobs.object_store import SCHEME
from tests.make_images import flipped, jpeg, png
from tests.rewrite_records import framed


def feature(value) -> tuple[str, list]:
    values = value if isinstance(value, list) else [value]
    if values and isinstance(values[0], (str, bytes)):
        return "bytes", [item.encode() if isinstance(item, str) else item for item in values]
    return "float" if values and isinstance(values[0], float) else "int64", values


def example(**features) -> bytes:
    """Returns an Example; `__` in names stands for `/`."""
    return record.encode_example({name.replace("__", "/"): feature(value) for name, value in features.items()})


def write(path: Path, *payloads: bytes, pack=bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(framed(*payloads)))
    return path


@pytest.fixture
def records(tmp_path):
    """Writes records and returns the source of them."""
    return lambda *payloads, **columns: TfrecordSource(
        str(write(tmp_path / "x.tfrecord", *payloads)), TableColumns(**columns)
    )


def test_records_become_references_under_their_place(records):
    source = records(example(image=jpeg(1), label="cat"), example(image=png(2), label="dög"))
    source.check()
    assert source.label_kind == "single"
    assert found_in(source) == [("x.tfrecord:0", "cat"), ("x.tfrecord:1", "dög")]
    assert contents(source) == {"x.tfrecord:0": jpeg(1), "x.tfrecord:1": png(2)}
    first = next(source.entries())
    assert (first.uri, first.bytes, first.annotations) == ("x.tfrecord:0", len(jpeg(1)), None)
    assert first.mtime_ns == os.stat(source.path).st_mtime_ns


@pytest.mark.parametrize(
    ("features", "label"),
    [
        ({"label": -1}, "-1"),
        ({"label": "cat", "image__class__text": "dog"}, "cat"),
        ({"image__class__text": "dog", "image__class__label": 3}, "dog"),
        ({"image__class__label": 3}, "3"),
    ],
)
def test_the_label_is_found_under_customary_names(records, features, label):
    assert only(records(example(image=jpeg(), **features))).label == label


def test_customary_keys_count_and_a_record_without_a_file_name_is_named_by_its_place(records):
    named = example(image__encoded=jpeg(1), image__class__text="a", image__filename="cat/ä.jpg")
    other = example(image__encoded=jpeg(2), image__class__text="b", image__filename="")
    source = records(named, other)
    assert [(entry.key, entry.uri, entry.label) for entry in source.entries()] == [
        ("cat/ä.jpg", "x.tfrecord:0", "a"),
        ("x.tfrecord:1", "x.tfrecord:1", "b"),
    ]
    assert contents(source) == {"cat/ä.jpg": jpeg(1), "x.tfrecord:1": jpeg(2)}
    unlabelled = records(named, label="")
    assert (unlabelled.label_kind, found_in(unlabelled)) == ("none", [("cat/ä.jpg", "")])


def test_the_columns_are_features(records):
    payload = example(
        picture=jpeg(),
        species="cat",
        patient=12,
        part="train",
        importance=0.5,
        id="x-1",
        age=7,
        height=1.5,
        scores=[1.0, 2.5],
        note="ä",
        tags=["b", "a"],
        nothing=[],
        other=b"\xff",
    )
    source = records(
        payload,
        image="picture",
        label="species",
        group="patient",
        split="part",
        weight="importance",
        key="id",
        extra=("age", "height", "scores", "note", "tags", "nothing"),
    )
    source.check()
    entry = only(source)
    assert (entry.key, entry.label, entry.group, entry.split) == ("x-1", "cat", "12", "train")
    assert entry.annotations == Annotations(weight=0.5)
    assert entry.extra == {"age": 7, "height": 1.5, "scores": [1.0, 2.5], "note": "ä", "tags": ["b", "a"]}


@pytest.mark.parametrize(("tags", "labels"), [(["b", "a", "b"], ("a", "b")), ("a|b", ("a|b",))])
def test_a_feature_of_many_values_makes_many_labels(records, tags, labels):
    source = records(example(image=jpeg(), tags=tags), labels="tags")
    source.check()
    assert source.label_kind == "multi"
    entry = only(source)
    assert (entry.label, entry.annotations) == ("", Annotations(labels=labels))


@pytest.mark.parametrize(
    ("features", "columns", "reason", "detail"),
    [
        ({"label": []}, {}, "no_label", "it is in no class folder, or its label is empty"),
        ({"label": b"caf\xe9"}, {}, "name_not_utf8", "x.tfrecord:1: column 'label' holds 'caf\\udce9', which cannot"),
        ({"image": []}, {}, "bad_member", "feature 'image' holds 0 values; it must hold the bytes of one image file"),
        ({"image": [1, 2]}, {}, "bad_member", "feature 'image' holds 2 values of int; it must hold the bytes of one"),
        ({"image": [b"a", b"b"]}, {}, "bad_member", "feature 'image' holds 2 values of bytes; it must hold the bytes"),
        ({"w": []}, {"weight": "w"}, "bad_annotation", "x.tfrecord:1: the weight is None; it must be a finite number"),
        ({"e": "x"}, {"extra": ("e",)}, "bad_annotation", "feature 'e' holds str; in the first records it holds int"),
    ],
)
def test_a_record_of_which_something_wrong_is_said_is_rejected(records, features, columns, reason, detail):
    good = {"image": jpeg(1), "label": "a", "w": 1.0, "e": 1}
    source = records(example(**good), example(**{**good, "image": jpeg(2), **features}), **columns)
    first, second = source.entries()
    assert isinstance(first, ImageRef)
    assert (second.key, second.uri, second.reason) == ("x.tfrecord:1", "x.tfrecord:1", reason)
    assert second.detail.startswith(detail)


def test_a_record_that_is_no_example_is_rejected(records):
    source = records(b"\xff\xff\xff", example(image=jpeg(), label="cat"))
    source.check()
    assert found_in(source) == [("x.tfrecord:0", "! bad_member"), ("x.tfrecord:1", "cat")]


@pytest.mark.parametrize("value", [7, 0.5, b""])
def test_a_feature_has_at_most_four_million_values(records, monkeypatch, value):
    monkeypatch.setattr(record, "MAX_VALUES", 3)
    good = {"image": jpeg(), "label": "cat"}
    source = records(example(**good, more=[value] * 3), example(**good, more=[value] * 4))
    assert found_in(source) == [("x.tfrecord:0", "cat"), ("x.tfrecord:1", "! bad_member")]


# ------------------------------------------------------------------ files


def test_a_record_of_a_compressed_file_has_at_most_32_mebibytes_and_20_times_the_file(tmp_path):
    def source(size: int) -> TfrecordSource:
        first = example(image=jpeg(), label="cat")
        path = write(tmp_path / f"{size}.tfrecord", first, bytes(size), pack=gzip.compress)
        return TfrecordSource(str(path), TableColumns())

    assert [kind for _, kind in found_in(source(32 << 20))] == ["cat", "! bad_member"]
    with pytest.raises(SourceError, match="has a corrupt length at offset "):
        found_in(source(34 << 20))


@pytest.mark.parametrize(
    ("place", "pack"),
    [("remote", bytes), ("remote", gzip.compress), ("local", zlib.compress)],
    ids=["remote", "remote gzip", "zlib"],
)
def test_files_may_be_compressed_and_remote(tmp_path, place, pack):
    write(tmp_path / "x.tfrecord", example(image=jpeg(1), label="a"), example(image=jpeg(2), label="b"), pack=pack)
    root = str(tmp_path) if place == "local" else f"{SCHEME}://{tmp_path}"
    source = TfrecordSource(f"{root}/x.tfrecord", TableColumns())
    source.check()
    assert source.base == root
    assert contents(source) == {"x.tfrecord:0": jpeg(1), "x.tfrecord:1": jpeg(2)}


def padded(first_bytes: bytes) -> bytes:
    """Returns an Example whose length begins with the bytes, as those of compressed files do."""
    length = int.from_bytes(first_bytes, "little")
    short = example(image=jpeg(1), label="a", pad=b"")
    payload = example(image=jpeg(1), label="a", pad=bytes(length - len(short) - 12))
    return example(image=jpeg(1), label="a", pad=bytes(length - len(short) - 12 + length - len(payload)))


@pytest.mark.parametrize("first_bytes", [b"\x1f\x8b\x08", b"\x78\x9c"])
def test_a_record_whose_length_looks_like_a_compressed_file_is_plain(records, first_bytes):
    payload = padded(first_bytes)
    assert framed(payload).startswith(first_bytes)
    assert contents(records(payload)) == {"x.tfrecord:0": jpeg(1)}


def test_all_files_of_a_pattern_are_read_in_the_order_of_their_names(tmp_path, place):
    for number in (2, 0, 1):
        write(tmp_path / f"d/x-{number}-of-3", example(image=jpeg(number), label="a"))
    write(tmp_path / "d/y", b"other")
    source = TfrecordSource(f"{place}/d/x-*-of-3", TableColumns())
    assert source.base == f"{place}/d"
    assert list(contents(source).items()) == [(f"x-{number}-of-3:0", jpeg(number)) for number in range(3)]


def test_below_a_directory_every_file_counts_that_is_called_a_tfrecord(tmp_path, place):
    write(tmp_path / "b/data.tfrecord-0", example(image=jpeg(1), label="a"))
    write(tmp_path / "a.TFRecord", example(image=jpeg(2), label="a"))
    (tmp_path / "readme.md").write_text("not a record")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".hidden.tfrecord").write_text("")
    source = TfrecordSource(place, TableColumns())
    assert source.base == place
    assert contents(source) == {"a.TFRecord:0": jpeg(2), "b/data.tfrecord-0:0": jpeg(1)}
    assert hidden_in(source) == (2, [".hidden.tfrecord", "_SUCCESS"])
    assert list(TfrecordSource(place + "/", TableColumns()).entries()) == list(source.entries())


def test_below_a_directory_every_file_counts_when_none_is_called_a_tfrecord(tmp_path):
    write(tmp_path / "b/part-0", example(image=jpeg(1), label="a"))
    write(tmp_path / "part-1", example(image=jpeg(2), label="a"))
    assert list(contents(TfrecordSource(str(tmp_path), TableColumns()))) == ["b/part-0:0", "part-1:0"]


def tfx_examples(root: Path, **features) -> Path:
    """Writes an `Examples` artifact as TFX does."""
    for number, split in enumerate(("train", "eval")):
        name = f"Split-{split}/data_tfrecord-00000-of-00001.gz"
        write(root / name, example(image=jpeg(number), label="a", **features), pack=gzip.compress)
    return root


def test_the_splits_of_tfx_examples_count_when_asked_for(tmp_path):
    source = TfrecordSource(str(tfx_examples(tmp_path)), TableColumns(split="split"))
    source.check()
    assert [(entry.uri, entry.split) for entry in source.entries()] == [
        ("Split-eval/data_tfrecord-00000-of-00001.gz:0", "eval"),
        ("Split-train/data_tfrecord-00000-of-00001.gz:0", "train"),
    ]
    assert list(contents(source).values()) == [jpeg(1), jpeg(0)]
    assert {entry.split for entry in TfrecordSource(str(tmp_path), TableColumns()).entries()} == {""}
    named = TfrecordSource(str(tfx_examples(tmp_path / "named", split="test")), TableColumns(split="split"))
    assert {entry.split for entry in named.entries()} == {"test"}  # a feature counts for more than the directory


def test_a_published_dataset_is_read_back(dataset):
    source = TfrecordSource(str(dataset), TableColumns(split="split"))
    source.check()
    found = {entry.key: (entry.label, entry.split) for entry in source.entries()}
    rows = image_table.read(dataset).to_pylist()
    assert found == {row["key"]: (row["label"], row["split"]) for row in rows}
    assert len(contents(source)) == len(rows)


# ------------------------------------------------------------------ what cannot be read


def broken(tmp_path: Path, data: bytes) -> str:
    (tmp_path / "x.tfrecord").write_bytes(data)
    source = TfrecordSource(str(tmp_path / "x.tfrecord"), TableColumns())
    with pytest.raises(SourceError) as caught:
        list(source.entries())
    return str(caught.value).removeprefix(f"{tmp_path}/x.tfrecord ")


def test_a_damaged_file_is_refused_with_the_offset(tmp_path):
    first, second = example(image=jpeg(1), label="a"), example(image=jpeg(2), label="a")
    data, place = framed(first, second), len(first) + 16
    remedy = "it is damaged, or not a TFRecord file. Repair or remove it"
    assert broken(tmp_path, flipped(data, place + 50)) == f"has a corrupt record at offset {place}; {remedy}"
    assert broken(tmp_path, flipped(data, place)) == f"has a corrupt length at offset {place}; {remedy}"
    assert broken(tmp_path, data[:-1]).startswith(f"ends inside the record at offset {place}: ")
    assert broken(tmp_path, b"some text that is no record").startswith("has a corrupt length at offset 0; ")
    packed = gzip.compress(data)
    assert broken(tmp_path, packed[:-9]).startswith("cannot be unpacked past byte ")
    assert broken(tmp_path, gzip.compress(data[:-1])).startswith(f"ends inside the record at offset {place}: ")


@pytest.mark.parametrize(
    ("features", "columns", "message"),
    [
        ({"label": "a"}, {}, "has no feature 'image/encoded' for the image; its first records have 'label'$"),
        ({"image": b"x"}, {}, "has no feature 'label' for the label; its first records have 'image'$"),
        ({"image": b"x", "label": 1}, {"image": "pic"}, "has no feature 'pic' for the image; .* 'image', 'label'$"),
        ({"image": b"x", "label": 1}, {"split": "split"}, "has no feature 'split' for the split; "),
        ({"image": b"x", "label": 1}, {"extra": ("y",)}, "has no feature 'y' for the extra y; "),
        ({"image": b"x", "label": 1}, {"mask": "image"}, "holds records; masks need a table that lists image and mask"),
    ],
)
def test_a_feature_that_is_not_there_is_named(records, features, columns, message):
    with pytest.raises(SourceError, match=rf"x\.tfrecord {message}"):
        records(example(**features), **columns).check()


def test_a_feature_that_only_some_records_have_is_there(records):
    source = records(example(image=jpeg(1), label="a"), example(image=jpeg(2), label="a", note="x"), extra=("note",))
    source.check()
    assert [entry.extra for entry in source.entries()] == [{}, {"note": "x"}]


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("none", lambda path: None, "cannot be read: No such file or directory$"),
        (
            "empty",
            lambda path: path.write_bytes(b""),
            "holds no record of tf.train.Example; it must hold one per image$",
        ),
        ("d", lambda path: path.mkdir(), "holds no file; give a directory of TFRecord files$"),
        ("pipe", os.mkfifo, "is not a regular file; give a file, or a pattern"),
        ("x*", lambda path: None, "matches no file; correct the pattern$"),
    ],
)
def test_what_holds_no_records_is_no_source(tmp_path, name, make, message):
    make(tmp_path / name)
    with pytest.raises(SourceError, match=message) as caught:
        TfrecordSource(str(tmp_path / name), TableColumns()).check()
    assert str(caught.value).startswith(f"{tmp_path}/{name} ")
