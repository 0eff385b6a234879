from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from beam_jobs.errors import BadImage, SourceError
from beam_jobs.options import TableColumns
from beam_jobs.reader import Reader
from beam_jobs.slices import Slice
from beam_jobs.sources import samples as samples_module
from beam_jobs.sources.archives import TarSource, ZipSource
from beam_jobs.types import Annotations, ImageRef
from tests.beam_jobs.object_store import SCHEME
from tests.make_images import jpeg, png

FOLDERS = {"cat/a.jpg": jpeg(1), "cat/b.png": png(2), "dog/deep/c.JPEG": jpeg(3)}


def make_tar(path: Path, files: dict[str, bytes], mode: str = "w", **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, **options) as archive:
        for name, data in files.items():
            add(archive, name, data)
    return path


def add(archive: tarfile.TarFile, name: str, data: bytes = b"", **fields) -> None:
    header = tarfile.TarInfo(name)
    header.size = len(data)
    for field, value in fields.items():
        setattr(header, field, value)
    archive.addfile(header, io.BytesIO(data))


def make_zip(path: Path, files: dict[str, bytes], **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", **{"compression": zipfile.ZIP_DEFLATED, **options}) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


KINDS = {"tar": (TarSource, make_tar, "x.tar"), "zip": (ZipSource, make_zip, "x.zip")}


@pytest.fixture(params=KINDS)
def archive(request, tmp_path):
    """Makes an archive of files, tar or zip, and returns its source."""
    kind, make, name = KINDS[request.param]
    return lambda files, **columns: kind(str(make(tmp_path / name, files)), TableColumns(**columns))


def found_in(source) -> list[tuple[str, str]]:
    """Returns (key, label) of each reference and (key, reason) of each reject, in order."""
    return [(e.key, e.label if isinstance(e, ImageRef) else f"! {e.reason}") for e in source.entries()]


def contents(source) -> dict[str, bytes]:
    reader = Reader(base=source.base, max_bytes=10**7)
    return {e.key: reader.read(e.uri, e.slice) for e in source.entries() if isinstance(e, ImageRef)}


def only(source):
    (entry,) = source.entries()
    return entry


# ------------------------------------------------------------------ class folders


def test_the_first_folder_is_the_class_and_the_name_the_key(archive):
    source = archive(FOLDERS)
    source.check()
    assert source.label_kind == "single"
    assert found_in(source) == [("cat/a.jpg", "cat"), ("cat/b.png", "cat"), ("dog/deep/c.JPEG", "dog")]
    assert contents(source) == FOLDERS


def test_a_reference_holds_what_the_archive_says(archive):
    source = archive(FOLDERS)
    first = next(source.entries())
    assert (first.uri, first.bytes, first.group, first.split, first.extra) == ("cat/a.jpg", len(jpeg(1)), "", "", {})
    assert first.annotations is None
    assert first.mtime_ns == os.stat(source.path).st_mtime_ns
    assert Slice.parse(first.slice).path == os.path.basename(source.path)


def test_entries_come_again_in_the_same_order(archive):
    source = archive(FOLDERS)
    assert list(source.entries()) == list(source.entries())


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_stored_and_deflated_members_are_read(tmp_path, compression):
    source = ZipSource(str(make_zip(tmp_path / "x.zip", FOLDERS, compression=compression)), TableColumns())
    method = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflate"}[compression]
    assert {Slice.parse(entry.slice).method for entry in source.entries()} == {method}
    assert contents(source) == FOLDERS


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names_are_read_in_every_format_of_tar(tmp_path, tar_format):
    long = "grün/" + "x" * 80 + "/" + "y" * 90 + ".jpg"
    files = {long: jpeg(1), "猫/a.jpg": jpeg(2)}
    source = TarSource(str(make_tar(tmp_path / "x.tar", files, format=tar_format)), TableColumns())
    assert found_in(source) == [(long, "grün"), ("猫/a.jpg", "猫")]
    assert contents(source) == files


def test_zip64_members_are_read(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive, archive.open("cat/a.jpg", "w", force_zip64=True) as member:
        member.write(jpeg(1))
    assert contents(ZipSource(str(path), TableColumns())) == {"cat/a.jpg": jpeg(1)}


def test_a_zip_behind_other_bytes_is_read(tmp_path):
    path = make_zip(tmp_path / "x.zip", FOLDERS)
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    assert contents(ZipSource(str(path), TableColumns())) == FOLDERS


def test_needless_parts_of_names_are_left_out(archive):
    assert found_in(archive({"./cat//a.jpg": jpeg(1)})) == [("cat/a.jpg", "cat")]


def test_directories_and_what_file_managers_leave_are_passed_over(archive):
    files = {"cat/a.jpg": jpeg(1), "__MACOSX/cat/._a.jpg": b"x", "cat/.DS_Store": b"x", "cat/._a.jpg": b"x"}
    assert found_in(archive({**files, "cat/Thumbs.db": b"x", ".git/x.jpg": b"x"})) == [("cat/a.jpg", "cat")]


def test_directories_are_no_images(tmp_path):
    (tmp_path / "cat.jpg").mkdir()
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(tmp_path / "cat.jpg", "cat.jpg")
        add(archive, "cat.jpg/a.jpg", jpeg())
    make_zip(tmp_path / "x.zip", {"cat.jpg/": b"", "cat.jpg/a.jpg": jpeg()})
    assert found_in(TarSource(str(tmp_path / "x.tar"), TableColumns())) == [("cat.jpg/a.jpg", "cat.jpg")]
    assert found_in(ZipSource(str(tmp_path / "x.zip"), TableColumns())) == [("cat.jpg/a.jpg", "cat.jpg")]


def test_an_image_in_no_folder_has_no_label(archive):
    assert found_in(archive({"a.jpg": jpeg(1), "cat/b.jpg": jpeg(2)})) == [
        ("a.jpg", "! no_label"),
        ("cat/b.jpg", "cat"),
    ]


def test_without_a_label_column_nothing_has_a_label(archive):
    source = archive({"a.jpg": jpeg(1), "cat/b.jpg": jpeg(2), "cat/b.cls": b"7"}, label="")
    assert source.label_kind == "none"
    assert found_in(source) == [("a.jpg", ""), ("cat/b.jpg", "")]


@pytest.mark.parametrize("name", ["README.txt", "cat/labels.csv", "cat/noext", "cat/a.npy", "cat/a.ppm", "cat/jpg"])
def test_a_file_that_is_no_image_and_beside_none_is_a_reject(archive, name):
    source = archive({name: b"x", "cat/b.jpg": jpeg(1)})
    assert found_in(source) == [(name, "! not_an_image"), ("cat/b.jpg", "cat")]
    first = next(source.entries())
    assert (first.stage, first.uri) == ("scan", name)


@pytest.mark.parametrize("suffix", sorted(samples_module.IMAGE_SUFFIXES))
def test_images_are_known_by_their_suffix(archive, suffix):
    assert found_in(archive({f"cat/a.{suffix}": jpeg(), f"cat/b.x.{suffix.upper()}": jpeg()})) == [
        (f"cat/a.{suffix}", "cat"),
        (f"cat/b.x.{suffix.upper()}", "cat"),
    ]


# ------------------------------------------------------------------ samples


def test_the_cls_of_a_sample_is_its_class(archive):
    files = {"000.cls": b"7\n", "000.jpg": jpeg(1), "001.jpg": jpeg(2), "001.cls": "grün".encode()}
    source = archive(files)
    source.check()
    assert found_in(source) == [("000.jpg", "7"), ("001.jpg", "grün")]


def test_the_cls_counts_for_more_than_the_folder_and_the_json_for_more_than_both(archive):
    files = {
        "train/0.jpg": jpeg(0),
        "train/1.cls": b"1",
        "train/1.jpg": jpeg(1),
        "train/2.jpg": jpeg(2),
        "train/2.json": b'{"label": "two"}',
        "train/2.cls": b"2",
        "train/3.jpg": jpeg(3),
        "train/3.json": b'{"label": null}',
    }
    assert [label for _, label in found_in(archive(files))] == ["train", "1", "two", "train"]


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
    ("labels", "cls", "expected"),
    [("tags", b"", ("a", "b")), ("cls", b"dog|cat", ("cat", "dog")), ("none", b"", ())],
)
def test_a_sample_may_have_many_labels(archive, labels, cls, expected):
    files = {"0.jpg": jpeg(), "0.json": json.dumps({**JSON, "none": []}).encode(), "0.cls": cls}
    source = archive(files, labels=labels)
    source.check()
    assert source.label_kind == "multi"
    entry = only(source)
    assert (entry.label, entry.annotations) == ("", Annotations(labels=expected))


def test_the_txt_is_kept_only_when_asked_for(archive):
    source = archive({"cat/0.jpg": jpeg(), "cat/0.txt": b"\xff not UTF-8"})
    assert only(source).extra == {}


def test_an_extra_column_gets_the_type_that_fits_all_samples(archive):
    values = [1, 2.5, None, [3]]
    files = {}
    for number, value in enumerate(values):
        files |= {f"cat/{number}.jpg": jpeg(number), f"cat/{number}.json": json.dumps({"x": value}).encode()}
    found = [entry.extra for entry in archive(files, extra=("x",)).entries()]
    assert found == [{"x": 1.0}, {"x": 2.5}, {}, {"x": [3.0]}]
    assert isinstance(found[0]["x"], float)


def test_an_extra_column_that_cannot_be_kept_stops_everything(archive):
    source = archive({"cat/0.jpg": jpeg(), "cat/0.json": b'{"x": {"deep": 1}}'}, extra=("x",))
    with pytest.raises(SourceError, match=r"x\.(tar|zip): an extra column holds {'deep': 1}; only numbers, text"):
        list(source.entries())


def test_of_sidecars_that_come_twice_the_first_counts(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name, data in [("0.cls", b"first"), ("0.jpg", jpeg()), ("0.cls", b"second")]:
            add(archive, name, data)
    assert found_in(TarSource(str(tmp_path / "x.tar"), TableColumns())) == [("0.jpg", "first")]


def test_every_image_of_a_sample_is_one(archive):
    files = {"0.left.jpg": jpeg(1), "0.right.jpg": jpeg(2), "0.cls": b"7", "0.depth.npy": b"x"}
    assert found_in(archive(files)) == [("0.left.jpg", "7"), ("0.right.jpg", "7")]


def test_names_that_share_their_start_across_folders_are_no_sample(archive):
    files = {"cat/0.jpg": jpeg(1), "dog/0.cls": b"7", "dog/0.jpg": jpeg(2)}
    assert found_in(archive(files)) == [("cat/0.jpg", "cat"), ("dog/0.jpg", "7")]


def test_members_of_a_sample_belong_together_only_when_they_follow_one_another(archive):
    files = {"0.jpg": jpeg(1), "1.jpg": jpeg(2), "1.cls": b"1", "0.cls": b"0"}
    assert found_in(archive(files)) == [("0.jpg", "! no_label"), ("1.jpg", "1"), ("0.cls", "! not_an_image")]


@pytest.mark.parametrize(
    ("sidecar", "data", "columns", "detail"),
    [
        ("json", b"{broken", {}, "0.jpg: its .json is not JSON: Expecting property name"),
        ("json", b"[1]", {}, "0.jpg: its .json holds '[1]'; it must hold one object"),
        ("json", b"[" * 100_000, {}, "0.jpg: its .json is not JSON: maximum recursion depth"),
        ("json", b'"\xff"', {}, "0.jpg: its .json is not UTF-8: 'utf-8' codec can't decode byte 0xff"),
        ("cls", b"\xff", {}, "0.jpg: its .cls is not UTF-8: "),
        ("json", b'{"label": ["a"]}', {}, "0.jpg: column 'label' holds ['a']; it must hold one text or number"),
        ("json", b'{"w": -1}', {"weight": "w"}, "0.jpg: the weight is -1; it must be a number of at least 0"),
    ],
)
def test_a_sample_of_which_something_wrong_is_said_is_rejected(archive, sidecar, data, columns, detail):
    entry = only(archive({"0.jpg": jpeg(), f"0.{sidecar}": data}, **columns))
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


def test_one_sample_without_end_does_not_gather_in_memory(archive, monkeypatch):
    monkeypatch.setattr(samples_module, "_MAX_SAMPLE_MEMBERS", 2)
    files = {f"cat/my.{number}.jpg": jpeg(number) for number in range(4)}
    source = archive({**files, "cat/my.cls": b"late"})
    assert contents(source) == files
    assert found_in(source) == [*((name, "cat") for name in files), ("cat/my.cls", "! not_an_image")]


# ------------------------------------------------------------------ hostile members


@pytest.mark.parametrize("name", ["../x.jpg", "cat/../../x.jpg", "/etc/x.jpg", "cat/..", ".."])
def test_names_that_lead_out_are_bad_members(archive, name):
    entries = found_in(archive({name: jpeg(), "cat/a.jpg": jpeg(1)}))
    assert entries == [(name, "! bad_member"), ("cat/a.jpg", "cat")]


def test_a_name_that_comes_twice_counts_once(archive):
    class Twice(dict):
        def items(self):
            return [("cat/a.jpg", jpeg(1)), ("dog/b.jpg", jpeg(2)), ("./cat/a.jpg", jpeg(3))]

    source = archive(Twice())
    assert found_in(source) == [("cat/a.jpg", "cat"), ("dog/b.jpg", "dog"), ("cat/a.jpg", "! duplicate_key")]
    assert contents(source)["cat/a.jpg"] == jpeg(1)


def test_a_key_column_that_repeats_is_a_duplicate(archive):
    files = {"0.jpg": jpeg(1), "0.json": b'{"id": 1}', "1.jpg": jpeg(2), "1.json": b'{"id": 1}'}
    assert found_in(archive(files, key="id", label="")) == [("1", ""), ("1", "! duplicate_key")]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "a link"),
        ({"type": tarfile.LNKTYPE, "linkname": "cat/a.jpg"}, "a link"),
        ({"type": tarfile.CHRTYPE}, "a device, a pipe or of unknown type"),
        ({"type": tarfile.BLKTYPE}, "a device, a pipe or of unknown type"),
        ({"type": tarfile.FIFOTYPE}, "a device, a pipe or of unknown type"),
        ({"type": b"Z"}, "a device, a pipe or of unknown type"),
    ],
)
def test_links_and_devices_are_bad_members(tmp_path, fields, kind):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        add(archive, "cat/a.jpg", jpeg(1))
        add(archive, "cat/link.jpg", **fields)
        add(archive, "cat/b.jpg", jpeg(2))
    bad, _, good = TarSource(str(tmp_path / "x.tar"), TableColumns()).entries()  # what is not looked into comes first
    assert (bad.key, bad.reason, bad.detail) == (
        "cat/link.jpg",
        "bad_member",
        f"it is {kind}, not a file with bytes of its own",
    )
    assert good.key == "cat/b.jpg"


def test_a_sparse_file_is_a_bad_member(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        sparse = {"GNU.sparse.size": "99999999", "GNU.sparse.numblocks": "1", "GNU.sparse.map": "0,4"}
        add(archive, "cat/a.jpg", b"data", pax_headers=sparse)
        add(archive, "cat/b.jpg", jpeg())
    bad, good = TarSource(str(tmp_path / "x.tar"), TableColumns()).entries()
    assert (bad.reason, bad.detail) == ("bad_member", "it is a sparse file, not a file with bytes of its own")
    assert good.key == "cat/b.jpg"


def test_links_in_a_zip_are_bad_members(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        link = zipfile.ZipInfo("cat/link.jpg")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("cat/a.jpg", jpeg())
    assert found_in(ZipSource(str(tmp_path / "x.zip"), TableColumns())) == [
        ("cat/link.jpg", "! bad_member"),
        ("cat/a.jpg", "cat"),
    ]


def test_a_name_that_is_not_utf8_is_rejected_under_a_printable_one(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as archive:
        add(archive, "cat/caf\udce9.jpg", jpeg())
        add(archive, "cat/a.jpg", jpeg())
    source = TarSource(str(tmp_path / "x.tar"), TableColumns())
    assert found_in(source) == [("cat/caf\\xe9.jpg", "! name_not_utf8"), ("cat/a.jpg", "cat")]


def unflagged(path: Path, name: bytes) -> Path:
    """Makes a zip with a name as archivers write it that know no Unicode."""
    make_zip(path, {"x" * len(name): jpeg()}, compression=zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes().replace(b"x" * len(name), name))
    return path


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("grün/ä.jpg".encode(), ("grün/ä.jpg", "grün")),
        (b"caf\xe9/a.jpg", ("caf\\xe9/a.jpg", "! name_not_utf8")),
        (b"cat\\a.jpg/a.jpg", ("cat\\a.jpg/a.jpg", "cat\\a.jpg")),
    ],
)
def test_a_zip_name_without_the_unicode_flag_is_utf8_or_rejected(tmp_path, name, found):
    assert found_in(ZipSource(str(unflagged(tmp_path / "x.zip", name)), TableColumns())) == [found]


def patched(path: Path, central: int, value: bytes) -> Path:
    """Changes the last entry of the directory of a zip, `central` bytes from its start."""
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\x01\x02") + central
    data[place : place + len(value)] = value
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("central", "value", "detail"),
    [
        (8, b"\x01\x00", "it is encrypted"),
        (10, struct.pack("<H", 12), "it is compressed by method 12; only stored and deflated members are read"),
        (10, struct.pack("<H", 93), "it is compressed by method 93; only stored and deflated members are read"),
        (20, struct.pack("<I", 1 << 31), f"it claims {1 << 31} bytes from byte "),
        (42, struct.pack("<I", 3), "no member starts at byte 3, where it should"),
    ],
)
def test_zip_members_that_cannot_be_read_are_bad_members(tmp_path, central, value, detail):
    path = make_zip(tmp_path / "x.zip", {"cat/a.jpg": jpeg(1), "cat/b.jpg": jpeg(2)})
    bad, good = ZipSource(str(patched(path, central, value)), TableColumns()).entries()
    assert good.key == "cat/a.jpg"
    assert (bad.key, bad.reason) == ("cat/b.jpg", "bad_member")
    assert bad.detail.startswith(detail)


def test_a_member_larger_than_allowed_is_a_reference_and_read_up_to_the_limit(archive):
    big = bytes(50_000)
    entry = only(archive({"cat/a.jpg": big}))
    assert entry.bytes == 50_000
    source = archive({"cat/a.jpg": big})
    assert Reader(base=source.base, max_bytes=99).read(entry.uri, entry.slice) == bytes(100)


# ------------------------------------------------------------------ damaged archives


def three(tmp_path: Path, **options) -> bytes:
    return make_tar(tmp_path / "x.tar", FOLDERS, **options).read_bytes()


def tar_error(tmp_path: Path, data: bytes) -> str:
    (tmp_path / "x.tar").write_bytes(data)
    source = TarSource(str(tmp_path / "x.tar"), TableColumns())
    with pytest.raises(SourceError) as caught:
        list(source.entries())
    return str(caught.value).removeprefix(f"{tmp_path}/x.tar ")


def test_a_tar_cut_short_anywhere_is_refused(tmp_path):
    data = three(tmp_path)
    end = data.rindex(jpeg(3)) + len(jpeg(3))
    end += -end % 512
    for length in [100, 512, 513, 1000, 1024, 3000, end - 600, end - 512, end, end + 300]:
        message = tar_error(tmp_path, data[:length])
        assert "cut short" in message or "damaged" in message or "is no tar archive" in message, length
    (tmp_path / "x.tar").write_bytes(data[: end + 512])  # the end mark is there
    assert contents(TarSource(str(tmp_path / "x.tar"), TableColumns())) == FOLDERS


def test_the_place_of_the_damage_is_named(tmp_path):
    data = bytearray(three(tmp_path))
    second = 512 + len(jpeg(1)) + -len(jpeg(1)) % 512
    data[second + 5] ^= 0xFF
    assert tar_error(tmp_path, data) == f"is damaged at byte {second}: no header of a member starts there"
    assert (
        tar_error(tmp_path, three(tmp_path)[:600]) == "is cut short: it ends at byte 600, inside the member at byte 0"
    )
    assert (
        tar_error(tmp_path, three(tmp_path)[:second]) == f"is cut short: it ends at byte {second} without an end mark"
    )


def test_archives_joined_into_one_file_are_not_read_by_half(tmp_path):
    data = three(tmp_path)
    assert "goes on after its end mark at byte " in tar_error(tmp_path, data + data)


def header_with(size_field: bytes, kind: bytes = b"0") -> bytes:
    """Returns the header of a tar member with a forged size and a right checksum."""
    block = bytearray(tarfile.TarInfo("cat/a.jpg").tobuf(tarfile.GNU_FORMAT))
    block[124:136] = size_field
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    "forged",
    [
        header_with(b"\xff" * 10 + b"\xfe\x00"),  # minus one block: back to where it stands, for ever
        header_with(b"\xff" * 12),
        header_with(b"\x80" + b"\xff" * 11),
        header_with(b"77777777777\0"),
        header_with(b"77777777777\0", b"L"),
        header_with(b"\xff" * 10 + b"\xfe\x00", b"L"),
        header_with(b"77777777777\0", b"x"),
        header_with(b"00000000000\0", b"L") * 5000,
        header_with(b"00000000000\0", b"x") * 5000,
    ],
    ids=["back", "minus one", "huge", "8 GB", "long name", "negative name", "pax", "name chain", "pax chain"],
)
def test_forged_sizes_neither_hang_nor_allocate(tmp_path, forged):
    assert tar_error(tmp_path, forged + bytes(1024))
    good = header_with(b"00000000000\0")
    message = tar_error(tmp_path, good + forged + bytes(1024))
    assert message.startswith(("is damaged at byte 512: ", "is cut short: it ends at byte "))


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_name_longer_than_any_system_allows_is_not_read(tmp_path, tar_format):
    make_tar(tmp_path / "y.tar", {"cat/a.jpg": b"x", "x" * 70_000: b"x"}, format=tar_format)
    message = tar_error(tmp_path, (tmp_path / "y.tar").read_bytes())
    assert message.startswith("is damaged at byte 1024: a header claims 7")


@pytest.mark.parametrize("data", [b"", b"no archive at all", jpeg(), b"PK\x03\x04"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_archive_is_refused(tmp_path, data, kind):
    source, _, name = KINDS[kind]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=rf"^{tmp_path}/{name} is no {kind} archive, "):
        source(str(tmp_path / name), TableColumns()).check()


MARKS = [(b"PK\1\2", 0), (b"PK\1\2", 1), (b"PK\5\6", 0)]


@pytest.mark.parametrize("keep", [100, 3000, -10, -30])
def test_a_zip_cut_short_is_refused(tmp_path, keep):
    path = make_zip(tmp_path / "x.zip", FOLDERS)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SourceError, match=r"x\.zip is no zip archive, or damaged: "):
        list(ZipSource(str(path), TableColumns()).entries())


@pytest.mark.parametrize(
    ("central", "value"),
    [(0, b"XX"), (6, b"\xff\xff"), (28, b"\x01\x00")],
    ids=["signature", "version", "name"],
)
def test_a_damaged_zip_directory_is_refused(tmp_path, central, value):
    path = make_zip(tmp_path / "x.zip", FOLDERS)
    with pytest.raises(SourceError, match=r"x\.zip is no zip archive, or damaged: "):
        list(ZipSource(str(patched(path, central, value)), TableColumns()).entries())


def test_a_zip_directory_that_hides_members_is_refused(tmp_path):
    path = make_zip(tmp_path / "x.zip", FOLDERS)
    data = bytearray(path.read_bytes())
    first, second, end = (data.index(mark, data.index(b"PK\1\2") + skip) for mark, skip in MARKS)
    data[first + 32 : first + 34] = struct.pack("<H", end - second)  # the comment of the first holds all others
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"x\.zip is damaged: its directory has 1 members and claims 3$"):
        list(ZipSource(str(path), TableColumns()).entries())


@pytest.mark.parametrize("comment", [b"", b"made by hand", b"x" * 65535])
def test_a_zip_may_have_a_comment(tmp_path, comment):
    path = make_zip(tmp_path / "x.zip", FOLDERS)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = comment
    assert contents(ZipSource(str(path), TableColumns())) == FOLDERS


def test_a_damaged_zip_member_is_a_bad_image(tmp_path):
    path = make_zip(tmp_path / "x.zip", {"cat/a.jpg": b"text that packs well " * 99})
    entry = only(ZipSource(str(path), TableColumns()))
    data = bytearray(path.read_bytes())
    data[Slice.parse(entry.slice).offset] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(BadImage, match="bad_member: the compressed member is damaged"):
        Reader(base=str(tmp_path), max_bytes=10**6).read(entry.uri, entry.slice)


# ------------------------------------------------------------------ many archives


SHARDS = {
    "000.tar": {"cat/a.jpg": jpeg(1)},
    "001.tar": {"cat/a.jpg": jpeg(2), "dog/b.jpg": jpeg(3)},
    "010.tar": {"dog/c.jpg": jpeg(4)},
}


@pytest.fixture(params=["local", "remote"])
def shards(request, tmp_path) -> str:
    """Writes the archives of `SHARDS` into a directory and returns its path."""
    for name, files in SHARDS.items():
        make_tar(tmp_path / "shards" / name, files)
    return f"{tmp_path}/shards" if request.param == "local" else f"{SCHEME}://{tmp_path}/shards"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.tar", ["000.tar", "001.tar", "010.tar"]),
        ("{000..001}.tar", ["000.tar", "001.tar"]),
        ("{001..000}.tar", ["000.tar", "001.tar"]),
        ("0{10,00}.tar", ["000.tar", "010.tar"]),
        ("0{1{0,0},0{0..1}}.t*", ["000.tar", "001.tar", "010.tar"]),
        ("0[01]0.tar", ["000.tar", "010.tar"]),
        ("01?.ta{r,r}", ["010.tar"]),
    ],
)
def test_patterns_name_archives_and_their_names_part_the_keys(shards, pattern, names):
    source = TarSource(f"{shards}/{pattern}", TableColumns())
    source.check()
    expected = {f"{name}/{member}": data for name in names for member, data in SHARDS[name].items()}
    assert source.base == shards
    assert contents(source) == expected
    assert [(entry.key, entry.label) for entry in source.entries()] == [(key, key.split("/")[1]) for key in expected]
    assert all(entry.uri == entry.key for entry in source.entries())


def test_a_single_remote_archive_is_read(shards):
    source = TarSource(f"{shards}/001.tar", TableColumns())
    assert contents(source) == SHARDS["001.tar"]


def test_patterns_go_down_into_directories(shards):
    source = TarSource(f"{shards.removesuffix('/shards')}/**/0*1.tar", TableColumns())
    assert contents(source) == {f"shards/001.tar/{name}": data for name, data in SHARDS["001.tar"].items()}
    assert contents(TarSource(f"{shards.removesuffix('/shards')}/sh*/0*1.tar", TableColumns())) == contents(source)


def test_rejects_of_many_archives_name_the_archive(tmp_path):
    make_tar(tmp_path / "0.tar", {"x.jpg": jpeg(), "../y.jpg": jpeg(), "cat/z": b""})
    source = TarSource(f"{tmp_path}/*.tar", TableColumns())
    assert found_in(source) == [
        ("0.tar/../y.jpg", "! bad_member"),
        ("0.tar/x.jpg", "! no_label"),
        ("0.tar/cat/z", "! not_an_image"),
    ]
    assert all(entry.uri == entry.key for entry in source.entries())


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("{000..003}.tar", "shards/002.tar cannot be read: No such file or directory$"),
        ("x*.tar", r"shards/x\*.tar matches no file; correct the pattern$"),
        ("none.tar", "shards/none.tar cannot be read: No such file or directory$"),
        ("{0..9999999}.tar", r"^{0..9999999} stands for 10000000 files; at most 1000000 can be given$"),
        ("{0..9999}{0..999}.tar", "stands for 10000000 files; at most 1000000 can be given$"),
    ],
)
def test_archives_that_are_not_there_are_named(tmp_path, pattern, message):
    for name, files in SHARDS.items():
        make_tar(tmp_path / "shards" / name, files)
    with pytest.raises(SourceError, match=message):
        TarSource(f"{tmp_path}/shards/{pattern}", TableColumns()).check()


def test_a_directory_and_a_pipe_are_no_archives(tmp_path):
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(
        SourceError, match=rf"^{tmp_path} is a directory; give a file, or a pattern such as {tmp_path}/\*"
    ):
        TarSource(str(tmp_path), TableColumns()).check()
    with pytest.raises(SourceError, match=r"pipe.tar is no regular file; give a file"):
        TarSource(str(tmp_path / "pipe.tar"), TableColumns()).check()


def test_a_file_whose_name_looks_like_a_pattern_is_one_archive(tmp_path):
    source = TarSource(str(make_tar(tmp_path / "x[1]{a,b}.tar", FOLDERS)), TableColumns())
    assert contents(source) == FOLDERS


@pytest.mark.parametrize(
    ("pattern", "base"), [("x.tar", "."), ("./*.tar", "."), ("d/{1..2}.tar", "d"), ("/x.tar", "/")]
)
def test_the_base_is_the_directory_before_the_first_special_character(tmp_path, monkeypatch, pattern, base):
    monkeypatch.chdir(tmp_path)
    assert TarSource(pattern, TableColumns()).base == base


def test_relative_paths_are_read_from_where_one_stands(tmp_path, monkeypatch):
    make_tar(tmp_path / "x.tar", FOLDERS)
    monkeypatch.chdir(tmp_path)
    assert contents(TarSource("x.tar", TableColumns())) == FOLDERS
    assert list(contents(TarSource("*.tar", TableColumns()))) == [f"x.tar/{name}" for name in FOLDERS]


# ------------------------------------------------------------------ compressed archives


@pytest.mark.parametrize(
    ("name", "mode"), [("x.tar.gz", "w:gz"), ("x.tgz", "w:gz"), ("x.tar.bz2", "w:bz2"), ("x.tar.xz", "w:xz")]
)
def test_compressed_archives_are_read_through_a_plain_copy(tmp_path, name, mode):
    source = TarSource(str(make_tar(tmp_path / name, FOLDERS, mode)), TableColumns())
    source.check()
    assert contents(source) == FOLDERS
    assert list(tmp_path.iterdir()) == [tmp_path / name]


def test_compressed_and_plain_archives_may_stand_side_by_side(tmp_path):
    make_tar(tmp_path / "a.tar", FOLDERS)
    make_tar(tmp_path / "b.tar", FOLDERS, "w:gz")  # known by its first bytes, not its name
    found = contents(TarSource(f"{tmp_path}/*.tar", TableColumns()))
    assert found == {f"{box}.tar/{name}": data for box in "ab" for name, data in FOLDERS.items()}


def test_a_compressed_archive_cut_short_is_refused(tmp_path):
    path = make_tar(tmp_path / "x.tar.gz", FOLDERS, "w:gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SourceError, match=r"x\.tar\.gz cannot be unpacked past byte \d+ of its content: "):
        TarSource(str(path), TableColumns()).check()


def test_a_compressed_file_without_an_archive_in_it_is_refused(tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(b"text"))
    with pytest.raises(SourceError, match=r"x\.tar\.gz is no tar archive, plain or of gzip, bzip2 or xz: "):
        TarSource(str(tmp_path / "x.tar.gz"), TableColumns()).check()


# ------------------------------------------------------------------ checks


@pytest.mark.parametrize(
    ("files", "columns", "message"),
    [
        ({}, {}, "holds no file; it must hold images$"),
        ({".DS_Store": b"x"}, {}, "holds no file; it must hold images$"),
        ({"a.txt": b"x"}, {}, r"holds no image that can be used; the first is a\.txt: not_an_image \(its name has no"),
        ({"a.jpg": b"x"}, {}, r"holds no image that can be used; the first is a\.jpg: no_label \("),
        ({"a.jpg": b"x", "a.json": b'{"x": 1}'}, {"group": "y"}, "has no 'y' for the group; .* have 'label', 'x'$"),
        ({"cat/a.jpg": b"x"}, {"extra": ("txt",)}, "has no 'txt' for the extra txt; its first samples have 'label'$"),
        ({"cat/a.jpg": b"x"}, {"label": "species"}, "has no 'species' for the label; its first samples have none$"),
        (
            {"cat/a.jpg": b"x"},
            {"mask": "seg"},
            "is an archive, which can name no mask; list image and mask in a table$",
        ),
    ],
)
def test_an_archive_that_cannot_be_ingested_is_refused_early(archive, files, columns, message):
    with pytest.raises(SourceError, match=rf"x\.(tar|zip) {message}"):
        archive(files, **columns).check()


def test_a_good_image_after_bad_ones_is_enough(archive):
    archive({"a.txt": b"x", "b.jpg": jpeg(), "cat/c.jpg": jpeg()}).check()
