from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from apache_beam.testing.util import assert_that, equal_to

from beam_jobs.runners.beam_job import local_pipeline
from beam_jobs.stages.examine import Examined
from beam_jobs.stages.transforms import ExamineBuckets, WriteShards
from beam_jobs.stages.write import read_failures


def run(transform, expected) -> dict[str, int]:
    """Runs a transform, compares its elements, and returns its counters."""
    pipeline = local_pipeline()
    assert_that(pipeline | "Tested" >> transform, equal_to(expected))
    result = pipeline.run()
    result.wait_until_finish()
    counters = result.metrics().query()["counters"]
    names = {"ExamineBuckets", "WriteShards"}
    return {c.key.metric.name: c.committed for c in counters if c.key.metric.namespace in names}


def test_buckets_are_examined_once_and_then_resumed(stages, photos, tmp_path):
    sizes = [path.stat().st_size for path in sorted(photos.rglob("*.*g"))]
    fresh = replace(stages.examine_task, reader=replace(stages.examine_task.reader, work=str(tmp_path / "fresh")))
    done = [
        Examined(good=10, rejected=0, bytes=sum(sizes[:10]), resumed=False),
        Examined(good=10, rejected=0, bytes=sum(sizes[10:20]), resumed=False),
        Examined(good=4, rejected=0, bytes=sum(sizes[20:]), resumed=False),
    ]
    assert run(ExamineBuckets(stages.scanned.buckets, fresh), done) == {
        "images": 24,
        "rejects": 0,
        "bytes": sum(sizes),
        "resumed_buckets": 0,
    }
    done = [replace(outcome, resumed=True) for outcome in done]
    again = run(ExamineBuckets(stages.scanned.buckets, fresh), done)
    assert again["resumed_buckets"] == 3


def test_shards_are_written_once_and_then_resumed(stages):
    names = [task.name for task in stages.shards]
    counters = run(WriteShards(tuple(stages.shards), stages.task), names)
    assert (counters["written_shards"], counters["resumed_shards"]) == (4, 0)
    assert len(list(Path(stages.task.out).rglob("*.tfrecord"))) == 4
    counters = run(WriteShards(tuple(stages.shards), stages.task), names)
    assert (counters["written_shards"], counters["resumed_shards"]) == (0, 4)


def test_a_shard_that_fails_leaves_a_note_and_no_element(stages, tmp_path):
    task = replace(stages.task, reader=replace(stages.task.reader, base=str(tmp_path)))
    counters = run(WriteShards(tuple(stages.shards[:1]), task), [])
    assert counters == {"failed_shards": 1}
    (note,) = read_failures(stages.task.work)
    assert note.text.endswith("changed while it was being ingested (No such file or directory); run it again")


def test_nothing_to_do_is_done(stages):
    assert run(ExamineBuckets((), stages.examine_task), []) == {}
    assert run(WriteShards((), stages.task), []) == {}
