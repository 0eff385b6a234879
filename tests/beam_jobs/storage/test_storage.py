from __future__ import annotations

import errno
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from apache_beam.io.filesystem import BeamIOError

from beam_jobs import storage
from beam_jobs.storage import object_stores
from beam_jobs.storage.object_stores import s3, store_for
from tests.beam_jobs import kill, s3_server
from tests.beam_jobs.object_store import SCHEME, ObjectStore


@pytest.fixture(params=["local", "objects", "s3"])
def root(request, tmp_path, monkeypatch) -> str:
    if request.param == "s3":
        return s3_server.new_bucket(monkeypatch)
    return str(tmp_path) if request.param == "local" else f"{ObjectStore.scheme()}://{tmp_path}"


def files_under(root: str) -> list[str]:
    if storage.is_remote(root):
        return sorted(path for path, *_ in storage.list_objects(root))
    return sorted(str(found.relative_to(root)) for found in Path(root).rglob("*") if found.is_file())


@pytest.mark.parametrize(("path", "remote"), [("gs://b/x", True), ("x:y", False), ("a/b://c", False)])
def test_a_scheme_makes_a_path_remote(path, remote):
    assert storage.is_remote(path) is remote


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        (("gs://bucket/x", "y", "z.parquet"), "gs://bucket/x/y/z.parquet"),
        (("gs://bucket/", "y"), "gs://bucket/y"),
        (("/tmp/x", "/data/y"), "/data/y"),
        (("x",), "x"),
    ],
)
def test_parts_are_joined(parts, joined):
    assert storage.join(*parts) == joined


def test_what_is_written_replaces_what_was_there_and_is_read_back_as_it_is(root):
    path = storage.join(root, "a", "b.gz")  # a name that looks compressed
    storage.write_bytes(path, b"long first content")
    storage.write_bytes(path, b"\x00\xff" * 5)
    assert storage.exists(path)
    assert storage.size(path) == 10
    assert storage.read_bytes(path) == b"\x00\xff" * 5
    assert files_under(root) == ["a/b.gz"]


def test_a_stream_that_is_read_can_be_moved_about_in(root):
    storage.write_bytes(storage.join(root, "x"), b"0123456789")
    with storage.open_read(storage.join(root, "x")) as stream:
        stream.seek(7)
        assert stream.read(2) == b"78"
        assert stream.tell() == 9
        stream.seek(-9, os.SEEK_END)
        assert stream.read() == b"123456789"


def test_streams_that_are_read_at_once_do_not_mix(root):
    data = {name: name.encode() * 3_000_000 for name in "ab"}
    for name, content in data.items():
        storage.write_bytes(storage.join(root, name), content)
    with storage.open_read(storage.join(root, "a")) as one, storage.open_read(storage.join(root, "b")) as other:
        pieces = [(one.read(1_000_000), other.read(1_000_000)) for _ in range(3)]
    assert tuple(b"".join(part) for part in zip(*pieces, strict=True)) == tuple(data.values())


@pytest.mark.parametrize(("offset", "length", "found"), [(7, 99, b"789"), (10, 1, b""), (3, 0, b"")])
def test_a_run_of_bytes_is_read(root, offset, length, found):
    storage.write_bytes(storage.join(root, "x"), b"0123456789")
    assert storage.read_range(storage.join(root, "x"), offset, length) == found


def test_an_empty_file_is_written_and_read(root):
    path = storage.join(root, "x")
    storage.write_bytes(path, b"")
    assert (storage.size(path), storage.read_bytes(path), storage.read_range(path, 0, 9)) == (0, b"", b"")


def test_a_file_larger_than_any_buffer_is_written_and_read(root):
    data = bytes(range(251)) * 150_000  # 37 MB: three parts of an upload
    path = storage.join(root, "x")
    with storage.atomic_writer(path) as stream:
        for start in range(0, len(data), 1 << 20):
            stream.write(data[start : start + (1 << 20)])
    assert storage.size(path) == len(data)
    assert storage.read_bytes(path) == data
    assert storage.read_range(path, 30_000_000, 1000) == data[30_000_000:30_001_000]


def break_off(path: str, error: BaseException) -> None:
    with storage.atomic_writer(path) as stream:
        stream.write(b"half")
        raise error


def test_a_write_that_fails_leaves_what_was_there(root):
    with pytest.raises(RuntimeError, match="half way"):
        break_off(storage.join(root, "d", "new"), RuntimeError("half way"))
    storage.write_bytes(storage.join(root, "x"), b"old")
    with pytest.raises(KeyboardInterrupt):
        break_off(storage.join(root, "x"), KeyboardInterrupt())
    assert files_under(root) == ["x"]
    assert storage.read_bytes(storage.join(root, "x")) == b"old"


def test_the_temporary_file_lies_in_the_scratch_directory_until_the_end(root):
    with storage.atomic_writer(storage.join(root, "out", "x"), storage.join(root, "scratch")) as stream:
        stream.write(b"data")
        stream.flush()
        assert [name for name in files_under(root) if not name.startswith("scratch/")] == []
    assert files_under(root) == ["out/x"]


def test_a_name_without_directory_is_written_where_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage.write_bytes("x", b"here")
    assert files_under(str(tmp_path)) == ["x"]


def test_the_temporary_file_is_hidden(tmp_path):
    with storage.atomic_writer(str(tmp_path / "x")):
        (name,) = files_under(str(tmp_path))
    assert (name[0], name[-4:]) == (".", ".tmp")


def test_a_missing_file_is_an_os_error(root):
    missing = storage.join(root, "none")
    assert not storage.exists(missing)
    with pytest.raises(OSError, match="none"):
        storage.size(missing)
    with pytest.raises(FileNotFoundError, match="none"):
        storage.read_bytes(missing)
    with pytest.raises(FileNotFoundError, match="none"):
        storage.read_range(missing, 0, 1)


@pytest.mark.parametrize("verb", [storage.open_read, storage.read_bytes, lambda path: storage.read_range(path, 0, 1)])
def test_what_would_never_answer_is_an_os_error(tmp_path, verb):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(OSError, match="it is a pipe, socket or device"):
            verb(str(path))
    with pytest.raises(IsADirectoryError):
        verb(str(tmp_path))


def test_a_dangling_link_is_removed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    storage.remove(str(tmp_path / "link"))
    assert not os.path.lexists(tmp_path / "link")


def test_a_file_and_a_tree_with_everything_in_it_are_removed_and_may_be_gone(root):
    for name in ("tree/a", "tree/deep/b", "tree-not", "file", "other"):
        storage.write_bytes(storage.join(root, *name.split("/")), b"x")
    for _ in range(2):
        storage.remove(storage.join(root, "file"))
        storage.remove_tree(storage.join(root, "tree"))
    assert files_under(root) == ["other", "tree-not"]


def test_files_are_listed_by_name_without_what_lies_deeper(root):
    for name in ("d/b", "d/a", "d/deep/c", "e"):
        storage.write_bytes(storage.join(root, *name.split("/")), b"x")
    assert storage.list_files(storage.join(root, "d")) == ["a", "b"]
    assert storage.list_files(storage.join(root, "none")) == []
    assert storage.list_dirs(root) == ["d"]
    assert storage.list_dirs(storage.join(root, "d")) == ["deep"]
    assert storage.list_dirs(storage.join(root, "none")) == []


def test_what_lies_below_a_remote_directory_is_listed_with_size_and_time(store):
    before = time.time_ns() - 10**9  # stores keep whole seconds
    for name in ("d/a b+ä", "d/deep/c", "d2/x", "e"):
        storage.write_bytes(storage.join(store, name), name.encode())
    found = sorted(storage.list_objects(storage.join(store, "d")))
    assert [(path, size) for path, size, *_ in found] == [("a b+ä", 8), ("deep/c", 8)]
    assert all(mtime_ns == 0 or before < mtime_ns < time.time_ns() + 10**9 for _, _, mtime_ns, *_ in found)
    assert list(storage.list_objects(storage.join(store, "none"))) == []


def test_directories_are_made_and_kept(tmp_path):
    for _ in range(2):
        storage.make_dirs(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    storage.make_dirs(f"{SCHEME}://{tmp_path}/none")
    storage.make_dirs("")
    assert not (tmp_path / "none").exists()


def test_a_filesystem_that_lists_no_deeper_is_not_taken_for_an_empty_one(tmp_path, monkeypatch):
    monkeypatch.setattr(ObjectStore, "has_dirs", lambda _: True)
    with pytest.raises(OSError, match="cannot list the files below a folder"):
        list(storage.list_objects(f"{SCHEME}://{tmp_path}"))


def test_markers_of_folders_are_left_out(monkeypatch):
    bucket = s3_server.new_bucket(monkeypatch)
    for key, data in {"d/": b"", "d/cat/": b"", "d/cat/a": b"x", "d/odd/": b"x"}.items():
        s3_server.put(bucket, key, data)
    assert files_under(f"{bucket}/d") == ["cat/a", "odd/"]
    assert files_under(f"{bucket}/d/") == ["cat/a", "odd/"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("s3://no-such-bucket/x", "specified bucket does not exist"),
        ("s3://bucket", "must be in the form"),
        ("nowhere://x/y", "nowhere:// is not a supported filesystem; give a local path, s3:// or gs://"),
    ],
)
def test_what_no_store_holds_is_an_os_error(monkeypatch, tmp_path, path, message):
    s3_server.use_server(monkeypatch)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=message):
        storage.write_bytes(path, b"x")
    with pytest.raises(OSError, match=r"://"):
        storage.read_bytes(path)
    assert list(tmp_path.iterdir()) == []  # nothing is made here instead


@pytest.mark.parametrize("path", ["s3://bucket", "s3://no bucket/a.jpg"])
def test_a_name_that_no_object_can_have_is_a_judgement(monkeypatch, path):
    s3_server.use_server(monkeypatch)
    with pytest.raises(OSError, match=r"^\[Errno 22\] .*[Bb]ucket") as wrong:
        storage.read_range(path, 0, 1)
    assert storage.is_no_file(wrong.value)
    assert "\n" not in str(wrong.value)


def test_errors_of_the_system_stay_what_they_are_and_others_judge_nothing():
    for number, is_judgement in ((errno.ENOENT, True), (errno.EACCES, False), (errno.ESTALE, False)):
        with pytest.raises(OSError, match="^.Errno") as failed, object_stores.os_errors("hdfs://x"):
            raise BeamIOError("failed", {"hdfs://x": OSError(number, os.strerror(number))})
        assert (failed.value.errno, storage.is_no_file(failed.value)) == (number, is_judgement)
    for error in (BeamIOError("failed", {"x": RuntimeError("no answer")}), ValueError("no key"), OSError("no login")):
        with pytest.raises(OSError, match="no ") as failed, object_stores.os_errors("x"):
            raise error
        assert not storage.is_no_file(failed.value)


def test_a_store_that_does_not_answer_is_an_os_error_and_soon(monkeypatch):
    s3_server.use_server(monkeypatch)
    monkeypatch.setattr(s3, "_stores", [])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for ask in (storage.exists, lambda path: list(storage.list_objects(path))):
        with pytest.raises(OSError, match="Could not connect to the endpoint URL"):
            ask("s3://bucket/x")


def test_threads_share_the_client_of_a_store_and_do_not_mix_what_they_read(monkeypatch):
    bucket = s3_server.new_bucket(monkeypatch)
    data = {f"{bucket}/{name}": name.encode() * 3_000_000 for name in "abcd"}
    for path, content in data.items():
        s3_server.put(bucket, path[-1], content)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(storage.read_bytes, [*data] * 2)) == [*data.values()] * 2
        assert len({id(store) for store in pool.map(store_for, data)}) == 1


def test_what_goes_wrong_first_is_the_reason_and_not_the_tidying_up(tmp_path):
    def write() -> None:
        with storage.atomic_writer(str(tmp_path / "file")) as stream:
            os.remove(stream.name)
            os.mkdir(stream.name)  # which `remove` does not take
            raise ValueError("the reason")

    with pytest.raises(ValueError, match="the reason"):
        write()
    assert not (tmp_path / "file").exists()


def test_a_file_is_created_once_and_the_same_content_counts_as_created(root):
    path = storage.join(root, "new", "x")
    assert storage.create_exclusive(path, b"first")
    assert not storage.create_exclusive(path, b"second")
    assert storage.create_exclusive(path, b"first"), "an answer that was lost"
    assert storage.read_bytes(path) == b"first"
    assert files_under(root) == ["new/x"]


@pytest.mark.parametrize("before", [None, b"other"])
def test_without_hard_links_a_file_is_created_all_the_same(tmp_path, before):
    path = tmp_path / "x"
    if before:
        path.write_bytes(before)

    def create() -> None:
        sys.addaudithook(lambda event, _: os.open("/nowhere/at/all", 0) if event == "os.link" else None)
        sys.exit(2 if storage.create_exclusive(str(path), b"new") else 3)

    assert kill.in_a_child(create) == (3 if before else 2)
    assert path.read_bytes() == (before or b"new")
    assert os.listdir(tmp_path) == ["x"]


def test_a_file_that_is_longer_than_allowed_is_not_read_to_its_end(tmp_path, place):
    (tmp_path / "x").write_bytes(b"12345")
    assert storage.read_at_most(f"{place}/x", 5) == b"12345"
    with pytest.raises(ValueError, match="it has more than 4 bytes"):
        storage.read_at_most(f"{place}/x", 4)
