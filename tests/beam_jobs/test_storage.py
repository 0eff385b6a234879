from __future__ import annotations

import os

import pytest

from beam_jobs import storage
from tests.beam_jobs.object_store import SCHEME, ObjectStore


@pytest.fixture(params=["local", "remote"])
def root(request, tmp_path) -> str:
    return str(tmp_path) if request.param == "local" else f"{ObjectStore.scheme()}://{tmp_path}"


def files_under(path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*") if found.is_file())


@pytest.mark.parametrize(
    ("path", "remote"),
    [("gs://b/x", True), ("s3://b", True), ("objects:///tmp/x", True), ("/tmp/x", False), ("x:y", False), ("", False)],
)
def test_a_scheme_makes_a_path_remote(path, remote):
    assert storage.is_remote(path) is remote


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        (("gs://bucket/x", "y", "z.parquet"), "gs://bucket/x/y/z.parquet"),
        (("gs://bucket/", "y"), "gs://bucket/y"),
        (("/tmp/x", "y", "z"), os.path.join("/tmp/x", "y", "z")),
        (("/tmp/x", "/data/y"), "/data/y"),
        (("x",), "x"),
    ],
)
def test_parts_are_joined(parts, joined):
    assert storage.join(*parts) == joined


def test_what_is_written_is_read_back(root, tmp_path):
    path = storage.join(root, "a", "b.bin")
    storage.write_bytes(path, b"\x00\xff" * 5)
    assert storage.exists(path)
    assert storage.size(path) == 10
    assert storage.read_bytes(path) == b"\x00\xff" * 5
    assert files_under(tmp_path) == ["a/b.bin"]


def test_writing_again_replaces(root, tmp_path):
    path = storage.join(root, "x")
    storage.write_bytes(path, b"long first")
    storage.write_bytes(path, b"second")
    assert storage.read_bytes(path) == b"second"
    assert files_under(tmp_path) == ["x"]


def test_a_name_that_looks_compressed_is_left_as_it_is(root, tmp_path):
    storage.write_bytes(storage.join(root, "x.gz"), b"plain")
    assert (tmp_path / "x.gz").read_bytes() == b"plain"
    assert storage.read_bytes(storage.join(root, "x.gz")) == b"plain"


def test_a_stream_that_is_read_can_be_moved_about_in(root):
    storage.write_bytes(storage.join(root, "x"), b"0123456789")
    with storage.open_read(storage.join(root, "x")) as stream:
        stream.seek(7)
        assert stream.read(2) == b"78"


def break_off(path: str, error: BaseException) -> None:
    with storage.atomic_writer(path) as stream:
        stream.write(b"half")
        raise error


def test_a_write_that_fails_leaves_nothing(root, tmp_path):
    with pytest.raises(RuntimeError, match="half way"):
        break_off(storage.join(root, "d", "x"), RuntimeError("half way"))
    assert files_under(tmp_path) == []


def test_a_write_that_fails_leaves_the_old_file(root, tmp_path):
    storage.write_bytes(storage.join(root, "x"), b"old")
    with pytest.raises(KeyboardInterrupt):
        break_off(storage.join(root, "x"), KeyboardInterrupt())
    assert files_under(tmp_path) == ["x"]
    assert storage.read_bytes(storage.join(root, "x")) == b"old"


def test_the_temporary_file_lies_in_the_scratch_directory_until_the_end(root, tmp_path):
    with storage.atomic_writer(storage.join(root, "out", "x"), storage.join(root, "scratch")) as stream:
        stream.write(b"data")
        stream.flush()
        assert [name for name in files_under(tmp_path) if not name.startswith("scratch/")] == []
    assert files_under(tmp_path) == ["out/x"]


def test_the_temporary_file_is_hidden(tmp_path):
    with storage.atomic_writer(str(tmp_path / "x")):
        (name,) = files_under(tmp_path)
    assert name.startswith(".")
    assert name.endswith(".tmp")


def test_a_name_without_directory_is_written_where_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage.write_bytes("x", b"here")
    assert files_under(tmp_path) == ["x"]


def test_a_missing_file_is_an_os_error(root):
    missing = storage.join(root, "none")
    assert not storage.exists(missing)
    with pytest.raises(OSError, match="none"):
        storage.size(missing)
    with pytest.raises(OSError, match="none"):
        storage.read_bytes(missing)


def test_removing_is_repeatable(root, tmp_path):
    path = storage.join(root, "x")
    storage.write_bytes(path, b"")
    storage.write_bytes(storage.join(root, "y"), b"")
    storage.remove(path)
    storage.remove(path)
    assert files_under(tmp_path) == ["y"]


def test_a_dangling_link_is_removed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    storage.remove(str(tmp_path / "link"))
    assert not os.path.lexists(tmp_path / "link")


def test_a_tree_is_removed_with_everything_in_it(root, tmp_path):
    for name in ("tree/a", "tree/deep/b", "tree-not", "other"):
        storage.write_bytes(storage.join(root, *name.split("/")), b"x")
    storage.remove_tree(storage.join(root, "tree"))
    storage.remove_tree(storage.join(root, "tree"))
    assert files_under(tmp_path) == ["other", "tree-not"]


def test_files_are_listed_by_name_without_what_lies_deeper(root):
    for name in ("d/b", "d/a", "d/deep/c", "e"):
        storage.write_bytes(storage.join(root, *name.split("/")), b"x")
    assert storage.list_files(storage.join(root, "d")) == ["a", "b"]
    assert storage.list_files(storage.join(root, "none")) == []


def test_directories_are_made_and_kept(tmp_path):
    for _ in range(2):
        storage.make_dirs(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    storage.make_dirs(f"{SCHEME}://{tmp_path}/none")
    storage.make_dirs("")
    assert not (tmp_path / "none").exists()
