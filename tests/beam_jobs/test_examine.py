from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from beam_jobs import images, tables
from beam_jobs.errors import BadImage
from beam_jobs.examine import Examined, ExamineTask, examine_bucket, facts_path, read_image, rejects_path
from beam_jobs.options import ImageLimits
from beam_jobs.scan import Bucket, scan
from tests.beam_jobs.make_rows import make_ref
from tests.make_images import jpeg, png

FILES = {"1.jpg": jpeg(1), "2.png": b"text", "3.png": jpeg(3), "4": png(4), "5.txt": jpeg(5), "6.jpg": jpeg(6)[:-9]}


@pytest.fixture
def source(tmp_path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def bucket_of(source: Path, *names: str) -> Bucket:
    refs = [make_ref(name, bytes=len(FILES.get(name, b""))) for name in names]
    (bucket,) = scan(refs, str(source / "refs"), 100, {}, "").buckets
    return bucket


def task_of(source: Path, **fields) -> ExamineTask:
    values = {"base": str(source), "directory": str(source / "examined"), "limits": ImageLimits(), "threads": 2}
    return ExamineTask(**{**values, **fields})


def test_good_and_bad_images_go_into_their_tables_in_order(source):
    bucket, task = bucket_of(source, *FILES, "none.jpg"), task_of(source)
    total = sum(map(len, FILES.values()))
    assert examine_bucket(bucket, task) == Examined(good=4, rejected=3, bytes=total, resumed=False)
    facts = tables.read(facts_path(task.directory, bucket))
    assert facts.schema == tables.EXAMINED
    # What a file is called does not matter, only what it holds.
    assert [(row["key"], row["format"]) for row in facts.to_pylist()] == [
        ("1.jpg", "jpeg"),
        ("3.png", "jpeg"),
        ("4", "png"),
        ("5.txt", "jpeg"),
    ]
    assert tables.facts_of(facts.to_pylist()[2]).sha256 == images.examine(FILES["4"], ImageLimits())[1].sha256
    rejects = tables.read(rejects_path(task.directory, bucket)).to_pylist()
    assert [(row["key"], row["stage"], row["reason"], row["bytes"]) for row in rejects] == [
        ("2.png", "examine", "not_an_image", 4),
        ("6.jpg", "examine", "undecodable", len(FILES["6.jpg"])),
        ("none.jpg", "examine", "unreadable", 0),
    ]
    assert rejects[2]["detail"] == "No such file or directory"


def test_a_bucket_of_bad_images_has_an_empty_table_of_facts(source):
    bucket, task = bucket_of(source, "2.png"), task_of(source)
    assert examine_bucket(bucket, task).good == 0
    facts = tables.read(facts_path(task.directory, bucket))
    assert (len(facts), facts.schema) == (0, tables.EXAMINED)


@pytest.mark.parametrize("threads", [1, 4])
def test_results_are_the_same_bytes_each_time_with_any_number_of_threads(source, threads):
    bucket = bucket_of(source, *FILES)
    one, other = task_of(source), task_of(source, directory=str(source / "again"), threads=threads)
    for task in (one, other):
        examine_bucket(bucket, task)
    for path in (facts_path, rejects_path):
        assert Path(path(one.directory, bucket)).read_bytes() == Path(path(other.directory, bucket)).read_bytes()


def test_a_finished_bucket_is_not_examined_again(source):
    bucket, task = bucket_of(source, "1.jpg", "2.png"), task_of(source)
    first = examine_bucket(bucket, task)
    (source / "1.jpg").unlink()
    assert examine_bucket(bucket, task) == replace(first, resumed=True)


def test_a_bucket_without_its_marker_is_examined_again(source):
    bucket, task = bucket_of(source, "1.jpg"), task_of(source)
    examine_bucket(bucket, task)
    (marker,) = Path(task.directory).glob("done-*")
    assert json.loads(marker.read_text()) == {"good": 1, "rejected": 0, "bytes": len(FILES["1.jpg"])}
    marker.unlink()
    (source / "1.jpg").unlink()
    assert examine_bucket(bucket, task) == Examined(good=0, rejected=1, bytes=len(FILES["1.jpg"]), resumed=False)


def test_a_file_over_the_limit_is_not_read_whole(source):
    assert read_image(str(source), "1.jpg", 10) == FILES["1.jpg"][:11]
    limits = ImageLimits(max_bytes=10)
    bucket, task = bucket_of(source, "1.jpg"), task_of(source, limits=limits)
    examine_bucket(bucket, task)
    (reject,) = tables.read(rejects_path(task.directory, bucket)).to_pylist()
    assert (reject["reason"], reject["detail"], reject["bytes"]) == (
        "too_many_bytes",
        "11 bytes; max_bytes is 10",
        11,
    )


def test_a_missing_file_is_a_bad_image(source):
    with pytest.raises(BadImage, match="^unreadable: No such file or directory$"):
        read_image(str(source), "none.jpg", 10)
    with pytest.raises(BadImage, match="^unreadable: Is a directory$"):
        read_image(str(source.parent), source.name, 10)


def test_an_absolute_path_is_read_where_it_is(source):
    assert read_image("/nowhere", str(source / "1.jpg"), 10**6) == FILES["1.jpg"]
