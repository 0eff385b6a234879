from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from beam_jobs.common.system import Progress, local_progress
from beam_jobs.dataset import schemas
from beam_jobs.images import annotations, process
from beam_jobs.options import ImageLimits
from beam_jobs.sources.image_reader import Slice
from beam_jobs.stages import resume
from beam_jobs.stages.examine import (
    DIRECTORY,
    Examined,
    ExamineTask,
    examine_bucket,
    facts_path,
    invalidate_transient,
    parse_progress,
    sweep,
)
from beam_jobs.stages.scan import Bucket
from beam_jobs.types import Annotations, ImageObject, ImageRef
from tests.beam_jobs.buckets import FILES, MIXED, bucket_of, bucket_of_refs, facts_of, rejects_of, task_of, write_files
from tests.beam_jobs.make_rows import make_ref
from tests.beam_jobs.web_server import body, serving, status
from tests.make_images import encode, flipped, palette

ATTEMPT = re.compile(r"\.[0-9a-f]{32}")  # what tells the files of one attempt from those of another
CHANGED = ("b.webp", "d.jpg", "e.bmp")


@pytest.fixture
def source(tmp_path) -> Path:
    return write_files(tmp_path)


def results(task: ExamineTask) -> dict[str, str]:
    """Returns name -> content of everything that counts, without what tells one attempt from another."""
    sweep(task.reader.work)
    paths = Path(task.reader.work, DIRECTORY).iterdir()
    return {ATTEMPT.sub("", path.name): ATTEMPT.sub("", repr(content_of(path))) for path in paths}


def content_of(path: Path) -> object:
    if path.suffix == ".parquet":
        return schemas.read(str(path)).to_pylist()
    if path.suffix == ".json":
        values = resume.read_checked(str(path))
        return {**values, "files": sorted(values["files"])}  # the facts name their spool, so their checksum differs
    return path.read_bytes()


def spools(task: ExamineTask) -> list[Path]:
    return list(Path(task.reader.work, DIRECTORY).glob("spool-*"))


def test_good_and_bad_images_go_into_their_tables_in_order(source):
    bucket, task = bucket_of(source, *FILES, "none.jpg"), task_of(source)
    total = sum(map(len, FILES.values()))
    assert examine_bucket(bucket, task) == Examined(good=4, rejected=3, bytes=total, resumed=False)
    facts = schemas.read(facts_path(task.reader.work, bucket))
    assert facts.schema == schemas.EXAMINED
    # What a file is called does not matter, only what it holds.
    assert [(row["key"], row["format"]) for row in facts.to_pylist()] == [
        ("1.jpg", "jpeg"),
        ("3.png", "jpeg"),
        ("4", "png"),
        ("5.txt", "jpeg"),
    ]
    assert schemas.parse_facts(facts.to_pylist()[2]).sha256 == process.examine(FILES["4"], ImageLimits())[1].sha256
    rejects = rejects_of(task, bucket)
    assert [(row["key"], row["stage"], row["reason"], row["bytes"]) for row in rejects] == [
        ("2.png", "examine", "not_an_image", 4),
        ("6.jpg", "examine", "undecodable", len(FILES["6.jpg"])),
        ("none.jpg", "examine", "unreadable", 0),
    ]
    assert rejects[2]["detail"] == "No such file or directory"


def test_a_file_over_the_limit_is_not_read_whole(source):
    bucket, task = bucket_of(source, "1.jpg"), task_of(source, limits=ImageLimits(max_bytes=10))
    examine_bucket(bucket, task)
    (reject,) = rejects_of(task, bucket)
    assert (reject["reason"], reject["detail"], reject["bytes"]) == ("too_many_bytes", "11 bytes; max_bytes is 10", 11)


def test_what_has_to_change_is_kept_in_the_spool_and_nothing_else(source):
    bucket, task = bucket_of(source, *MIXED), task_of(source)
    examine_bucket(bucket, task)
    rows = {row["key"]: row for row in facts_of(task, bucket)}
    assert {key for key, row in rows.items() if row["slice"]} == set(CHANGED)
    assert {key for key, row in rows.items() if row["normalised"]} == set(CHANGED)
    stored = {key: task.reader.read(row["uri"], row["slice"]) for key, row in rows.items()}
    for key, data in MIXED.items():
        expected, facts = process.examine(data, task.limits)
        assert stored[key] == expected
        assert rows[key]["crc32c"] == google_crc32c.value(expected)
        assert schemas.parse_facts(rows[key]).sha256 == facts.sha256
    (spool,) = spools(task)
    assert spool.stat().st_size == sum(len(stored[key]) for key in CHANGED)  # no second copy of the rest
    unchanged = bucket_of(source, "a.jpg", "c.png"), task_of(source, "other")
    examine_bucket(*unchanged)
    assert spools(unchanged[1]) == []


def test_an_image_in_a_container_stays_there_unless_it_has_to_change(source):
    (source / "box").write_bytes(b"head" + MIXED["a.jpg"] + MIXED["b.webp"])
    lies = [Slice(method="stored", offset=4, length=len(MIXED["a.jpg"]), path="box").text]
    lies.append(Slice(method="stored", offset=4 + len(MIXED["a.jpg"]), length=len(MIXED["b.webp"]), path="box").text)
    refs = [make_ref(key, slice=place) for key, place in zip(("a.jpg", "b.webp"), lies, strict=True)]
    for name in ("a.jpg", "b.webp"):
        (source / name).unlink()
    bucket, task = bucket_of_refs(source, *refs), task_of(source)
    examine_bucket(bucket, task)
    untouched, changed = facts_of(task, bucket)
    assert untouched["slice"] == lies[0]
    assert Slice.parse(changed["slice"]).method == "spool"
    assert task.reader.read("b.webp", changed["slice"]) == process.examine(MIXED["b.webp"], task.limits)[0]


HARMS = {
    "lose": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "flip": lambda path: path.write_bytes(flipped(path.read_bytes(), path.stat().st_size // 2)),
}


@pytest.mark.parametrize(
    ("kind", "harm"),
    [
        *(("done", "lose"), ("facts", "lose"), ("facts", "flip"), ("rejects", "empty")),
        *(("spool", "lose"), ("spool", "cut"), ("spool", "flip")),
    ],
)
def test_a_bucket_whose_files_are_not_what_was_written_is_examined_again(source, kind, harm):
    bucket, task = bucket_of(source, *FILES, *MIXED), task_of(source)
    first = examine_bucket(bucket, task)
    whole = results(task)
    (path,) = Path(task.reader.work, DIRECTORY).glob(f"{kind}-*")
    HARMS[harm](path)
    again = examine_bucket(bucket, task)
    # Each image of a spool has a checksum of its own: see what writes the shards.
    assert again == replace(first, resumed=(kind, harm) == ("spool", "flip"))
    assert again.resumed or results(task) == whole


@pytest.mark.parametrize("harm", ["empty", "flip"])
def test_a_damaged_marker_tells_of_no_progress(source, harm):
    bucket, task = bucket_of(source, "1.jpg", "2.png"), task_of(source)
    done = examine_bucket(bucket, task)
    (marker,) = Path(task.reader.work, DIRECTORY).glob("done-*")
    assert parse_progress(marker.read_bytes()) == Progress(2, done.bytes, 1)
    HARMS[harm](marker)
    assert parse_progress(marker.read_bytes()) is None


def test_work_is_counted_as_it_is_done_and_when_it_is_taken_up(source):
    bucket, task = bucket_of_refs(source, *map(make_ref, FILES), make_ref("none.jpg", bytes=999)), task_of(source)
    local_progress.reset()
    outcome = examine_bucket(bucket, task)
    assert local_progress.read() == Progress(7, outcome.bytes, 3)
    local_progress.reset()
    examine_bucket(bucket, task)
    assert local_progress.read() == Progress(7, 0, 3)  # done, and no byte of it read


CLASSES = (np.arange(60 * 80).reshape(60, 80) % 7).astype(np.uint8)


MASKS = {
    "plain.png": encode(CLASSES, "PNG"),
    "palette.png": encode(palette(CLASSES), "PNG"),
    "small.png": encode(CLASSES[:30], "PNG"),
    "text.png": b"no mask",
    "large.png": encode(CLASSES, "PNG") + b"x" * 30_000,
}


@pytest.fixture
def masked(source):
    for name, data in MASKS.items():
        (source / name).write_bytes(data)

    def ref(mask: str, key: str = "a.jpg", **fields) -> ImageRef:
        return make_ref(key, bytes=len(MIXED[key]), annotations=Annotations(mask=mask, **fields))

    return ref


def test_a_mask_is_checked_and_spooled_when_it_has_to_change(source, masked):
    bucket = bucket_of_refs(source, masked("plain.png"), masked("palette.png", "c.png"), make_ref("1.jpg"))
    task = task_of(source)
    examine_bucket(bucket, task)
    plain, changed, without = facts_of(task, bucket)
    assert (plain["slice"], plain["mask_slice"]) == ("", "")
    assert plain["mask_crc32c"] == google_crc32c.value(MASKS["plain.png"])
    assert changed["slice"] == ""
    stored = task.reader.read("palette.png", changed["mask_slice"])
    assert changed["mask_crc32c"] == google_crc32c.value(stored)
    assert stored == annotations.encode_mask(CLASSES)
    assert (without["mask_slice"], without["mask_crc32c"]) == ("", 0)


@pytest.mark.parametrize(
    ("mask", "reason", "detail"),
    [
        ("small.png", "bad_mask", "mask: 80x30 pixels; the image has 80x60"),
        ("text.png", "bad_mask", "mask: it starts with b'no mask'"),
        ("none.png", "unreadable", "mask none.png: No such file or directory"),
        ("large.png", "bad_mask", "mask large.png: 20001 bytes; max_bytes is 20000"),
    ],
)
def test_an_image_with_a_bad_mask_is_rejected(source, masked, mask, reason, detail):
    bucket, task = (
        bucket_of_refs(source, masked(mask), make_ref("c.png")),
        task_of(source, limits=ImageLimits(max_bytes=20_000)),
    )
    assert (examine_bucket(bucket, task).good, len(rejects_of(task, bucket))) == (1, 1)
    (reject,) = rejects_of(task, bucket)
    assert (reject["key"], reject["stage"], reject["reason"]) == ("a.jpg", "examine", reason)
    assert reject["detail"].startswith(detail)
    assert spools(task) == []


BOX = ImageObject(label="cat", bbox=(10.0, 10.0, 30.0, 30.0))


@pytest.mark.parametrize(
    ("key", "said", "detail"),
    [
        ("a.jpg", Annotations(objects=(BOX,), size=(60, 80)), ""),
        # Boxes are of the upright image: this one lies on its side in its file.
        ("d.jpg", Annotations(objects=(BOX,), size=(80, 60)), ""),
        ("d.jpg", Annotations(objects=(BOX,), size=(60, 80)), "the annotations are for an image of 80x60 pixels"),
    ],
)
def test_what_is_said_of_an_image_must_fit_it(source, key, said, detail):
    bucket, task = bucket_of_refs(source, make_ref(key, annotations=said)), task_of(source)
    examine_bucket(bucket, task)
    rows, rejects = facts_of(task, bucket), rejects_of(task, bucket)
    assert [row["reason"] for row in rejects] == (["bad_annotation"] if detail else [])
    assert all(row["detail"].startswith(detail) for row in rejects)
    assert [schemas.parse_annotations(row["annotations"]) for row in rows] == ([] if detail else [said])


def url_refs(source: Path, server, *paths: str) -> Bucket:
    return bucket_of_refs(source, *(make_ref(path[1:], uri=server.url(path), bytes=0) for path in paths))


def test_what_cost_a_download_is_spooled_and_counted(source):
    with serving({"/a.jpg": body(MIXED["a.jpg"]), "/m.png": body(MASKS["plain.png"])}) as server:
        said = Annotations(mask=server.url("/m.png"))
        bucket = bucket_of_refs(source, make_ref("a", uri=server.url("/a.jpg"), bytes=0, annotations=said))
        task = task_of(source)
        outcome = examine_bucket(bucket, task)
        assert sum(server.seen.values()) == 2
    assert outcome == Examined(good=1, rejected=0, bytes=len(MIXED["a.jpg"]), resumed=False)
    (row,) = facts_of(task, bucket)
    assert row["normalised"] == ""  # not changed, but dear
    assert Slice.parse(row["slice"]).method == Slice.parse(row["mask_slice"]).method == "spool"
    assert task.reader.read(row["uri"], row["slice"]) == MIXED["a.jpg"]
    assert task.reader.read("", row["mask_slice"]) == MASKS["plain.png"]


def test_an_image_that_was_not_fetched_is_tried_again_once_that_is_asked_for(source):
    with serving({"/a.jpg": body(MIXED["a.jpg"]), "/b.jpg": status(503)}) as server:
        bucket, task = url_refs(source, server, "/a.jpg", "/b.jpg"), task_of(source)
        first = examine_bucket(bucket, task)
        assert first == Examined(good=1, rejected=1, bytes=len(MIXED["a.jpg"]), resumed=False)
        assert [row["reason"] for row in rejects_of(task, bucket)] == ["not_fetched"]
        # One dead link must not make a resumed run fetch its two thousand neighbours again.
        assert examine_bucket(bucket, task) == replace(first, resumed=True)
        server.pages["/b.jpg"] = body(FILES["1.jpg"])
        invalidate_transient(task.reader.work, bucket)
        assert examine_bucket(bucket, task).good == 2
        assert rejects_of(task, bucket) == []
    invalidate_transient(task.reader.work, bucket)  # there is nothing to try again
    assert examine_bucket(bucket, task).resumed


def test_an_image_that_was_missing_is_tried_again_once_that_is_asked_for(source):
    bucket, task = bucket_of(source, "1.jpg", "late.jpg"), task_of(source)
    assert examine_bucket(bucket, task).rejected == 1
    (source / "late.jpg").write_bytes(FILES["3.png"])
    assert examine_bucket(bucket, task).resumed
    invalidate_transient(task.reader.work, bucket)
    assert examine_bucket(bucket, task).rejected == 0


def test_results_move_with_their_work_directory(source):
    bucket, task = bucket_of(source, *MIXED), task_of(source)
    first = examine_bucket(bucket, task)
    shutil.move(source / "work", source / "elsewhere")
    moved = task_of(source, "elsewhere")
    assert examine_bucket(bucket, moved) == replace(first, resumed=True)
    stored = [moved.reader.read(row["uri"], row["slice"]) for row in facts_of(moved, bucket)]
    assert stored == [process.examine(data, task.limits)[0] for data in MIXED.values()]
