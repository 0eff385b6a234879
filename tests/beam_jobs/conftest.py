from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from beam_jobs.options import TableColumns
from beam_jobs.planning.plan import Plan, make_plan
from beam_jobs.sources.archive import TarSource
from beam_jobs.sources.class_folders import ClassFolders
from beam_jobs.sources.image_reader import Reader
from beam_jobs.stages.examine import ExamineTask, examine_bucket, facts_path
from beam_jobs.stages.scan import Scan, scan
from beam_jobs.stages.write import ShardTask, WriteTask, shard_tasks
from tests.beam_jobs import s3_server
from tests.beam_jobs.make_archives import KINDS, make_tar
from tests.beam_jobs.make_rows import make_options
from tests.beam_jobs.web_server import DATA, WebServer, body, serving

OPTIONS = make_options(splits={"train": 0.7, "eval": 0.3}, shards=2, bucket_images=10)


@dataclass
class Stages:
    """The photographs, examined and planned as splits train and eval of two shards each; nothing is written yet."""

    scanned: Scan
    examine_task: ExamineTask
    plan: Plan
    shards: list[ShardTask]
    task: WriteTask


@pytest.fixture
def stages(photos: Path, tmp_path: Path) -> Stages:
    work = tmp_path / "out" / "_work"
    scanned = scan(ClassFolders(str(photos)).entries(), str(work / "refs"), 10, OPTIONS.splits, "")
    reader = Reader(base=str(photos), max_bytes=OPTIONS.limits.max_bytes, work=str(work))
    examine_task = ExamineTask(reader=reader, limits=OPTIONS.limits, pixels=OPTIONS.pixels, facts="all", threads=2)
    for bucket in scanned.buckets:
        examine_bucket(bucket, examine_task)
    paths = [facts_path(str(work), bucket) for bucket in scanned.buckets]
    plan = make_plan(paths, OPTIONS, str(work / "plan"))
    return Stages(
        scanned=scanned,
        examine_task=examine_task,
        plan=plan,
        shards=shard_tasks(plan, "salt"),
        task=WriteTask(reader=reader, out=str(tmp_path / "out"), labels=plan.labels, threads=2),
    )


@pytest.fixture
def bucket(monkeypatch) -> str:
    """The address of an empty bucket of an S3 server."""
    return s3_server.new_bucket(monkeypatch)


@pytest.fixture(params=["objects", "s3"])
def store(request, tmp_path) -> str:
    """The address of an empty place in an object store."""
    from tests.beam_jobs.object_store import SCHEME  # imports Beam

    return request.getfixturevalue("bucket") if request.param == "s3" else f"{SCHEME}://{tmp_path}"


@pytest.fixture(params=["local", "remote"])
def place(request, tmp_path) -> str:
    """The temporary directory, as it is and as a place in an object store."""
    from tests.beam_jobs.object_store import SCHEME

    return str(tmp_path) if request.param == "local" else f"{SCHEME}://{tmp_path}"


@pytest.fixture
def server() -> Iterator[WebServer]:
    """A web server of one page, `/a.jpg`, which holds `DATA`."""
    with serving({"/a.jpg": body(DATA)}) as running:
        yield running


@pytest.fixture(params=KINDS)
def archive(request, tmp_path):
    """Makes an archive of files, tar or zip, and returns its source."""
    kind, make, name = KINDS[request.param]
    return lambda files, **columns: kind(str(make(tmp_path / name, files)), TableColumns(**columns))


@pytest.fixture
def tar(tmp_path):
    """Makes a tar archive of files and returns its source, for what does not depend on the kind of archive."""
    return lambda files, **columns: TarSource(str(make_tar(tmp_path / "x.tar", files)), TableColumns(**columns))
