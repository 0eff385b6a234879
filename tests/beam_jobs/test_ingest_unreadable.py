"""Files that are there and that cannot be read: tried again, named, or rejected until the next run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from beam_jobs import ingest
from beam_jobs.dataset import manifest, schemas
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import SourceChanged, TooManyRejects, Unreadable
from beam_jobs.options import IngestOptions, TableColumns
from beam_jobs.stages import resume
from tests import image_table
from tests.beam_jobs.object_store import SCHEME
from tests.beam_jobs.runs import Recorder, files_under
from tests.make_images import jpeg

IMAGES, BUCKET = 8, 2
ERROR = "Input/output error"


class Sector:
    """A file of which no byte can be read, not even by root, from `harm` to `mend`."""

    def __init__(self, path: Path) -> None:
        self._path, self._data = path, path.read_bytes()

    def harm(self) -> None:
        self._path.unlink()
        self._path.symlink_to("/proc/self/mem")

    def mend(self) -> None:
        self._path.unlink()
        self._path.write_bytes(self._data)


@pytest.fixture
def options(tmp_path, monkeypatch) -> IngestOptions:
    """Eight images in a table, in units of two; in a store that tells neither size nor time beforehand."""
    monkeypatch.setattr(resume, "WAITS_S", (0.0, 0.0))
    (tmp_path / "photos").mkdir()
    for number in range(IMAGES):
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(jpeg(number))
    root = f"{SCHEME}://{tmp_path}"
    rows = [f"{root}/photos/{number}.jpg,{'cat' if number % 2 else 'dog'},{number}" for number in range(IMAGES)]
    (tmp_path / "table.csv").write_text("\n".join(["image,label,name", *rows, ""]))
    columns = TableColumns(key="name")
    given = {"bucket_images": BUCKET, "splits": {"all": 1}, "shards": 2, "threads": 2, "columns": columns}
    return IngestOptions(source=str(tmp_path / "table.csv"), out=str(tmp_path / "out"), **given)


@pytest.fixture
def plain(options, tmp_path) -> dict[str, bytes]:
    """The dataset of images that can all be read."""
    ingest.run(replace(options, out=str(tmp_path / "plain")))
    return files_under(tmp_path / "plain")


@pytest.fixture
def sound(options, plain, tmp_path) -> Sector:
    """A file that will be harmed by the test."""
    return Sector(tmp_path / "photos" / "5.jpg")


@pytest.fixture
def sector(sound) -> Sector:
    """A file that is harmed."""
    sound.harm()
    return sound


def lines_of(repair: Callable[[], None]) -> tuple[list[str], Callable[[str], None]]:
    """Returns the lines of a report, and what takes them, which repairs something before another pass."""
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if line.startswith("retrying"):
            repair()

    return lines, say


def test_what_can_be_read_in_the_second_pass_is_in_and_nothing_else_is_examined_again(options, plain, sector):
    lines, say = lines_of(sector.mend)
    recorder = Recorder()
    ingest.run(options, recorder, say)
    assert files_under(Path(options.out)) == plain
    assert [line for line in lines if line.startswith("retrying")] == [
        "retrying  1 unit of work that could not be read, in 0 s"
    ]
    first, second = (counters(recorder, job) for job in (0, 1))
    assert (first["images"], first["unread_buckets"]) == (IMAGES - BUCKET, 1)
    assert second["images"] == BUCKET
    assert "unread_buckets" not in second


def counters(recorder: Recorder, job: int) -> dict[str, int]:
    found = recorder.results[job].metrics().query()["counters"]
    return {counter.key.metric.name: counter.committed for counter in found if counter.committed}


def test_what_stays_unreadable_is_named_and_the_next_run_reads_it_alone(options, plain, sector):
    message = rf"^1 file could not be read or written in 3 passes: 5 \({ERROR}\)\. Nothing was published\. "
    with pytest.raises(Unreadable, match=message) as fault:
        ingest.run(options)
    assert str(fault.value).endswith("run the same command again, or give --unreadable reject")
    assert not manifest.is_published(options.out)
    sector.mend()
    recorder = Recorder()
    ingest.run(options, recorder)
    assert (counters(recorder, 0)["resumed_buckets"], counters(recorder, 0)["images"]) == (3, IMAGES)
    assert files_under(Path(options.out)) == plain


def test_what_cannot_be_read_is_rejected_where_that_is_asked_for_and_tried_again(options, plain, sector):
    rejecting = replace(options, unreadable="reject", max_reject_ratio=0.2)
    result = ingest.run(rejecting)
    assert (result.counts.written, result.counts.rejects) == (IMAGES - 1, {"unreadable": 1})
    (reject,) = schemas.read(f"{options.out}/rejects.parquet").to_pylist()
    assert (reject["key"], reject["detail"]) == ("5", ERROR)
    sector.mend()
    result = ingest.run(replace(options, retry_rejects=True))
    assert (result.counts.written, result.counts.rejects) == (IMAGES, {})
    assert verify(options.out).problems == []


def test_what_a_run_rejected_that_published_nothing_is_read_by_the_next(options, plain, sector):
    with pytest.raises(TooManyRejects, match=r"1 of 8 images are bad .*: 1 unreadable\. "):
        ingest.run(replace(options, unreadable="reject"))
    sector.mend()
    ingest.run(options)
    assert files_under(Path(options.out)) == plain


def test_what_a_run_rejected_that_was_killed_is_read_by_the_next(options, plain, sector):
    def kill() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest.run(replace(options, unreadable="reject", max_reject_ratio=0.2), Recorder(after={3: kill}))
    sector.mend()
    ingest.run(options)
    assert files_under(Path(options.out)) == plain


def test_an_image_that_cannot_be_read_while_it_is_written_is_tried_again(options, plain, sound):
    lines, say = lines_of(sound.mend)
    recorder = Recorder(sound.harm)
    ingest.run(options, recorder, say)
    assert files_under(Path(options.out)) == plain
    assert sum(line.startswith("retrying") for line in lines) == 1
    assert [counters(recorder, job).get("written_shards") for job in range(3)] == [None, 1, 1]


@pytest.mark.parametrize("unreadable", ["stop", "reject"])
def test_an_image_that_stays_unreadable_while_it_is_written_is_named(options, plain, sound, unreadable):
    asked = replace(options, unreadable=unreadable)
    with pytest.raises(Unreadable, match=rf"passes: 5 \(objects://.*/5.jpg: {ERROR}\)\. Nothing was"):
        ingest.run(asked, Recorder(sound.harm))
    sound.mend()
    after = Recorder()
    ingest.run(asked, after)
    again = unreadable == "reject"  # or it would be planned again, and block for ever
    assert counters(after, 0)["resumed_buckets"] == IMAGES // BUCKET - again
    assert counters(after, 1)["resumed_shards"] == 1
    assert files_under(Path(options.out)) == plain


def test_a_change_has_its_own_unit_examined_again_and_no_other(options, tmp_path):
    edited = tmp_path / "photos" / "5.jpg"
    with pytest.raises(SourceChanged, match=r"/photos/5.jpg changed while it was being ingested"):
        ingest.run(options, Recorder(lambda: edited.write_bytes(jpeg(99).ljust(edited.stat().st_size, b"\0"))))
    recorder = Recorder()
    ingest.run(options, recorder)
    assert counters(recorder, 0)["resumed_buckets"] == IMAGES // BUCKET - 1
    assert verify(options.out).problems == []


def test_a_change_ends_the_passes(options, plain, tmp_path):
    shard_of = {row["key"]: row["shard"] for row in image_table.read(tmp_path / "plain").to_pylist()}
    unread, edited = (next(key for key, shard in shard_of.items() if shard == number) for number in range(2))
    sector = Sector(tmp_path / "photos" / f"{unread}.jpg")

    def harm() -> None:
        sector.harm()
        (tmp_path / "photos" / f"{edited}.jpg").write_bytes(jpeg(99))

    lines, say = lines_of(sector.mend)
    with pytest.raises(SourceChanged, match=rf"/photos/{edited}.jpg changed while it was being ingested"):
        ingest.run(options, Recorder(harm), say)
    assert not any(line.startswith("retrying") for line in lines)
