from __future__ import annotations

import json
import struct
import tarfile

import pytest

from beam_jobs.errors import SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources import webdataset as samples_module
from beam_jobs.sources.archive import TarSource, ZipSource
from beam_jobs.sources.image_reader import Reader
from beam_jobs.types import Annotations
from tests.beam_jobs.entries import contents, found_in, only
from tests.beam_jobs.make_archives import add, make_zip
from tests.make_images import jpeg


def test_the_cls_counts_for_more_than_the_folder_and_the_json_for_more_than_both(tar):
    files = {
        "train/0.jpg": jpeg(0),
        "train/1.cls": "grün\n".encode(),
        "train/1.jpg": jpeg(1),
        "train/2.jpg": jpeg(2),
        "train/2.json": b'{"label": "two"}',
        "train/2.cls": b"2",
        "train/3.jpg": jpeg(3),
        "train/3.json": b'{"label": null}',
    }
    assert [label for _, label in found_in(tar(files))] == ["train", "grün", "two", "train"]


JSON = {
    "label": 5,
    "species": "cat",
    "tags": ["b", "a", "b"],
    "patient": 12,
    "part": "train",
    "importance": 0.5,
    "id": "x-1",
    "age": 7,
    "scores": [1, 2.5],
}


def test_the_columns_are_fields_of_the_json(archive):
    source = archive(
        {"0.jpg": jpeg(), "0.json": json.dumps(JSON).encode(), "0.txt": b"a caption\n"},
        label="species",
        group="patient",
        split="part",
        weight="importance",
        key="id",
        extra=("age", "scores", "txt"),
    )
    source.check()
    entry = only(source)
    assert (entry.key, entry.uri, entry.label, entry.group, entry.split) == ("x-1", "0.jpg", "cat", "12", "train")
    assert entry.extra == {"age": 7, "scores": [1.0, 2.5], "txt": "a caption"}
    assert entry.annotations == Annotations(weight=0.5)
    assert Reader(base=source.base, max_bytes=10**6).read(entry.uri, entry.slice) == jpeg()


@pytest.mark.parametrize(
    ("labels", "cls", "expected"), [("tags", b"", ("a", "b")), ("cls", b"dog|cat", ("cat", "dog"))]
)
def test_a_sample_may_have_many_labels(tar, labels, cls, expected):
    files = {"0.jpg": jpeg(), "0.json": json.dumps(JSON).encode(), "0.cls": cls}
    source = tar(files, labels=labels)
    source.check()
    assert source.label_kind == "multi"
    entry = only(source)
    assert (entry.label, entry.annotations) == ("", Annotations(labels=expected))


def test_an_extra_column_gets_the_type_that_fits_all_samples(tar):
    values = [1, 2.5, None, [3]]
    files = {}
    for number, value in enumerate(values):
        files |= {f"cat/{number}.jpg": jpeg(number), f"cat/{number}.json": json.dumps({"x": value}).encode()}
    found = [entry.extra for entry in tar(files, extra=("x",)).entries()]
    assert found == [{"x": 1.0}, {"x": 2.5}, {}, {"x": [3.0]}]
    assert isinstance(found[0]["x"], float)


def test_an_extra_column_that_cannot_be_kept_stops_everything(tar):
    source = tar({"cat/0.jpg": jpeg(), "cat/0.json": b'{"x": {"deep": 1}}'}, extra=("x",))
    with pytest.raises(SourceError, match=r"x\.tar: an extra column holds {'deep': 1}; it must hold numbers, text"):
        list(source.entries())


def test_of_sidecars_that_come_twice_the_first_counts(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name, data in [("0.cls", b"first"), ("0.jpg", jpeg()), ("0.cls", b"second")]:
            add(archive, name, data)
    assert found_in(TarSource(str(tmp_path / "x.tar"), TableColumns())) == [("0.jpg", "first")]


def test_every_image_of_a_sample_is_one(tar):
    files = {"0.left.jpg": jpeg(1), "0.right.jpg": jpeg(2), "0.cls": b"7", "0.depth.npy": b"x", "0.txt": b"\xff"}
    assert found_in(tar(files)) == [("0.left.jpg", "7"), ("0.right.jpg", "7")]


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"cat/0.jpg": 1, "dog/0.cls": b"7", "dog/0.jpg": 2}, [("cat/0.jpg", "cat"), ("dog/0.jpg", "7")]),
        (
            {"0.jpg": 1, "1.jpg": 2, "1.cls": b"1", "0.cls": b"0"},
            [("0.jpg", "! no_label"), ("1.jpg", "1"), ("0.cls", "! not_an_image")],
        ),
    ],
    ids=["other folder", "other sample between"],
)
def test_members_of_a_sample_share_a_folder_and_follow_one_another(tar, files, found):
    files = {name: jpeg(data) if isinstance(data, int) else data for name, data in files.items()}
    assert found_in(tar(files)) == found


@pytest.mark.parametrize(
    ("sidecar", "data", "columns", "detail"),
    [
        ("json", b"{broken", {}, "0.jpg: its .json is not JSON: Expecting property name"),
        ("json", b"[1]", {}, "0.jpg: its .json holds '[1]'; it must hold one object"),
        ("json", b"[" * 100_000, {}, "0.jpg: its .json is not JSON: maximum recursion depth"),
        ("cls", b"\xff", {}, "0.jpg: its .cls is not UTF-8: "),
        ("json", b'{"w": -1}', {"weight": "w"}, "0.jpg: the weight is -1; it must be a finite number of at least 0"),
    ],
)
def test_a_sample_of_which_something_wrong_is_said_is_rejected(tar, sidecar, data, columns, detail):
    entry = only(tar({"0.jpg": jpeg(), f"0.{sidecar}": data}, **columns))
    assert (entry.key, entry.reason) == ("0.jpg", "bad_annotation")
    assert entry.detail.startswith(detail)


def test_a_huge_sidecar_is_not_read(archive, monkeypatch):
    monkeypatch.setattr(samples_module, "MAX_SIDECAR_BYTES", 1000)
    entry = only(archive({"0.jpg": jpeg(), "0.json": b" " * 1001}))
    assert entry.detail == "0.jpg: its .json has 1001 bytes; 1000 are allowed"


def test_a_zip_sidecar_that_lies_about_its_size_is_not_unpacked_further(tmp_path):
    path = make_zip(tmp_path / "x.zip", {"0.jpg": jpeg(), "0.json": b'{"label": "a"}' + b" " * (40 << 20)})
    data = path.read_bytes()
    place = data.rindex(b"PK\x01\x02")
    assert struct.unpack_from("<I", data, place + 24) == ((40 << 20) + 14,)
    path.write_bytes(data[: place + 24] + struct.pack("<I", 20) + data[place + 28 :])
    assert found_in(ZipSource(str(path), TableColumns())) == [("0.jpg", "a")]


def test_one_sample_without_end_does_not_gather_in_memory(tar, monkeypatch):
    monkeypatch.setattr(samples_module, "_MAX_SAMPLE_MEMBERS", 2)
    files = {f"cat/my.{number}.jpg": jpeg(number) for number in range(4)}
    source = tar({**files, "cat/my.cls": b"late"})
    assert contents(source) == files
    assert found_in(source) == [*((name, "cat") for name in files), ("cat/my.cls", "! not_an_image")]
