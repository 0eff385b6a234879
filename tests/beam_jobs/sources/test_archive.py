from __future__ import annotations

import functools
import gzip
import os
import tarfile
import zipfile
from types import SimpleNamespace

import pytest

from beam_jobs import ingest
from beam_jobs.errors import OptionError, SourceError
from beam_jobs.options import IngestOptions, TableColumns
from beam_jobs.runners.beam_job import local_pipeline
from beam_jobs.sources import containers
from beam_jobs.sources.archive import TarSource, ZipSource
from beam_jobs.sources.factory import open_source
from beam_jobs.sources.image_reader import Slice
from beam_jobs.stages.dry_run import estimate
from tests.beam_jobs.entries import contents, found_in, hidden_in
from tests.beam_jobs.make_archives import FOLDERS, add, make_tar, make_zip
from tests.make_images import jpeg


def test_the_first_folder_is_the_class_and_the_name_the_key(archive):
    source = archive(FOLDERS)
    source.check()
    assert source.label_kind == "single"
    assert found_in(source) == [("cat/a.jpg", "cat"), ("cat/b.png", "cat"), ("dog/deep/c.JPEG", "dog")]
    assert list(source.entries()) == list(source.entries())
    assert contents(source) == FOLDERS
    first = next(source.entries())
    assert (first.uri, first.bytes, first.group, first.split, first.extra) == ("cat/a.jpg", len(jpeg(1)), "", "", {})
    assert first.annotations is None
    assert first.mtime_ns == os.stat(source.path).st_mtime_ns
    assert Slice.parse(first.slice).path == os.path.basename(source.path)


@pytest.mark.parametrize(("compression", "method"), [(zipfile.ZIP_STORED, "stored"), (zipfile.ZIP_DEFLATED, "deflate")])
def test_stored_and_deflated_members_are_read(tmp_path, compression, method):
    source = ZipSource(str(make_zip(tmp_path / "x.zip", FOLDERS, compression=compression)), TableColumns())
    assert {Slice.parse(entry.slice).method for entry in source.entries()} == {method}
    assert contents(source) == FOLDERS


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
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


def test_directories_and_what_file_managers_leave_are_passed_over(archive):
    files = {"./cat//a.jpg": jpeg(1), "__MACOSX/cat/._a.jpg": b"x", "cat/.DS_Store": b"x", "cat/._a.jpg": b"x"}
    source = archive({**files, "cat/Thumbs.db": b"x", ".git/x.jpg": b"x", "__MACOSX/cat/._b.jpg": b"x"})
    assert found_in(source) == [("cat/a.jpg", "cat")]
    hidden = ["__MACOSX/", ".git/", "cat/.DS_Store", "cat/._a.jpg", "cat/Thumbs.db"]
    assert hidden_in(source) == (5, hidden)


def test_hidden_archives_and_members_of_many_archives_are_counted(tmp_path):
    for name in ("a.tar", "b.tar", ".c.tar"):
        make_tar(tmp_path / name, {"cat/1.jpg": jpeg(1), "cat/.x": b"x"})
    assert hidden_in(TarSource(f"{tmp_path}/*.tar", TableColumns())) == (3, [".c.tar", "a.tar/cat/.x"])


def test_directories_are_no_images(tmp_path):
    (tmp_path / "cat.jpg").mkdir()
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(tmp_path / "cat.jpg", "cat.jpg")
        add(archive, "cat.jpg/a.jpg", jpeg())
    make_zip(tmp_path / "x.zip", {"cat.jpg/": b"", "cat.jpg/a.jpg": jpeg()})
    assert found_in(TarSource(str(tmp_path / "x.tar"), TableColumns())) == [("cat.jpg/a.jpg", "cat.jpg")]
    assert found_in(ZipSource(str(tmp_path / "x.zip"), TableColumns())) == [("cat.jpg/a.jpg", "cat.jpg")]


def test_without_a_label_column_nothing_has_a_label(tar):
    source = tar({"a.jpg": jpeg(1), "cat/b.jpg": jpeg(2), "cat/b.cls": b"7"}, label="")
    assert source.label_kind == "none"
    assert found_in(source) == [("a.jpg", ""), ("cat/b.jpg", "")]


@pytest.mark.parametrize("name", ["README.txt", "cat/jpg"])
def test_a_file_that_is_no_image_and_beside_none_is_a_reject(tar, name):
    source = tar({name: b"x", "cat/b.jpg": jpeg(1)})
    assert found_in(source) == [(name, "! not_an_image"), ("cat/b.jpg", "cat")]
    first = next(source.entries())
    assert (first.stage, first.uri) == ("scan", name)


def test_images_are_known_by_their_suffix(tar):
    suffixes = ("jpg", "jpeg", "jpe", "jfif", "png", "gif", "bmp", "dib", "tif", "tiff", "webp", "x.TIF")
    names = [f"cat/{number}.{suffix}" for number, suffix in enumerate(suffixes)]
    assert found_in(tar(dict.fromkeys(names, jpeg()))) == [(name, "cat") for name in names]


SHARDS = {
    "000.tar": {"cat/a.jpg": jpeg(1)},
    "001.tar": {"cat/a.jpg": jpeg(2), "dog/b.jpg": jpeg(3)},
    "010.tar": {"dog/c.jpg": jpeg(4)},
}


@pytest.fixture
def shards(place, tmp_path) -> str:
    """Writes the archives of `SHARDS` into a directory and returns its path."""
    for name, files in SHARDS.items():
        make_tar(tmp_path / "shards" / name, files)
    return f"{place}/shards"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("{001..000}.tar", ["000.tar", "001.tar"]), ("0{1{0,0},0{0..1}}.t?{r,r}", ["000.tar", "001.tar", "010.tar"])],
)
def test_patterns_name_archives_and_their_names_part_the_keys(shards, pattern, names):
    source = TarSource(f"{shards}/{pattern}", TableColumns())
    source.check()
    expected = {f"{name}/{member}": data for name in names for member, data in SHARDS[name].items()}
    assert source.base == shards
    assert contents(source) == expected
    assert [(entry.key, entry.label) for entry in source.entries()] == [(key, key.split("/")[1]) for key in expected]
    assert all(entry.uri == entry.key for entry in source.entries())
    assert contents(TarSource(f"{shards}/001.tar", TableColumns())) == SHARDS["001.tar"]


def test_patterns_go_down_into_directories(shards):
    source = TarSource(f"{shards.removesuffix('/shards')}/**/0*1.tar", TableColumns())
    assert contents(source) == {f"shards/001.tar/{name}": data for name, data in SHARDS["001.tar"].items()}
    assert contents(TarSource(f"{shards.removesuffix('/shards')}/sh*/0*1.tar", TableColumns())) == contents(source)


def test_rejects_of_many_archives_name_the_archive(tmp_path):
    make_tar(tmp_path / "0.tar", {"x.jpg": jpeg(), "../y.jpg": jpeg(), "cat/z": b"", "cat/good.jpg": jpeg()})
    source = TarSource(f"{tmp_path}/*.tar", TableColumns())
    source.check()  # a good image after bad ones is enough
    assert found_in(source) == [
        ("0.tar/../y.jpg", "! bad_member"),
        ("0.tar/x.jpg", "! no_label"),
        ("0.tar/cat/z", "! not_an_image"),
        ("0.tar/cat/good.jpg", "cat"),
    ]
    assert all(entry.uri == entry.key for entry in source.entries())


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("{000..003}.tar", "shards/002.tar cannot be read: No such file or directory$"),
        ("x*.tar", r"shards/x\*.tar matches no file; correct the pattern$"),
        ("none.tar", "shards/none.tar cannot be read: No such file or directory$"),
        ("{0..9999}{0..999}.tar", "stands for 10000000 files; at most 1000000 can be given$"),
        ("{0..9999999}.tar", r"^{0..9999999} stands for 10000000 files; at most 1000000 can be given$"),
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
    with pytest.raises(SourceError, match=r"pipe.tar is not a regular file; give a file"):
        TarSource(str(tmp_path / "pipe.tar"), TableColumns()).check()


def test_a_file_whose_name_looks_like_a_pattern_is_one_archive(tmp_path):
    source = TarSource(str(make_tar(tmp_path / "x[1]{a,b}.tar", FOLDERS)), TableColumns())
    assert contents(source) == FOLDERS


@pytest.mark.parametrize(("pattern", "base"), [("x.tar", "."), ("d/{1..2}.tar", "d"), ("/x.tar", "/")])
def test_the_base_is_the_directory_before_the_first_special_character(tmp_path, monkeypatch, pattern, base):
    monkeypatch.chdir(tmp_path)
    assert TarSource(pattern, TableColumns()).base == base


# ------------------------------------------------------------------ compressed archives


@pytest.mark.parametrize(("name", "mode"), [("x.tgz", "w:gz"), ("x.tar.bz2", "w:bz2"), ("x.tar.xz", "w:xz")])
def test_compressed_archives_are_read_through_a_plain_copy(tmp_path, name, mode):
    source = TarSource(str(make_tar(tmp_path / name, FOLDERS, mode)), TableColumns())
    source.check()
    assert contents(source) == FOLDERS
    assert list(tmp_path.iterdir()) == [tmp_path / name]


def ingest_on_workers(options: IngestOptions) -> None:
    pipelines = functools.partial(local_pipeline)
    pipelines.engine, pipelines.processes, pipelines.attach = "flink", 1, lambda address: None
    ingest.run(options, pipelines)


@pytest.mark.parametrize("enter", [ingest_on_workers, lambda options: estimate(options, SimpleNamespace(name="flink"))])
def test_much_that_every_worker_would_unpack_is_refused_on_a_cluster(tmp_path, monkeypatch, enter):
    for name, mode in (("a.tar.gz", "w:gz"), ("b.tar.xz", "w:xz"), ("c.tar", "w")):
        make_tar(tmp_path / name, {f"cat/{name}.jpg": jpeg(1)}, mode)
    out, splits = str(tmp_path / "out"), {"train": 1}
    options = IngestOptions(source=f"{tmp_path}/*.tar*", source_kind="tar", out=out, splits=splits)
    compressed = sum((tmp_path / name).stat().st_size for name in ("a.tar.gz", "b.tar.xz"))
    monkeypatch.setattr(containers, "MAX_COMPRESSED_BYTES", compressed - 1)
    with pytest.raises(OptionError, match=r"b\.tar\.xz is compressed, and with it .* decompress them first"):
        enter(options)
    assert open_source(options)
    monkeypatch.setattr(containers, "MAX_COMPRESSED_BYTES", compressed)
    enter(options)


def test_compressed_and_plain_archives_may_stand_side_by_side(tmp_path):
    make_tar(tmp_path / "a.tar", FOLDERS)
    make_tar(tmp_path / "b.tar", FOLDERS, "w:gz")  # known by its first bytes, not its name
    found = contents(TarSource(f"{tmp_path}/*.tar", TableColumns()))
    assert found == {f"{box}.tar/{name}": data for box in "ab" for name, data in FOLDERS.items()}


def test_a_compressed_file_without_an_archive_in_it_is_refused(tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(b"text"))
    with pytest.raises(
        SourceError, match=r"x\.tar\.gz is not a tar archive, plain or compressed by gzip, bzip2 or xz: "
    ):
        TarSource(str(tmp_path / "x.tar.gz"), TableColumns()).check()


# ------------------------------------------------------------------ checks


@pytest.mark.parametrize(
    ("files", "columns", "message"),
    [
        ({".DS_Store": b"x"}, {}, "is empty; it must hold images$"),
        ({"a.txt": b"x"}, {}, r"holds no usable image; the first is a\.txt: not_an_image \(its name has no"),
        ({"a.jpg": b"x"}, {}, r"holds no usable image; the first is a\.jpg: no_label \("),
        ({"a.jpg": b"", "a.json": b'{"x":1}'}, {"group": "y"}, "has no field 'y' for the group; .* have 'label', 'x'$"),
        ({"cat/a.jpg": b"x"}, {"extra": ("txt",)}, "has no field 'txt' for the extra txt; .* have 'label'$"),
        ({"cat/a.jpg": b"x"}, {"mask": "seg"}, "is an archive; masks need a table that lists image and mask$"),
    ],
)
def test_an_archive_that_cannot_be_ingested_is_refused_early(tar, files, columns, message):
    with pytest.raises(SourceError, match=rf"x\.tar {message}"):
        tar(files, **columns).check()
