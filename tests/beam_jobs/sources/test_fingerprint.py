from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import io
import os
import shutil
import sqlite3
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from beam_jobs import storage
from beam_jobs.dataset import manifest
from beam_jobs.errors import Unreadable
from beam_jobs.options import ImageLimits, TableColumns
from beam_jobs.sources.fingerprint import dataset_fingerprint, source_fingerprint
from beam_jobs.sources.image_reader import Reader
from tests.beam_jobs import gcs_server, kill, s3_server
from tests.beam_jobs.entries import make
from tests.beam_jobs.make_archives import add, make_tar
from tests.beam_jobs.make_rows import make_options
from tests.beam_jobs.object_store import SCHEME
from tests.beam_jobs.web_server import HERE, Page, serving, status
from tests.make_images import jpeg

NAMES = ("cat/a.jpg", "cat/b.jpg", "dog/c.jpg")


@pytest.fixture
def source(tmp_path) -> Path:
    return make(tmp_path / "source", *NAMES)


def fingerprint(source: Path, **fields) -> str:
    return source_fingerprint(make_options(source=str(source), **fields))


def move_to_another_class(source: Path) -> None:
    (source / "cat" / "b.jpg").rename(source / "dog" / "b.jpg")  # still the second of the three


def rename(source: Path) -> None:
    (source / "cat" / "a.jpg").rename(source / "cat" / "aa.jpg")  # still the first of the three


def edit_in_place(source: Path) -> None:
    path = source / "cat" / "a.jpg"
    status = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


def swap(source: Path) -> None:
    one, other = source / "cat" / "a.jpg", source / "dog" / "c.jpg"
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def add_a_file_outside_the_classes(source: Path) -> None:
    (source / "loose.jpg").write_bytes(b"rejected for want of a label")


@pytest.mark.parametrize(
    "change",
    [move_to_another_class, rename, edit_in_place, swap, add_a_file_outside_the_classes],
    ids=lambda f: f.__name__,
)
def test_a_change_of_the_source_changes_the_fingerprint(source, change):
    before = fingerprint(source)
    change(source)
    assert fingerprint(source) != before


def test_touching_changes_nothing(source):
    before = fingerprint(source)
    for path in source.rglob("*.jpg"):
        os.utime(path, (1, 1))
    (source / "cat" / ".hidden").write_bytes(b"")
    assert fingerprint(source) == before


def test_where_the_source_lies_and_how_many_threads_read_it_changes_nothing(source, tmp_path):
    moved = shutil.copytree(source, tmp_path / "elsewhere")
    assert fingerprint(source) == fingerprint(moved, threads=1) == fingerprint(source, threads=5)
    assert len(bytes.fromhex(fingerprint(source))) == 32


def test_a_file_that_vanishes_is_part_of_the_fingerprint(source):
    table = source / "table.csv"
    table.write_text("image,label\ncat/a.jpg,cat\ncat/none.jpg,cat\n")
    before = fingerprint(table)
    (source / "cat" / "none.jpg").write_bytes(b"here after all")
    assert fingerprint(table) != before


def test_what_cannot_be_read_now_gives_no_fingerprint_unless_it_is_to_be_rejected(tmp_path):
    (tmp_path / "bad.jpg").symlink_to("/proc/self/mem")  # no process can read its first byte
    (tmp_path / "table.csv").write_text("image,label\nbad.jpg,cat\n")
    table = tmp_path / "table.csv"
    with pytest.raises(Unreadable, match="^bad.jpg cannot be read: Input/output error; repair the cause, or set"):
        fingerprint(table)
    without = fingerprint(table, unreadable="reject")
    (tmp_path / "bad.jpg").unlink()
    (tmp_path / "bad.jpg").write_bytes(jpeg())
    assert fingerprint(table, unreadable="reject") == fingerprint(table) != without


def test_the_columns_that_are_asked_for_are_part_of_the_fingerprint(source):
    table = source / "table.csv"
    table.write_text("image,label,age\ncat/a.jpg,cat,3\n")
    plain, with_age = fingerprint(table), fingerprint(table, columns=TableColumns(extra=("age",)))
    assert plain != with_age
    table.write_text("image,label,age\ncat/a.jpg,cat,4\n")
    assert fingerprint(table) == plain
    assert fingerprint(table, columns=TableColumns(extra=("age",))) != with_age


def test_no_more_than_the_largest_file_allowed_is_read(source):
    limits = ImageLimits(max_bytes=20)
    (source / "cat" / "a.jpg").write_bytes(b"x" * 21)
    before = fingerprint(source, limits=limits)
    (source / "cat" / "a.jpg").write_bytes(b"x" * 500)
    assert fingerprint(source, limits=limits) == before


MASKED = TableColumns(mask="mask", weight="weight")


@pytest.fixture
def masked(source) -> Path:
    (source / "mask.png").write_bytes(b"classes")
    (source / "table.csv").write_text("image,label,mask,weight\ncat/a.jpg,cat,mask.png,1\n")
    return source / "table.csv"


def test_the_weight_of_an_image_and_what_is_in_its_mask_are_part_of_the_fingerprint(source, masked):
    before = fingerprint(masked, columns=MASKED)
    os.utime(source / "mask.png", (1, 1))
    assert fingerprint(masked, columns=MASKED) == before
    masked.write_text(masked.read_text().replace(",1\n", ",2\n"))
    heavier = fingerprint(masked, columns=MASKED)
    (source / "mask.png").write_bytes(b"CLASSES")
    assert len({before, heavier, fingerprint(masked, columns=MASKED)}) == 3


def test_an_image_and_its_mask_are_told_apart(source, masked):
    (source / "mask.png").write_bytes((source / "cat" / "a.jpg").read_bytes()[::-1])
    before = fingerprint(masked, columns=MASKED)
    for name in ("mask.png", "cat/a.jpg"):
        (source / name).write_bytes((source / name).read_bytes()[::-1])
    assert fingerprint(masked, columns=MASKED) != before


def pack(path: Path, data: bytes, comment: str = "") -> Path:
    files = {"a.jpg": data, "a.cls": b"7"}
    return make_tar(path, files, format=tarfile.PAX_FORMAT, pax_headers={"comment": comment})


def test_where_an_image_lies_in_an_archive_changes_nothing(tmp_path):
    archive = tmp_path / "photos.tar"
    plain, moved = fingerprint(pack(archive, b"one")), fingerprint(pack(archive, b"one", "x" * 2000))
    assert plain == moved
    assert fingerprint(pack(archive, b"two")) != plain


def test_the_content_of_a_remote_source_is_part_of_the_fingerprint(source):
    table = f"{SCHEME}://{source}/table.csv"
    (source / "table.csv").write_text("image,label\ncat/a.jpg,cat\n")
    before = fingerprint(table)
    assert fingerprint(source / "table.csv") == before
    (source / "cat" / "a.jpg").write_bytes(b"edited")
    assert fingerprint(table) != before


def test_a_dataset_is_known_by_what_its_manifest_says_and_not_by_where_it_lies(dataset, tmp_path):
    made = manifest.load(str(dataset))
    moved = manifest.load(str(shutil.copytree(dataset, tmp_path / "elsewhere")))
    assert dataset_fingerprint(moved) == dataset_fingerprint(made)
    assert len(bytes.fromhex(dataset_fingerprint(made))) == 32


@pytest.mark.parametrize("field", ["labels", "counts", "tables", "options"])
def test_whatever_a_manifest_says_is_part_of_its_fingerprint(dataset, field):
    made = manifest.load(str(dataset))
    other = {
        "labels": ("china", "rose"),
        "counts": dataclasses.replace(made.counts, rejects={"not_an_image": 3}),
        "tables": dict.fromkeys(made.tables, "0" * 64),
        "options": {**made.options, "seed": 99},
    }
    assert dataset_fingerprint(dataclasses.replace(made, **{field: other[field]})) != dataset_fingerprint(made)


@pytest.fixture
def index(source, tmp_path, monkeypatch) -> str:
    """An index that has every file of the source, as if each were ten seconds old."""
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 10 * 10**9)
    source_fingerprint(make_options(source=str(source)), str(tmp_path / "index"))
    time.sleep(0.05)  # the clock of the file system ticks
    return str(tmp_path / "index")


def read_with(index: str, source: Path) -> tuple[str, list[str]]:
    """Returns the fingerprint, and the images that were read for it."""
    opened, over = [], []
    kill.on_each_moment((str(source),), lambda path: over or opened.append(path))
    found = source_fingerprint(make_options(source=str(source)), index)
    over.append(True)
    return found, sorted(os.path.relpath(path, source) for path in opened if path.endswith(".jpg"))


def test_of_an_unchanged_source_nothing_is_read_again(source, index):
    assert read_with(index, source) == (fingerprint(source), [])


def touch(source: Path) -> None:
    os.utime(source / "cat" / "a.jpg", (1, 1))


def copy(source: Path) -> None:
    """Replaces a file by a copy with all of its times that can be set."""
    path = source / "cat" / "a.jpg"
    shutil.copy2(path, source / "copy")
    (source / "copy").replace(path)


@pytest.mark.parametrize(
    ("change", "read"),
    [
        (move_to_another_class, ["dog/b.jpg"]),
        (rename, ["cat/aa.jpg"]),
        (edit_in_place, ["cat/a.jpg"]),
        (swap, ["cat/a.jpg", "dog/c.jpg"]),
        (touch, ["cat/a.jpg"]),
        (copy, ["cat/a.jpg"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_changed_is_read_again_and_nothing_else(source, index, change, read):
    change(source)
    assert read_with(index, source) == (fingerprint(source), read)
    assert read_with(index, source) == (fingerprint(source), [])


def test_a_file_is_read_again_that_may_have_changed_within_a_tick_of_the_clock(source, tmp_path):
    for _ in range(2):
        assert read_with(str(tmp_path / "index"), source)[1] == [*NAMES]


def test_images_of_an_archive_are_known_by_the_archive(tmp_path, index):
    for data in (b"one", b"one", b"two"):
        archive = pack(tmp_path / "photos.tar", data)
        assert source_fingerprint(make_options(source=str(archive)), index) == fingerprint(archive)
        time.sleep(0.05)


def test_what_is_gone_is_forgotten(source, index):
    (source / "cat" / "a.jpg").unlink()
    read_with(index, source)
    with contextlib.closing(sqlite3.connect(index)) as database:
        paths = database.execute("SELECT path FROM files ORDER BY path").fetchall()
    assert paths == [(str(source / name).encode(),) for name in ("cat/b.jpg", "dog/c.jpg")]


def of_another_release(index: Path) -> None:
    index.unlink()
    with contextlib.closing(sqlite3.connect(index)) as database:
        database.execute("CREATE TABLE files (path TEXT)")


@pytest.mark.parametrize("part", [slice(0, 20), slice(4096, 4300), None], ids=["header", "rows", "another release"])
def test_a_damaged_index_and_one_of_another_release_are_made_again(source, index, part):
    if part:
        data = bytearray(Path(index).read_bytes())
        data[part] = bytes(part.stop - part.start)
        Path(index).write_bytes(data)
    else:
        of_another_release(Path(index))
    assert read_with(index, source) == (fingerprint(source), [*NAMES])
    assert not Path(index).exists()
    assert read_with(index, source) == (fingerprint(source), [*NAMES])
    assert read_with(index, source) == (fingerprint(source), [])


def test_the_part_of_a_file_that_is_too_large_is_not_taken_for_the_file(source, index):
    (source / "cat" / "a.jpg").write_bytes(b"x" * 21)
    limited = make_options(source=str(source), limits=ImageLimits(max_bytes=20))
    assert source_fingerprint(limited, index) == source_fingerprint(limited)
    assert read_with(index, source) == (fingerprint(source), ["cat/a.jpg"])


def test_an_index_that_cannot_be_written_is_done_without(source):
    assert read_with("/proc/nowhere/index", source)[0] == fingerprint(source)


@contextlib.contextmanager
def bucket(scheme: str, monkeypatch: pytest.MonkeyPatch, directory: Path) -> Iterator[tuple[str, Callable]]:
    """Yields the URL of a new bucket, and a function that stores an object."""
    if scheme == "s3":
        url = s3_server.new_bucket(monkeypatch)
        yield url, functools.partial(s3_server.put, url)
    else:
        with gcs_server.serving(monkeypatch, directory) as server:
            yield "gs://bucket", server.objects.__setitem__


def put_folder(put: Callable, contents: dict[str, bytes]) -> str:
    for name, data in contents.items():
        put(f"photos/{name}", data)
    return "photos"


def put_table(put: Callable, contents: dict[str, bytes]) -> str:
    folder = put_folder(put, contents)
    put("photos.csv", "".join(["image,label\n", *(f"{folder}/{name},cat\n" for name in contents)]).encode())
    return "photos.csv"


def put_archive(put: Callable, contents: dict[str, bytes]) -> str:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in contents.items():
            add(archive, name, data)
    put("photos.tar", stream.getvalue())
    return "photos.tar"


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("store", [put_folder, put_table, put_archive], ids=lambda f: f.__name__)
def test_a_store_knows_what_its_objects_contain(scheme, store, monkeypatch, tmp_path):
    contents = {name: name.encode() for name in NAMES}
    read = []
    with bucket(scheme, monkeypatch, tmp_path) as (url, put):
        monkeypatch.setattr(Reader, "read", lambda *arguments: read.append(arguments) or b"")
        before = fingerprint(f"{url}/{store(put, contents)}")
        assert fingerprint(f"{url}/{store(put, contents)}") == before  # with another time
        changed = contents | {NAMES[0]: contents[NAMES[0]][::-1]}
        assert fingerprint(f"{url}/{store(put, changed)}") != before
    assert read == []


def tagged(data: bytes, tag: str, head: int = 200) -> Page:
    return lambda handler: handler.answer(head if handler.command == "HEAD" else 200, data, ETag=tag)


@pytest.mark.parametrize(
    ("tag", "head", "reads"),
    [('"{}"', 200, 0), ('W/"{}"', 200, 1), ('""', 200, 1), ("{}", 200, 1), ('"{}"', 405, 1), ('"{}"', 404, 1)],
    ids=["strong", "weak", "empty", "no quotes", "no header alone", "signed for GET alone"],
)
def test_a_web_server_with_strong_tags_is_not_read(tmp_path, tag, head, reads):
    pages = {"/a.jpg": tagged(b"a" * 9, tag.format(1), head), "/b.jpg": tagged(b"b" * 9, tag.format(2), head)}
    with serving({**pages, "/old.jpg": status(302, Location="/a.jpg")}) as server:
        (tmp_path / "t.csv").write_text("image,label\n" + "".join(f"{server.url(path)},c\n" for path in server.pages))
        before = fingerprint(tmp_path / "t.csv", http=HERE)
        assert server.seen == Counter({"/a.jpg": 2 * reads, "/b.jpg": reads, "/old.jpg": reads})
        assert fingerprint(tmp_path / "t.csv", http=HERE) == before
        server.pages["/b.jpg"] = tagged(b"x" * 9, tag.format(3), head)
        assert fingerprint(tmp_path / "t.csv", http=HERE) != before


@pytest.mark.parametrize("unreadable", ["stop", "reject"])
def test_a_store_that_does_not_answer_is_not_read_instead(unreadable, monkeypatch, tmp_path):
    def fail(path: str) -> None:
        raise OSError(errno.EIO, "503", path)

    with bucket("s3", monkeypatch, tmp_path) as (url, put):
        table = f"{url}/{put_table(put, {name: name.encode() for name in NAMES})}"
        known = fingerprint(table, unreadable=unreadable)
        monkeypatch.setattr(storage, "describe", fail)
        monkeypatch.setattr(Reader, "read", lambda *_: pytest.fail("it is read"))
        if unreadable == "stop":
            with pytest.raises(Unreadable, match=r"photos/cat/a.jpg cannot be read: 503; repair the cause"):
                fingerprint(table)
        else:
            assert fingerprint(table, unreadable=unreadable) != known


def test_an_object_that_a_table_names_and_that_is_missing_is_part_of_the_fingerprint(monkeypatch, tmp_path):
    with bucket("gs", monkeypatch, tmp_path) as (url, put):
        table = f"{url}/{put_table(put, {name: name.encode() for name in NAMES})}"
        put("photos.csv", b"image,label\nphotos/cat/a.jpg,cat\nphotos/cat/none.jpg,cat\n")
        missing = fingerprint(table)
        put("photos/cat/none.jpg", b"none")
        assert fingerprint(table) != missing
