"""Images that are there and that nobody can read, as on a bad sector."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from beam_jobs.errors import Unreadable
from beam_jobs.stages import resume
from beam_jobs.stages.examine import UNREAD, examine_bucket, invalidate, is_finished
from beam_jobs.types import Annotations
from tests.beam_jobs.buckets import MIXED, bucket_of_refs, rejects_of, task_of, write_files
from tests.beam_jobs.make_rows import make_ref
from tests.make_images import encode


@pytest.fixture
def source(tmp_path) -> Path:
    return write_files(tmp_path)


@pytest.fixture
def sector(source) -> Path:
    """A file whose first byte can be read by nobody, as one on a bad sector."""
    (source / "bad.jpg").symlink_to("/proc/self/mem")
    return source / "bad.jpg"


def test_a_bucket_with_an_image_that_cannot_be_read_is_not_done(source, sector):
    masked = make_ref("a.jpg", bytes=len(MIXED["a.jpg"]), annotations=Annotations(mask="bad.jpg"))
    refs = [make_ref("1.jpg"), make_ref("bad.jpg"), make_ref("2.png"), masked, make_ref("b.webp")]
    bucket, task = bucket_of_refs(source, *refs), task_of(source)
    with pytest.raises(Unreadable) as fault:
        examine_bucket(bucket, task)
    assert fault.value.faults == (("bad.jpg", "Input/output error"), ("a.jpg", "mask bad.jpg: Input/output error"))
    assert not is_finished(task.reader.work, bucket)
    assert list(Path(task.reader.work).rglob("*.*")) == []
    sector.unlink()
    sector.write_bytes(encode(np.zeros((60, 80), np.uint8), "PNG"))
    assert examine_bucket(bucket, task) == examine_bucket(bucket, task_of(source, "other"))
    assert is_finished(task.reader.work, bucket)


def test_what_cannot_be_read_is_rejected_and_noted_where_that_is_asked_for(source, sector):
    bucket, task = bucket_of_refs(source, make_ref("1.jpg"), make_ref("bad.jpg")), task_of(source)
    found = examine_bucket(bucket, replace(task, reject_unreadable=True))
    assert (found.good, found.rejected) == (1, 1)
    (reject,) = rejects_of(task, bucket)
    assert (reject["key"], reject["stage"], reject["reason"], reject["detail"], reject["bytes"]) == (
        *("bad.jpg", "examine", "unreadable", "Input/output error"),
        0,
    )
    notes = resume.read_fault_notes(f"{task.reader.work}/{UNREAD}")
    assert notes == {bucket.name: (("bad.jpg", "Input/output error"),)}
    assert is_finished(task.reader.work, bucket)
    invalidate(task.reader.work, bucket)
    assert not is_finished(task.reader.work, bucket)


def test_a_bucket_of_which_nothing_can_be_read_is_given_up_early(source, sector, monkeypatch):
    monkeypatch.setattr(resume, "MAX_FAULTS", 3)
    refs = [make_ref(str(number), uri="bad.jpg") for number in range(50)]
    with pytest.raises(Unreadable) as fault:
        examine_bucket(bucket_of_refs(source, *refs), task_of(source))
    assert [key for key, _ in fault.value.faults] == ["0", "1", "2"]
