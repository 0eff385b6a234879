from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from beam_jobs.errors import SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources.class_folders import GlobSource
from beam_jobs.sources.factory import open_source
from tests.beam_jobs.entries import found_in, hidden_in, make
from tests.beam_jobs.make_rows import make_options
from tests.beam_jobs.object_store import SCHEME

UNLABELLED = TableColumns(label="")


def found_by(pattern: str, columns: TableColumns = TableColumns()) -> list[tuple[str, str]]:  # noqa: B008
    return found_in(GlobSource(pattern, columns))


TREE = ("cat/a.jpg", "cat/b.PNG", "cat/deep/c.jpg", "cat/deep/er/d.jpg", "dog/a.jpg", "dog/a.txt", "loose.jpg")


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("*/?.*", "cat/a.jpg cat/b.PNG dog/a.jpg dog/a.txt"),
        ("[!d]*/*", "cat/a.jpg cat/b.PNG"),
        ("**/*.jpg", "cat/a.jpg cat/deep/c.jpg cat/deep/er/d.jpg dog/a.jpg loose.jpg"),
        ("**/deep/**/*.jpg", "cat/deep/c.jpg cat/deep/er/d.jpg"),
        ("**/**/**/l*", "loose.jpg"),
        ("*/**", "cat/a.jpg cat/b.PNG cat/deep/c.jpg cat/deep/er/d.jpg dog/a.jpg dog/a.txt"),
        ("./*//a.*", "cat/a.jpg dog/a.jpg dog/a.txt"),
        ("*/*.{jpg,PNG}", "cat/a.jpg cat/b.PNG dog/a.jpg"),
        ("{cat/deep,dog}/*.jpg", "cat/deep/c.jpg dog/a.jpg"),
        ("{cat,c*}/a.jpg", "cat/a.jpg"),
        ("*/../*", ""),
    ],
)
def test_files_that_match_are_found_once_and_in_order(tmp_path, pattern, keys):
    make(tmp_path, *reversed(TREE))
    assert [key for key, _ in found_by(f"{tmp_path}/{pattern}", UNLABELLED)] == keys.split()


def test_the_first_folder_below_the_fixed_part_is_the_class(tmp_path):
    make(tmp_path, *TREE)
    assert found_by(f"{tmp_path}/**/*.jpg") == [
        ("cat/a.jpg", "cat"),
        ("cat/deep/c.jpg", "cat"),
        ("cat/deep/er/d.jpg", "cat"),
        ("dog/a.jpg", "dog"),
        ("loose.jpg", "! no_label"),
    ]
    assert found_by(f"{tmp_path}/cat/*/*.jpg") == [("deep/c.jpg", "deep")]


def test_without_a_label_column_folders_are_no_classes(tmp_path):
    make(tmp_path, "cat/a.jpg", "loose.jpg")
    assert found_by(f"{tmp_path}/**/*", UNLABELLED) == [("cat/a.jpg", ""), ("loose.jpg", "")]
    assert GlobSource("x/*", UNLABELLED).label_kind == "none"
    assert GlobSource("x/*", TableColumns()).label_kind == "single"


@pytest.mark.parametrize(
    ("pattern", "base"),
    [
        ("photos/2024-*/x.jpg", "photos"),
        ("/data/photos/{a,b}/*", "/data/photos"),
        ("*.jpg", "."),
        ("/*.jpg", "/"),
        ("gs://bucket/dir/a?/x", "gs://bucket/dir"),
    ],
)
def test_uris_are_relative_to_what_stands_before_the_first_wildcard(pattern, base):
    assert GlobSource(pattern, TableColumns()).base == base


def test_a_pattern_starts_where_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(make(tmp_path, "cat/a.jpg"))
    assert found_by("*/*.jpg") == [("cat/a.jpg", "cat")]
    assert found_by("./c*/*.jpg") == [("cat/a.jpg", "cat")]


def test_what_is_hidden_is_found_only_when_it_is_asked_for(tmp_path):
    make(tmp_path, "cat/a.jpg", "cat/.b.jpg", ".git/c.jpg", "cat/Thumbs.db", "__MACOSX/d.jpg")
    assert found_by(f"{tmp_path}/**/*") == [("cat/a.jpg", "cat")]
    assert found_by(f"{tmp_path}/*/.*") == [("cat/.b.jpg", "cat")]
    assert found_by(f"{tmp_path}/.g*/*") == [(".git/c.jpg", ".git")]


@pytest.mark.parametrize(
    ("pattern", "hidden"),
    [
        ("**/*", (4, [".git/", "__MACOSX/", "cat/.b.jpg", "cat/Thumbs.db"])),
        ("*/*.jpg", (3, [".git/", "__MACOSX/", "cat/.b.jpg"])),
        ("*/.*", (2, [".git/", "__MACOSX/"])),
        ("{.git,cat}/{*,.*}", (1, ["cat/Thumbs.db"])),
    ],
)
def test_what_would_match_were_it_not_hidden_is_counted(tmp_path, pattern, hidden):
    make(tmp_path, "cat/a.jpg", "cat/.b.jpg", ".git/c.jpg", "cat/Thumbs.db", "__MACOSX/d.jpg")
    assert hidden_in(GlobSource(f"{tmp_path}/{pattern}", TableColumns(label=""))) == hidden
    count, names = hidden_in(GlobSource(f"{SCHEME}://{tmp_path}/{pattern}", TableColumns(label="")))
    assert (count, sorted(names)) == hidden  # the store has an order of its own


def test_a_folder_that_matches_in_two_ways_loses_nothing(tmp_path):
    # Entered first as `a`, where only .png counts, and then as `b`, which is a link to it.
    make(tmp_path, "a/1.jpg", "a/2.png")
    (tmp_path / "b").symlink_to("a")
    assert found_by(f"{tmp_path}/{{a/*.png,b/*.jpg}}") == [("a/2.png", "a"), ("b/1.jpg", "b")]


def test_links_may_not_leave_the_base(tmp_path):
    make(tmp_path, "top/cat/a.jpg", "secret/key.jpg")
    (tmp_path / "top" / "cat" / "file.jpg").symlink_to(tmp_path / "secret" / "key.jpg")
    assert found_by(f"{tmp_path}/top/*/*.jpg") == [("cat/a.jpg", "cat"), ("cat/file.jpg", "! outside_root")]
    (tmp_path / "top" / "dog").symlink_to(tmp_path / "secret")
    assert found_by(f"{tmp_path}/top/c*/a.jpg") == [("cat/a.jpg", "cat")]
    with pytest.raises(SourceError, match="top/dog is a link that points outside the source"):
        found_by(f"{tmp_path}/top/*/*.jpg")


def test_a_tree_may_be_deeper_than_functions_can_call_one_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(400):
        os.mkdir("d")
        os.chdir("d")
    Path("x").touch()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    try:
        assert found_by(f"{tmp_path}/**/x") == [("d/" * 400 + "x", "d")]
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("*/*.gif", "matches no file; correct the pattern$"),
        ("none/*/*.jpg", "matches nothing: there is no directory .*/none$"),
        ("cat/*.jpg", r"matches no usable file; the first is a.jpg: no_label .* as in photos/\*/\*.jpg$"),
        ("cat/a.jpg", r"is not a pattern; write \* for names that differ"),
    ],
)
def test_a_pattern_that_gives_no_image_is_no_source(tmp_path, pattern, message):
    make(tmp_path, "cat/a.jpg")
    with pytest.raises(SourceError, match=message):
        GlobSource(f"{tmp_path}/{pattern}", TableColumns()).check()


def test_a_bucket_is_named(tmp_path):
    with pytest.raises(SourceError, match="has a pattern for a bucket; name the bucket"):
        GlobSource("s3://buck*/x", TableColumns()).check()


def test_a_glob_is_guessed_and_a_folder_with_such_a_name_is_not_one(tmp_path):
    make(tmp_path, "photos[1]/cat/a.jpg")
    pattern = f"{tmp_path}/photos*/*/*.jpg"
    assert open_source(make_options(source=pattern)) == GlobSource(pattern, TableColumns())
    folders = open_source(make_options(source=f"{tmp_path}/photos[1]"))
    assert [entry.key for entry in folders.entries()] == ["cat/a.jpg"]
