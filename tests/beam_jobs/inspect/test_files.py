from __future__ import annotations

import pytest

from beam_jobs.dataset import record
from beam_jobs.errors import SourceError
from beam_jobs.inspect.view import find_files, name_below
from tests.make_images import jpeg
from tests.rewrite_records import framed


def put(root, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(framed(record.encode_example({"a": ("int64", (1,))})))


def test_below_a_directory_the_files_of_that_name_count(tmp_path):
    put(tmp_path, "b/2.tfrecord", "a.tfrecord-00000-of-00001", ".hidden.tfrecord")
    (tmp_path / "features.json").write_text("{}")
    found = find_files(str(tmp_path))
    assert [name_below(path, str(tmp_path)) for path in found] == ["a.tfrecord-00000-of-00001", "b/2.tfrecord"]


def test_below_a_directory_without_such_names_all_count(tmp_path):
    put(tmp_path, "b", "a")
    assert [name_below(path, str(tmp_path)) for path in find_files(f"{tmp_path}/")] == ["a", "b"]


def test_a_pattern_and_a_file_stand_for_themselves(tmp_path):
    put(tmp_path, "1.rec", "2.rec", "3.other")
    assert find_files(str(tmp_path / "*.rec")) == [str(tmp_path / "1.rec"), str(tmp_path / "2.rec")]
    assert find_files(str(tmp_path / "3.other")) == [str(tmp_path / "3.other")]
    assert name_below(str(tmp_path / "3.other"), str(tmp_path / "3.other")) == "3.other"


def test_a_directory_of_something_else_is_said_to_be_that(tmp_path):
    (tmp_path / "1.jpg").write_bytes(jpeg())
    with pytest.raises(SourceError, match="holds neither dataset.json nor a TFRecord file"):
        find_files(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="empty holds no file"):
        find_files(str(tmp_path / "empty"))
