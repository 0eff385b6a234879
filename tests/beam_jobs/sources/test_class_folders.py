from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from beam_jobs.errors import SourceError
from beam_jobs.sources import class_folders
from beam_jobs.sources.class_folders import ClassFolders
from beam_jobs.sources.factory import open_source
from tests.beam_jobs import entries
from tests.beam_jobs.entries import hidden_in, make
from tests.beam_jobs.make_rows import make_options


def found_in(root: Path) -> list[tuple[str, str]]:
    return entries.found_in(ClassFolders(str(root)))


def test_the_first_folder_is_the_class_and_the_relative_path_the_key(tmp_path):
    make(tmp_path, "dog/b.jpg", "cat/a.jpg", "cat/deep/er/a.png", "cat/Z.txt")
    assert found_in(tmp_path) == [
        ("cat/Z.txt", "cat"),
        ("cat/a.jpg", "cat"),
        ("cat/deep/er/a.png", "cat"),
        ("dog/b.jpg", "dog"),
    ]
    first = next(ClassFolders(str(tmp_path)).entries())
    assert (first.uri, first.bytes) == ("cat/Z.txt", 9)
    assert first.mtime_ns == (tmp_path / "cat" / "Z.txt").stat().st_mtime_ns
    assert (first.group, first.split, first.extra) == ("", "", {})


def test_what_file_managers_leave_is_passed_over(tmp_path):
    make(tmp_path, "cat/a.jpg", "cat/.DS_Store", "cat/Thumbs.db", "cat/desktop.ini", "__MACOSX/x.jpg", ".git/x", ".x")
    assert found_in(tmp_path) == [("cat/a.jpg", "cat")]
    hidden = [".git/", "__MACOSX/", ".x", "cat/.DS_Store", "cat/Thumbs.db"]
    assert hidden_in(ClassFolders(str(tmp_path))) == (6, hidden)


def test_a_hidden_class_folder_is_counted_once_and_shown_before_files_and_other_names_before_its_like(tmp_path):
    make(tmp_path, "cat/1.jpg", "cat/.DS_Store", "dog/.DS_Store", "dog/.t/1.jpg", ".net/1.jpg", ".net/2.jpg")
    make(tmp_path, *(f"cat/._{number}.jpg" for number in range(6)))
    hidden = [".net/", "dog/.t/", "cat/.DS_Store", "cat/._0.jpg", "cat/._1.jpg"]
    assert hidden_in(ClassFolders(str(tmp_path))) == (10, hidden)


def test_names_that_only_begin_like_litter_are_images(tmp_path):
    make(tmp_path, "cat/desktop.initial.jpg", "cat/Thumbs.db.jpg", "__MACOSX screens/a.jpg")
    assert [key for key, _ in found_in(tmp_path)] == [
        "__MACOSX screens/a.jpg",
        "cat/Thumbs.db.jpg",
        "cat/desktop.initial.jpg",
    ]


def test_links_within_the_root_are_followed_once(tmp_path):
    make(tmp_path, "a/1.jpg", "b/2.jpg")
    (tmp_path / "a" / "again").symlink_to("../b")
    (tmp_path / "b" / "loop").symlink_to("..")
    (tmp_path / "b" / "file.jpg").symlink_to("../a/1.jpg")
    assert found_in(tmp_path) == [("a/1.jpg", "a"), ("a/again/2.jpg", "a"), ("a/again/file.jpg", "a")]


@pytest.mark.parametrize("place", ["dog", "cat/dir"])
def test_a_folder_that_leads_out_of_the_root_stops_everything(tmp_path, place):
    # As one reject it could stand for a whole class and stay under every limit.
    make(tmp_path, "root/cat/a.jpg", "secret/key.jpg")
    (tmp_path / "root" / place).symlink_to(tmp_path / "secret")
    message = f"root/{place} is a link that points outside the source"
    with pytest.raises(SourceError, match=message):
        found_in(tmp_path / "root")
    if place == "dog":  # a class folder is refused before anything is read
        with pytest.raises(SourceError, match=message):
            ClassFolders(str(tmp_path / "root")).check()


def test_a_link_out_of_the_root_and_a_file_beside_the_class_folders_are_rejected(tmp_path):
    make(tmp_path, "root/cat/a.jpg", "secret/key.jpg", "root/loose.jpg")
    (tmp_path / "root" / "cat" / "file.jpg").symlink_to(tmp_path / "secret" / "key.jpg")
    assert found_in(tmp_path / "root") == [
        ("cat/a.jpg", "cat"),
        ("cat/file.jpg", "! outside_root"),
        ("loose.jpg", "! no_label"),
    ]


def test_a_link_to_itself_beside_the_class_folders_is_rejected(tmp_path):
    make(tmp_path, "cat/a.jpg")
    (tmp_path / "loop").symlink_to("loop")
    ClassFolders(str(tmp_path)).check()
    *_, reject = ClassFolders(str(tmp_path)).entries()
    assert (reject.key, reject.stage, reject.reason) == ("loop", "scan", "no_label")


def test_a_directory_that_is_gone_by_the_time_it_is_listed_stops_everything(tmp_path, monkeypatch):
    make(tmp_path, "cat/a.jpg")
    monkeypatch.setattr(
        class_folders, "check_directory", lambda path, root: path.endswith("cat") and shutil.rmtree(path)
    )
    with pytest.raises(SourceError, match="cannot be read: No such file or directory$"):
        found_in(tmp_path)


def test_the_root_itself_may_be_a_link(tmp_path):
    make(tmp_path, "root/cat/a.jpg")
    (tmp_path / "link").symlink_to("root")
    assert found_in(tmp_path / "link") == [("cat/a.jpg", "cat")]


def test_a_name_that_is_not_utf8_is_rejected_under_a_printable_one(tmp_path):
    make(tmp_path, "cat/a.jpg")
    Path(os.fsdecode(os.fsencode(tmp_path / "cat") + b"/caf\xe9.jpg")).write_bytes(b"x")
    assert found_in(tmp_path) == [("cat/a.jpg", "cat"), ("cat/caf\\xe9.jpg", "! name_not_utf8")]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "holds nothing; it must hold one folder per class, with the images in them$"),
        ([".git/x"], "holds no visible folder; it must hold one folder per class, with the images in them$"),
        (["1.jpg", ".2.jpg"], "holds 1 file and no folder; it must hold .*, or give a table .* --label-column ''"),
        (["cat/.hidden"], "has 1 class folders and all are empty; put the images there$"),
    ],
)
def test_a_folder_without_images_in_classes_is_no_source(tmp_path, names, message):
    make(tmp_path, *names)
    with pytest.raises(SourceError, match=f"^{tmp_path} {message}"):
        ClassFolders(str(tmp_path)).check()


@pytest.mark.parametrize(("name", "message"), [("none", "No such file or directory"), ("file", "Not a directory")])
def test_what_is_no_folder_cannot_be_read(tmp_path, name, message):
    make(tmp_path, "file")
    with pytest.raises(SourceError, match=f"^{tmp_path}/{name} cannot be read: {message}$"):
        ClassFolders(str(tmp_path / name)).check()


@pytest.mark.parametrize(
    ("name", "message"), [("none", "does not exist; give a folder"), ("cat/a.jpg", "is not a source; give a folder")]
)
def test_what_is_neither_folder_nor_table_is_refused(tmp_path, name, message):
    make(tmp_path, "cat/a.jpg")
    with pytest.raises(
        SourceError,
        match=f"^{tmp_path}/{name} {message} with one sub-folder per class, a glob, or a file that ends in ",
    ):
        open_source(make_options(source=str(tmp_path / name)))
