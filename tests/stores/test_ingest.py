"""The ingest from and to object stores, what breaks on the way included."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from beam_jobs.dataset import manifest
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import FeedlineError, OptionError, SourceError
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions
from tests.beam_jobs.runs import remote_shards, shards_under

pytestmark = pytest.mark.stores

SHARD = r"Split-\w+/data-\d+-of-\d+\.tfrecord(?=$|\?)"
DENIED = r"403|[Dd]enied|Forbidden"


def options(source: str, out: str, **more) -> IngestOptions:
    given = {"source": source, "out": out, "splits": {"train": 0.7, "eval": 0.3}, "shards": 2, "max_reject_ratio": 0.0}
    return IngestOptions(**{**given, **more})


def is_write(asked) -> bool:
    return asked.method in ("PUT", "POST") and not asked.path.endswith(("?delete", "/token"))


def test_from_bucket_to_bucket_gives_the_dataset_of_a_folder(photos, bucket, dataset):
    source = bucket.put_tree("photos", photos)
    run(options(source, f"{bucket.url}/out"))
    assert remote_shards(f"{bucket.url}/out") == shards_under(dataset)
    local = sorted(str(path.relative_to(dataset)) for path in Path(dataset).rglob("*") if path.is_file())
    assert bucket.names("out") == local  # the work files are gone
    assert verify(f"{bucket.url}/out").problems == []


def test_a_source_may_be_a_pattern_and_the_output_a_folder(photos, bucket, dataset, tmp_path):
    source = bucket.put_tree("photos", photos)
    run(options(f"{source}/**/*.{{jpg,png}}", str(tmp_path / "out")))
    assert shards_under(tmp_path / "out") == shards_under(dataset)


@pytest.mark.parametrize("outs", [("out", "out"), ("1/out", "2/out")], ids=["one output", "a work directory of runs"])
def test_a_store_that_fails_in_the_middle_loses_nothing_that_was_finished(photos, bucket, dataset, outs):
    """S3 answers 503 for good; Google's client would try again for minutes, so there the right to write is lost.

    The runs of a service write each into a directory of its own, and share a work directory.
    """
    first, out = (f"{bucket.url}/{name}" for name in outs)
    work = f"{bucket.url}/work" if first != out else ""
    status = 503 if bucket.url.startswith("s3") else 403
    finished: list[str] = []

    def fail_after_one_shard(asked) -> int:
        if finished and is_write(asked):
            return status
        finished.extend(re.findall(SHARD, asked.path) if is_write(asked) else [])
        return 0

    bucket.tap.refuse = fail_after_one_shard
    with pytest.raises(FeedlineError, match="finished work is kept, run the same command again") as told:
        run(options(str(photos), first), work=work)
    assert "\n" not in str(told.value)
    assert len(finished) == 1
    assert not manifest.is_published(first)

    bucket.tap.refuse = lambda _: 0
    bucket.tap.asked.clear()
    run(options(str(photos), out), work=work)
    written = Counter(bucket.tap.written(SHARD))
    assert written == Counter({name: 1 for name in shards_under(dataset) if name != finished[0] or first != out})
    assert bucket.tap.written(r"work/examined") == []
    assert bucket.names("work" if work else "out/_work") == []
    assert remote_shards(out) == shards_under(dataset)
    assert verify(out).problems == []


def test_a_dataset_is_published_last_and_whole(photos, bucket, dataset):
    out = f"{bucket.url}/out"
    denied = re.compile(r"out(/|%2F)rejects\.parquet", re.IGNORECASE)  # not that of the work directory
    bucket.tap.refuse = lambda asked: 403 * (is_write(asked) and bool(denied.search(asked.path)))
    with pytest.raises(OSError, match=DENIED):
        run(options(str(photos), out))
    assert not manifest.is_published(out)
    with pytest.raises(SourceError, match=r"is not a dataset: it has no dataset.json"):
        verify(out)

    bucket.tap.refuse = lambda _: 0
    bucket.tap.asked.clear()
    run(options(str(photos), out))
    assert bucket.tap.written(SHARD) == [], "finished shards are not written again"
    names = bucket.tap.written(
        r"out/(dataset\.json|[\w/]+\.parquet|[\w]+_info\.json|Split-\w+/[\w-]+\.tfrecord)(?=$|\?)"
    )
    assert names[-1] == "out/dataset.json"
    assert names.count("out/dataset.json") == 1


def test_a_bucket_that_is_not_there_is_told_before_anything_is_written(photos, bucket, tmp_path):
    with pytest.raises(SourceError, match="cannot be listed: .*(not exist|Not Found)"):
        run(options(f"{bucket.url}-not/photos", str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()
    with pytest.raises(OptionError, match="cannot be written: .*(not exist|Not Found)"):
        run(options(str(photos), f"{bucket.url}-not/out"))


def test_denied_access_is_told_before_anything_is_written(photos, bucket, tmp_path):
    bucket.tap.refuse = lambda _: 403
    with pytest.raises(SourceError, match=f"cannot be listed: .*({DENIED})"):
        run(options(f"{bucket.url}/photos", str(tmp_path / "out")))
    with pytest.raises(OptionError, match=f"cannot be accessed: .*({DENIED})"):
        run(options(str(photos), f"{bucket.url}/out"))
    bucket.tap.refuse = lambda _: 0
    assert bucket.names() == []


def test_a_dataset_in_a_store_is_not_replaced_and_stays_whole(photos, bucket, dataset):
    out = f"{bucket.url}/out"
    run(options(str(photos), out))
    for more in ({"overwrite": True}, {}):
        with pytest.raises(OptionError, match=r"object stores have no folders|already holds a dataset") as told:
            run(options(str(photos), out, **more))
        assert "\n" not in str(told.value)
    assert remote_shards(out) == shards_under(dataset)
