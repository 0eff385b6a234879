from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from beam_jobs.options import IngestOptions, PixelOptions, TableColumns
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
from tests.make_images import encode, jpeg, png

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


def ingested(source: Path, out: Path, **fields) -> Path:
    from beam_jobs.ingest import run  # imports Beam

    run(IngestOptions(source=str(source), out=str(out), splits={"all": 1}, **fields))
    return out


@pytest.fixture(scope="session")
def rich(tmp_path_factory) -> Path:
    """Images with many labels, masks, weights and columns of their own; keys that no disk should see as names.

    Read only, as the datasets that follow.
    """
    folder = tmp_path_factory.mktemp("rich")
    lines = ["image,id,tags,mask,weight,age,note"]
    for index in range(6):
        (folder / f"{index}.jpg").write_bytes(jpeg(index) if index % 2 else png(index))
        mask = np.arange(4800).reshape(60, 80) % (index + 2)
        (folder / f"{index}.png").write_bytes(encode(mask.astype(np.uint8), "PNG"))
        tags = "|".join(["cat", "dog", "line\u2028break"][: index % 4])
        lines.append(f"{index}.jpg,../../{index} é.x,{tags},{index}.png,{index / 2},{index or ''},note {index}")
    (folder / "table.csv").write_text("\n".join(lines), encoding="utf-8")
    columns = TableColumns(label="", labels="tags", mask="mask", weight="weight", key="id", extra=("age", "note"))
    return ingested(folder / "table.csv", folder / "dataset", columns=columns)


@pytest.fixture(scope="session")
def objects(tmp_path_factory) -> Path:
    """A COCO source: an image with two objects, one of them with a mask, and an image with none."""
    folder = tmp_path_factory.mktemp("objects")
    for index in range(2):
        (folder / f"{index}.jpg").write_bytes(jpeg(index))
    images = [{"id": index, "file_name": f"{index}.jpg", "height": 60, "width": 80} for index in range(2)]
    shape = [[10.0, 10.0, 30.0, 10.0, 30.0, 30.0, 10.0, 30.0]]
    plain = {"image_id": 0, "iscrowd": 0}
    annotations = [
        {"id": 1, "category_id": 7, "bbox": [10, 10, 20, 20], "area": 400, "segmentation": shape, **plain},
        {"id": 2, "category_id": 9, "bbox": [0, 0, 40, 30], "area": 1200, **plain},
    ]
    categories = [{"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}]
    coco = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "coco.json").write_text(json.dumps(coco))
    return ingested(folder / "coco.json", folder / "dataset")


@pytest.fixture(scope="session")
def raw(photos, tmp_path_factory) -> Path:
    """The photographs as raw pixels, 16 x 16 each."""
    out = tmp_path_factory.mktemp("raw") / "dataset"
    return ingested(photos, out, pixels=PixelOptions(policy="raw", side_px=16))


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
