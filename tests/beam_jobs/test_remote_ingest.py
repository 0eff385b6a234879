"""The whole ingest from and to an S3 server, reached by nothing but the environment variables of its client."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beam_jobs import storage
from beam_jobs.errors import OptionError, SourceError
from beam_jobs.ingest import run
from beam_jobs.options import HttpOptions, IngestOptions
from beam_jobs.verify import verify
from tests.beam_jobs import s3_server
from tests.beam_jobs.runs import shards_under
from tests.beam_jobs.web_server import body, serving


@pytest.fixture
def bucket(monkeypatch) -> str:
    return s3_server.new_bucket(monkeypatch)


def options(source: str, out: str, **more) -> IngestOptions:
    return IngestOptions(**{"source": source, "out": out, "splits": {"train": 0.7, "eval": 0.3}, "shards": 2, **more})


def remote_shards(out: str) -> dict[str, bytes]:
    names = (name for name, _, _ in storage.walk_files(out) if name.endswith(".tfrecord"))
    return {name: storage.read_bytes(f"{out}/{name}") for name in names}


@pytest.mark.parametrize("pattern", ["", "/**/*.{jpg,png}"])
def test_a_bucket_becomes_the_dataset_that_a_folder_becomes(photos, bucket, dataset, tmp_path, pattern):
    s3_server.put_tree(bucket, "photos", photos)
    run(options(f"{bucket}/photos{pattern}", str(tmp_path / "out")))
    assert shards_under(tmp_path / "out") == shards_under(dataset)


def test_a_dataset_is_written_to_a_bucket(photos, bucket, dataset):
    run(options(str(photos), f"{bucket}/out"))
    assert remote_shards(f"{bucket}/out") == shards_under(dataset)
    local = sorted(str(path.relative_to(dataset)) for path in Path(dataset).rglob("*") if path.is_file())
    assert sorted(name for name, _, _ in storage.walk_files(f"{bucket}/out")) == local
    assert verify(f"{bucket}/out").problems == []
    with pytest.raises(OptionError, match="already holds a dataset"):
        run(options(str(photos), f"{bucket}/out"))


def test_a_list_of_urls_becomes_the_dataset_and_what_is_not_fetched_a_reject(photos, tmp_path):
    names = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.*"))
    rows = [f"{name},{name.partition('/')[0]}" for name in [*names, "cat/gone.jpg"]]
    with serving({f"/{name}": body((photos / name).read_bytes()) for name in names}) as server:
        text = "\n".join(["image,label", *(server.url("/") + row for row in rows)])
        (tmp_path / "urls.csv").write_text(text, encoding="utf-8")
        http = HttpOptions(timeout_s=5, retries=0, allow_private=True)
        made = run(options(str(tmp_path / "urls.csv"), str(tmp_path / "out"), http=http))
        assert sum(split.records for split in made.splits.values()) == len(names)
        assert server.seen == dict.fromkeys([f"/{name}" for name in [*names, "cat/gone.jpg"]], 1)
    (reject,) = pq.read_table(tmp_path / "out" / "rejects.parquet").to_pylist()
    assert (reject["uri"], reject["reason"]) == (server.url("/cat/gone.jpg"), "not_fetched")
    assert reject["detail"] == "127.0.0.1 answers 404; 1 attempt"


def test_a_bucket_that_is_not_there_is_told_before_anything_is_written(photos, bucket, tmp_path):
    with pytest.raises(SourceError, match="cannot be listed: .*bucket does not exist"):
        run(options(f"{bucket}-not/photos", str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()
    with pytest.raises(OptionError, match="cannot be written: .*bucket does not exist"):
        run(options(str(photos), f"{bucket}-not/out"))
