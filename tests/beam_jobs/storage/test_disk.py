"""Tests of what is said of a disk that takes no more; `tests/faults/test_disk.py` breaks real ones."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from beam_jobs.errors import DiskError, FeedlineError, SourceError
from beam_jobs.storage import disk


def os_error(number: int, path: object = None) -> OSError:
    return OSError(number, os.strerror(number), str(path) if path else None)


def explained(error: Exception, place: object, needed: int = 0) -> str:
    with pytest.raises(DiskError) as caught, disk.explain_errors("writing", str(place), needed=lambda: needed):
        raise error
    return str(caught.value)


def test_a_full_disk_is_told_with_the_bytes_needed_and_free(tmp_path):
    said = explained(os_error(errno.ENOSPC), tmp_path, 12_345_678)
    assert said.startswith(f"{tmp_path}: No space left on device while writing (about 12.3 MB are needed, ")
    assert said.endswith(" are free); make room, then run the same command again: finished work is kept")


def test_who_keeps_nothing_does_not_say_so(tmp_path):
    with pytest.raises(DiskError) as caught, disk.explain_errors("exporting", str(tmp_path), resumable=False):
        raise os_error(errno.ENOSPC)
    assert str(caught.value).endswith(" are free); make room, then run the same command again")
    with pytest.raises(DiskError, match=r"; make room, then run the same command again$"):
        disk.check_room(str(tmp_path), 1 << 60, "the export", resumable=False)


def test_a_quota_is_told_without_the_bytes_that_the_disk_has_free(tmp_path):
    said = explained(os_error(errno.EDQUOT), tmp_path, 800_000)
    assert said.startswith(f"{tmp_path}: Disk quota exceeded while writing (about 800.0 kB are needed); raise the")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT])
def test_another_error_names_its_file(tmp_path, number):
    said = explained(os_error(number, tmp_path / "a" / "b"), tmp_path)
    assert f"{os.strerror(number)} while writing ({tmp_path / 'a' / 'b'}); " in said


@pytest.mark.parametrize(
    "text",
    [
        "OSError: [Errno 28] No space left on device [while running 'Write']",
        "{{function_node}} x.tmp; No space left on device [Op:SaveV2]",
        "database or disk is full",
    ],
)
def test_the_words_of_other_libraries_are_known(tmp_path, text):
    assert "No space left on device while writing" in explained(RuntimeError(text), tmp_path)


@pytest.mark.parametrize("text", ["unable to open database file", "Error when executing query: disk I/O error"])
def test_where_a_library_does_not_say_what_is_wrong_the_next_write_tells(tmp_path, text):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        assert f"{os.strerror(errno.EFBIG)} while writing" in explained(RuntimeError(text), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with pytest.raises(RuntimeError, match=text), disk.explain_errors("writing", str(tmp_path)):
        raise RuntimeError(text)


def test_the_innermost_error_counts(tmp_path):
    error = FeedlineError("examining failed")
    error.__cause__ = ValueError("Can't close the ZIP file")
    error.__cause__.__context__ = os_error(errno.EDQUOT)
    assert f"{os.strerror(errno.EDQUOT)} while writing" in explained(error, tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        os_error(errno.EACCES, "/elsewhere/image.jpg"),
        os_error(errno.ENOENT),
        os_error(errno.ECONNREFUSED),
        SourceError("the source is not there"),
    ],
    ids=str,
)
def test_what_is_not_of_the_disk_passes(tmp_path, error):
    with pytest.raises(type(error)) as caught, disk.explain_errors("writing", str(tmp_path)):
        raise error
    assert caught.value is error


def test_an_explained_error_of_the_source_stays_one(tmp_path):
    error = SourceError("photos cannot be read")
    error.__cause__ = os_error(errno.EIO, tmp_path / "photos")
    with pytest.raises(SourceError), disk.explain_errors("scanning", str(tmp_path)):
        raise error


def test_a_remote_output_has_no_disk():
    with pytest.raises(OSError, match="No space"), disk.explain_errors("writing", "gs://bucket/out"):
        raise os_error(errno.ENOSPC)
    disk.check_room("gs://bucket/out", 1 << 62, "the shards")


def test_room_is_asked_of_the_disk_that_a_new_directory_will_be_on(tmp_path):
    out = str(tmp_path / "new" / "out")
    free = disk.free_bytes(out)
    assert free == pytest.approx(disk.free_bytes(str(tmp_path)), rel=0.2)
    disk.check_room(out, free // 4, "the shards")
    with pytest.raises(DiskError, match=r"out: the disk has not enough room for the shards, about .* needed and "):
        disk.check_room(out, 1 << 60, "the shards")


def test_used_bytes_are_those_of_all_files(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(bytes(10))
    (tmp_path / "c").write_bytes(bytes(5))
    assert disk.used_bytes(str(tmp_path)) == 15
    assert disk.used_bytes(str(tmp_path / "nothing")) == 0
