from __future__ import annotations

import io
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from beam_jobs.errors import SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources import archive as archive_members
from beam_jobs.sources import tar_headers
from beam_jobs.sources.archive import TarSource, ZipSource
from tests.beam_jobs.entries import contents, found_in, only
from tests.beam_jobs.make_archives import (
    FOLDERS,
    KINDS,
    add,
    attributes,
    header_block,
    make_tar,
    make_zip,
    member,
    sparse_member,
)
from tests.make_images import flipped, jpeg


@pytest.mark.parametrize("name", ["../x.jpg", "cat/../../x.jpg", "/etc/x.jpg", "cat/.."])
def test_names_that_lead_out_are_bad_members(tar, name):
    entries = found_in(tar({name: jpeg(), "cat/a.jpg": jpeg(1)}))
    assert entries == [(name, "! bad_member"), ("cat/a.jpg", "cat")]


def test_a_name_that_comes_twice_counts_once(archive):
    class Twice(dict):
        def items(self):
            return [("cat/a.jpg", jpeg(1)), ("dog/b.jpg", jpeg(2)), ("./cat/a.jpg", jpeg(3))]

    source = archive(Twice())
    assert found_in(source) == [("cat/a.jpg", "cat"), ("dog/b.jpg", "dog"), ("cat/a.jpg", "! duplicate_key")]
    assert contents(source)["cat/a.jpg"] == jpeg(1)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "a link"),
        ({"type": tarfile.FIFOTYPE}, "a device, a pipe or of unknown type"),
        ({"type": b"Z"}, "a device, a pipe or of unknown type"),
        ({"pax_headers": {"GNU.sparse.size": "9", "GNU.sparse.map": "0,4"}}, "a sparse file"),
    ],
)
def test_links_devices_and_sparse_files_are_bad_members(tmp_path, fields, kind):
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        add(archive, "cat/a.jpg", jpeg(1))
        add(archive, "cat/link.jpg", **fields)
        add(archive, "cat/b.jpg", jpeg(2))
    bad, _, good = TarSource(str(tmp_path / "x.tar"), TableColumns()).entries()  # what is not looked into comes first
    assert (bad.key, bad.reason) == ("cat/link.jpg", "bad_member")
    assert bad.detail == f"it is {kind}, not a regular file"
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
        (10, struct.pack("<H", 93), "it is compressed by method 93; only stored and deflated members can be read"),
        (20, struct.pack("<I", 1 << 31), f"it declares {1 << 31} bytes from byte "),
        (42, struct.pack("<I", 3), "its header is missing at byte 3"),
    ],
)
def test_zip_members_that_cannot_be_read_are_bad_members(tmp_path, central, value, detail):
    path = make_zip(tmp_path / "x.zip", {"cat/a.jpg": jpeg(1), "cat/b.jpg": jpeg(2)})
    bad, good = ZipSource(str(patched(path, central, value)), TableColumns()).entries()
    assert good.key == "cat/a.jpg"
    assert (bad.key, bad.reason) == ("cat/b.jpg", "bad_member")
    assert bad.detail.startswith(detail)


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
    assert "is not a tar archive" in tar_error(tmp_path, data[:100])
    assert "truncated" in tar_error(tmp_path, data[: end + 300])
    (tmp_path / "x.tar").write_bytes(data[: end + 512])  # the end mark is there
    assert contents(TarSource(str(tmp_path / "x.tar"), TableColumns())) == FOLDERS


def test_the_place_of_the_damage_is_named(tmp_path):
    data = three(tmp_path)
    second = 512 + len(jpeg(1)) + -len(jpeg(1)) % 512
    assert (
        tar_error(tmp_path, flipped(data, second + 5))
        == f"is damaged at byte {second}: no header of a member starts there"
    )
    assert tar_error(tmp_path, data[:600]) == "is truncated: it ends at byte 600, inside the member at byte 0"
    assert tar_error(tmp_path, data[:second]) == f"is truncated: it ends at byte {second} without an end mark"
    assert "has data after its end-of-archive marker at byte " in tar_error(tmp_path, data + data)


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
        header_with(b"\x80" + b"\xff" * 11),
        header_with(b"77777777777\0", b"L"),
        header_with(b"\xff" * 10 + b"\xfe\x00", b"L"),
        header_with(b"00000000000\0", b"x") * 5000,
    ],
    ids=["back", "huge", "long name", "negative name", "chain"],
)
def test_forged_sizes_neither_hang_nor_allocate(tmp_path, forged):
    assert tar_error(tmp_path, forged + bytes(1024))
    good = header_with(b"00000000000\0")
    message = tar_error(tmp_path, good + forged + bytes(1024))
    assert message.startswith(("is damaged at byte 512: ", "is truncated: it ends at byte "))


GOOD = member("cat/a.jpg", jpeg())


def test_the_map_of_a_sparse_member_is_passed_over_and_not_kept_in_memory(tmp_path):
    (tmp_path / "x.tar").write_bytes(sparse_member(40_000) + GOOD + bytes(1024))
    tracemalloc.start()
    bad, good = TarSource(str(tmp_path / "x.tar"), TableColumns()).entries()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (bad.reason, bad.detail) == ("bad_member", "it is a sparse file, not a regular file")
    assert good.key == "cat/a.jpg"
    assert peak < 4 << 20  # the map itself has 20 MB


@pytest.mark.parametrize("last", [b"K", b"x", b"g"])
def test_the_headers_of_one_member_are_bounded_together(tmp_path, last):
    name = b"cat/" + b"x" * 30_000
    once = member("x", name, b"L")
    content = attributes(("path", "x" * 30_000)) if last in b"xg" else name
    (tmp_path / "x.tar").write_bytes(once + GOOD + bytes(1024))
    assert only(TarSource(str(tmp_path / "x.tar"), TableColumns())).reason == "bad_member"
    twice = once + member("x", content, last)
    message = tar_error(tmp_path, GOOD + twice * 2 + GOOD + bytes(1024))
    allowed = f"the headers of one member may have at most {tar_headers.MAX_BYTES}"
    assert message == f"is damaged at byte {len(GOOD)}: a header declares {len(name)} bytes; {allowed}"


def test_a_name_of_more_than_4096_characters_is_a_bad_member_of_which_the_beginning_is_shown(tar):
    bad, good = tar({"cat/" + "x" * 4093: jpeg(), "cat/" + "x" * 4088 + ".jpg": jpeg(1)}).entries()
    assert (bad.reason, bad.detail) == ("bad_member", "its name has 4097 characters; 4096 are allowed")
    assert bad.key == "cat/" + "x" * 196 + "... (4097 characters)"
    assert len(good.key) == 4096


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_the_number_of_attributes_is_bounded(tmp_path, kind):
    allowed = attributes(*((f"k{number}", "") for number in range(tar_headers.MAX_ATTRIBUTES)))
    (tmp_path / "x.tar").write_bytes(member("x", allowed, kind) + GOOD + bytes(1024))
    assert found_in(TarSource(str(tmp_path / "x.tar"), TableColumns())) == [("cat/a.jpg", "cat")]
    message = tar_error(tmp_path, member("x", allowed + attributes(("last", "")), kind) + GOOD + bytes(1024))
    assert message == "is damaged at byte 0: a header has more than 1000 attributes, the maximum"


def test_attributes_of_all_members_are_not_kept_unless_they_are_used(tmp_path):
    content = attributes(("comment", "x" * 9999), ("path", "dog/b.jpg"), ("mtime", "1"))
    stream = io.BytesIO(member("x", content, tarfile.XGLTYPE) + GOOD + GOOD)
    headers = tar_headers.TarHeaders(stream)
    first = headers.member(0)
    assert (first.name, headers.member(first.end).name) == ("dog/b.jpg", "dog/b.jpg")
    assert headers.global_attributes == {"path": "dog/b.jpg"}


@pytest.mark.parametrize("content", [b"x", b"3 path=x\n", b"99 path=x\n", b"-9 path=x\n", b"9" * 600])
def test_attributes_that_cannot_be_read_are_damage(tmp_path, content):
    message = tar_error(tmp_path, GOOD + member("x", content, b"x") + GOOD + bytes(1024))
    assert message.startswith(f"is damaged at byte {len(GOOD)}: attribute 1 of a header is damaged")


@pytest.mark.parametrize("size", ["", "-1", "9" * 21])
def test_a_size_in_the_attributes_must_be_one(tmp_path, size):
    message = tar_error(tmp_path, member("x", attributes(("size", size)), b"x") + GOOD + bytes(1024))
    assert message == f"is damaged at byte 0: the size of a member is {size!r}"


LONG_NAME, LONG_LINK = (member("x", b"long/name.jpg\0", kind) for kind in (b"L", b"K"))
OWN, SOLARIS, ALL = (member("x", attributes(("path", "own/é.jpg")), kind) for kind in (b"x", b"X", b"g"))
SIZE = member("x", b"10 size=4\n", b"x")


@pytest.mark.parametrize(
    "headers", [LONG_LINK + LONG_NAME, SOLARIS, ALL, ALL + LONG_NAME, ALL + SIZE, LONG_NAME + OWN, OWN + LONG_NAME]
)
def test_header_check_mean_what_they_mean_to_tarfile(tmp_path, headers):
    end = header_block("dog/", b"5") + member("dog/c.jpg", b"abc") + bytes(1024)
    data = headers + member("cat/a.jpg", b"content") + end
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        expected = [(one.name, one.size, one.offset_data) for one in archive.getmembers()]
    reader, found = tar_headers.TarHeaders(io.BytesIO(data)), []
    while one := reader.member(found[-1].end if found else 0):
        found.append(one)
    assert [(one.name, one.size, one.data) for one in found] == expected


@pytest.mark.parametrize(("kind", "data"), [("tar", b""), ("tar", jpeg()), ("zip", b""), ("zip", b"PK\x03\x04")])
def test_what_is_no_archive_is_refused(tmp_path, data, kind):
    source, _, name = KINDS[kind]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=rf"^{tmp_path}/{name} is not a {kind} archive, "):
        source(str(tmp_path / name), TableColumns()).check()


MARKS = [(b"PK\1\2", 0), (b"PK\1\2", 1), (b"PK\5\6", 0)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: patched(path, 0, b"XX"),
        lambda path: patched(path, 6, b"\xff\xff"),
        lambda path: patched(path, 28, b"\x01\x00"),
        lambda path: path.write_bytes(path.read_bytes()[:-10]),
    ],
    ids=["signature", "version", "name", "cut"],
)
def test_a_damaged_zip_directory_is_refused(tmp_path, damage):
    path = make_zip(tmp_path / "x.zip", FOLDERS)
    damage(path)
    with pytest.raises(SourceError, match=r"x\.zip is not a zip archive, or damaged: "):
        list(ZipSource(str(path), TableColumns()).entries())


def test_a_zip_directory_that_hides_members_is_refused(tmp_path):
    path = make_zip(tmp_path / "x.zip", FOLDERS)
    data = bytearray(path.read_bytes())
    first, second, end = (data.index(mark, data.index(b"PK\1\2") + skip) for mark, skip in MARKS)
    data[first + 32 : first + 34] = struct.pack("<H", end - second)  # the comment of the first holds all others
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"x\.zip is damaged: its directory has 1 members and declares 3$"):
        list(ZipSource(str(path), TableColumns()).entries())


@pytest.mark.parametrize("within", [0, 50])
def test_zip_members_that_share_bytes_are_taken_once(tmp_path, within):
    inner = make_zip(tmp_path / "y.zip", FOLDERS).read_bytes()
    path = make_zip(tmp_path / "x.zip", {"cat/x.jpg": inner, **FOLDERS}, compression=zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    second = data.index(b"PK\1\2", data.rindex(b"cat/x.jpg") + 1)  # in the directory
    data[second + 42 : second + 46] = struct.pack("<L", data.index(b"PK\3\4", within))
    path.write_bytes(data)
    found = [(entry.key, getattr(entry, "detail", "")) for entry in ZipSource(str(path), TableColumns()).entries()]
    shared = "it shares its bytes with another member"
    assert sorted(found) == [("cat/a.jpg", shared), ("cat/b.png", ""), ("cat/x.jpg", ""), ("dog/deep/c.JPEG", "")]


def test_a_zip_directory_too_large_to_hold_is_not_read(tmp_path, monkeypatch):
    source = ZipSource(str(make_zip(tmp_path / "x.zip", FOLDERS)), TableColumns())
    assert len(list(source.entries())) == 3
    monkeypatch.setattr(archive_members, "_MAX_ZIP_DIRECTORY_BYTES", 100)
    with pytest.raises(SourceError, match=r"x\.zip is not a zip archive, or damaged: a header declares \d+ bytes$"):
        list(source.entries())


def test_a_zip_may_have_a_comment(tmp_path):
    path = make_zip(tmp_path / "x.zip", FOLDERS)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"x" * 65535
    assert contents(ZipSource(str(path), TableColumns())) == FOLDERS
