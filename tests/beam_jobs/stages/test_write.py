from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest

from beam_jobs import storage
from beam_jobs.dataset import record, schemas, tfrecord
from beam_jobs.errors import DataError, Fault, SourceChanged, Unreadable
from beam_jobs.images import annotations, process
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.planning.plan import make_plan
from beam_jobs.planning.planned_rows import PlannedShard
from beam_jobs.sources.image_reader import Reader
from beam_jobs.stages.examine import ExamineTask, examine_bucket, facts_path
from beam_jobs.stages.scan import scan
from beam_jobs.stages.write import (
    Failure,
    ShardTask,
    WriteTask,
    is_written,
    load_sidecar,
    part_path,
    read_failures,
    remove_failure_notes,
    shard_path,
    shard_tasks,
    sidecar_path,
    sweep,
    write_failure_note,
    write_shard,
)
from beam_jobs.types import Annotations
from tests.beam_jobs.conftest import OPTIONS
from tests.beam_jobs.loaded_plan import change_rows, set_column
from tests.beam_jobs.make_rows import make_ref
from tests.make_images import crop, encode, flipped, jpeg, png, rotated_jpeg


def test_each_shard_is_one_task_in_order_of_splits(stages):
    assert [(task.split, task.index, task.count, task.name) for task in stages.shards] == [
        ("train", 0, 2, "data-00000-of-00002.tfrecord"),
        ("train", 1, 2, "data-00001-of-00002.tfrecord"),
        ("eval", 0, 2, "data-00000-of-00002.tfrecord"),
        ("eval", 1, 2, "data-00001-of-00002.tfrecord"),
    ]
    assert len({task.digest for task in stages.shards}) == 4
    rows = [len(task.rows.read()) for task in stages.shards]
    assert sum(rows) == 24


def test_the_digest_of_a_task_follows_its_rows_and_the_salt(stages, tmp_path):
    def digests(plan, salt="salt"):
        return [task.digest for task in shard_tasks(plan, salt)]

    before = digests(stages.plan)
    assert before == [task.digest for task in stages.shards]
    assert set(before).isdisjoint(digests(stages.plan, "other"))
    train, other = stages.plan.splits
    names = ("key", "uri", "sha256", "source_sha256", "label", "label_index", "extra", "annotations", "mask_crc32c")
    for name in names:

        def changed(rows, name=name):
            first, *rest = rows[name].to_pylist()
            return set_column(rows, name, ["changed" if isinstance(first, str) else first + 1, *rest])

        split = change_rows(train, str(tmp_path), changed, stages.plan.labels)
        after = digests(replace(stages.plan, splits=(split, other)))
        assert [one == two for one, two in zip(before, after, strict=True)] == [False, True, True, True], name


def test_the_digest_of_a_task_follows_the_classes_where_rows_name_them(stages, tmp_path):
    # The rows say `dog`, the records say 1: one more class, and the same rows give other bytes.
    cell = schemas.ref_row(make_ref(annotations=Annotations(labels=("dog",))))["annotations"]

    def changed(rows):
        return set_column(rows, "annotations", [cell, *[""] * (len(rows) - 1)])

    few, more = (
        change_rows(stages.plan.splits[0], str(tmp_path), changed, labels).shards
        for labels in (("cat", "dog"), ("ant", "cat", "dog"))
    )
    same = [one.digest == two.digest for one, two in zip(few, more, strict=True)]
    assert same == [False, True]  # images of one label carry its index


def test_the_rows_of_an_earlier_plan_stay_for_workers_that_still_read_them(stages):
    directory = str(Path(stages.shards[0].rows.path).parent)
    before = [task.rows.read() for task in stages.shards]
    paths = [facts_path(stages.task.work, bucket) for bucket in stages.scanned.buckets[1:]]
    make_plan(paths, OPTIONS, directory)
    assert [task.rows.read() for task in stages.shards] == before


def test_a_shard_holds_the_planned_images_with_their_own_bytes(stages, photos):
    task = stages.shards[0]
    assert write_shard(task, stages.task) is True
    path = Path(shard_path(stages.task.out, task))
    assert list(Path(stages.task.out, "Split-train").iterdir()) == [path]
    assert path.name == "data-00000-of-00002.tfrecord"
    assert [left.suffix for left in Path(stages.task.work, "written").iterdir()] == [".json"]
    with path.open("rb") as stream:
        records = [(offset, record.decode(data)) for offset, data in tfrecord.read_records(stream, "x")]
    planned = task.rows.read().to_pylist()
    assert [values["image/filename"] for _, values in records] == [[row["key"].encode()] for row in planned]
    for (_, values), row in zip(records, planned, strict=True):
        assert values["image/encoded"] == [(photos / row["key"]).read_bytes()]
        assert values["image/class/label"] == [("china", "flower").index(row["key"].split("/")[0])]
        assert values["image/class/text"] == [row["key"].split("/")[0].encode()]
        assert values["image/source_uri"] == [row["key"].encode()]
        assert values["image/height"] == [row["height"]]
    part = Path(stages.task.out, "images", "part-train-00000.parquet")
    rows = schemas.read(str(part)).to_pylist()
    assert [(row["key"], row["offset"]) for row in rows] == [
        (values["image/filename"][0].decode(), offset) for offset, values in records
    ]
    assert {(row["split"], row["shard"]) for row in rows} == {("train", 0)}
    sidecar = load_sidecar(stages.task.work, task)
    assert (sidecar.digest, sidecar.records) == (task.digest, len(planned))
    for file, place in ((sidecar.shard, path), (sidecar.part, part)):
        data = place.read_bytes()
        expected = (len(data), hashlib.sha256(data).hexdigest(), google_crc32c.value(data))
        assert (file.bytes, file.sha256, file.crc32c) == expected


def test_a_shard_that_was_sealed_and_did_not_get_its_name_gets_it(stages):
    task = stages.shards[0]
    write_shard(task, stages.task)
    path, sidecar = Path(shard_path(stages.task.out, task)), load_sidecar(stages.task.work, task)
    part = Path(part_path(stages.task.out, task))
    contents = path.read_bytes(), part.read_bytes()
    for place, file, content in zip((path, part), (sidecar.shard, sidecar.part), contents, strict=True):
        place.rename(Path(stages.task.work, "written", file.name))
        place.write_bytes(bytes(len(content)))  # of another plan, and as long
    Path(task.rows.path).unlink()
    assert write_shard(task, stages.task) is False
    assert (path.read_bytes(), part.read_bytes()) == contents


def test_what_other_plans_and_killed_attempts_left_is_swept_away(stages):
    one, other = stages.shards[:2]
    write_shard(one, stages.task)
    write_shard(replace(other, digest="of another plan"), stages.task)
    written = Path(stages.task.work, "written")
    (written / f"{one.split}-{one.name}.{one.digest[:16]}.{0:032x}.tfrecord").write_bytes(b"half")
    sweep(stages.task.work, stages.shards)
    assert [str(path) for path in written.iterdir()] == [sidecar_path(stages.task.work, one)]
    assert write_shard(one, stages.task) is False


HARMS = {
    "lose sidecar": lambda path, sidecar: sidecar.unlink(),
    "flip sidecar": lambda path, sidecar: sidecar.write_text(sidecar.read_text().replace('"bytes": ', '"bytes": 1')),
    "lose a field": lambda path, sidecar: sidecar.write_text(json.dumps({"records": 1, "digest": "d"})),
    "lose shard": lambda path, sidecar: path.unlink(),
    "cut shard": lambda path, sidecar: path.write_bytes(path.read_bytes()[:-1]),
    "flip shard": lambda path, sidecar: path.write_bytes(flipped(path.read_bytes(), 100)),
    "lose part": lambda path, sidecar: part_of(path).unlink(),
    "cut part": lambda path, sidecar: part_of(path).write_bytes(part_of(path).read_bytes()[:-1]),
    "flip part": lambda path, sidecar: part_of(path).write_bytes(flipped(part_of(path).read_bytes(), 100)),
}


def part_of(path: Path) -> Path:
    return path.parents[1] / "images" / "part-train-00000.parquet"


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_shard_that_is_not_known_to_be_whole_is_written_again(stages, harm):
    task = stages.shards[0]
    write_shard(task, stages.task)
    path = Path(shard_path(stages.task.out, task))
    before = path.read_bytes(), part_of(path).read_bytes()
    harm(path, Path(sidecar_path(stages.task.work, task)))
    assert not is_written(task, stages.task)  # when it cannot be written again
    assert write_shard(task, stages.task) is True
    assert (path.read_bytes(), part_of(path).read_bytes()) == before


def test_a_shard_that_the_disk_damages_is_not_sealed(stages, monkeypatch):
    real = storage.direct_writer

    @contextlib.contextmanager
    def damaging(path):
        with real(path) as stream:
            yield stream
        Path(path).write_bytes(flipped(Path(path).read_bytes(), 100))

    task = stages.shards[0]
    with monkeypatch.context() as patch:
        patch.setattr(storage, "direct_writer", damaging)
        with pytest.raises(OSError, match="the file differs from the data written to it"):
            write_shard(task, stages.task)
    assert list(Path(stages.task.work, "written").iterdir()) == []
    assert write_shard(task, stages.task) is True


def test_failures_are_noted_once_a_shard_and_read_in_order(stages):
    assert read_failures(stages.task.work) == []
    for index in (1, 0, 1):
        write_failure_note(stages.shards[index], stages.task, SourceChanged(f"shard {index}: ä changed", "cat/ä.jpg"))
    write_failure_note(stages.shards[2], stages.task, Unreadable("denied", (Fault("cat/b.jpg", "denied"),)))
    write_failure_note(stages.shards[3], stages.task, OSError(5, "no answer"))
    assert read_failures(stages.task.work) == [
        Failure("eval-00000", "cat/b.jpg", "denied", passing=True),
        Failure("eval-00001", "data-00001-of-00002.tfrecord", "no answer", passing=True),
        Failure("train-00000", "cat/ä.jpg", "shard 0: ä changed", passing=False),
        Failure("train-00001", "cat/ä.jpg", "shard 1: ä changed", passing=False),
    ]
    remove_failure_notes(stages.task.work)
    assert read_failures(stages.task.work) == []


CLASSES = (np.arange(60 * 80).reshape(60, 80) % 5).astype(np.uint8)
FILES = {
    "a.jpg": jpeg(21),
    "b.webp": encode(crop(22), "WEBP"),
    "c.png": png(23),
    "d.jpg": rotated_jpeg(6, seed=24),
    "plain.png": encode(CLASSES, "PNG"),
    "colours.png": encode(np.repeat(CLASSES[..., None], 3, axis=2), "PNG"),
}
LABELS = ("ant", "bee", "cat")
COPY = PixelOptions()


@pytest.fixture
def prepare(tmp_path):
    """Returns a function that examines references and plans them as one shard; nothing is written yet."""
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    reader = Reader(base=str(tmp_path), max_bytes=10**6, work=str(tmp_path / "out" / "_work"))

    def prepare(*refs, pixels=COPY, **fields) -> tuple[ShardTask, WriteTask]:
        (bucket,) = scan(refs, str(tmp_path / "refs"), 100, {}, "").buckets
        task = ExamineTask(reader=reader, limits=ImageLimits(), pixels=pixels, facts="all", threads=1)
        assert examine_bucket(bucket, task).rejected == 0
        rows = [
            {**row, "cluster": "", "near": "", "label_index": LABELS.index(row["label"]) if row["label"] else -1}
            for row in schemas.read(facts_path(reader.work, bucket)).to_pylist()
        ]
        schemas.write(str(tmp_path / "plan.parquet"), pa.Table.from_pylist(rows, schemas.PLANNED))
        planned = PlannedShard(path=str(tmp_path / "plan.parquet"), row_group=0, images=len(rows), digest="d")
        shard = ShardTask(split="all", index=0, count=1, rows=planned, digest="d")
        values = {"reader": reader, "out": str(tmp_path / "out"), "labels": LABELS, "pixels": pixels}
        return shard, WriteTask(**{**values, **fields})

    return prepare


def written(shard: ShardTask, task: WriteTask) -> list[dict[str, list]]:
    assert write_shard(shard, task) is True
    with open(shard_path(task.out, shard), "rb") as stream:
        return [record.decode(payload) for _, payload in tfrecord.read_records(stream, "x")]


def said(key: str = "a.jpg", label: str = "", **fields):
    return make_ref(key, label, annotations=Annotations(**fields) if fields else None)


@pytest.mark.parametrize("policy", [COPY, PixelOptions(policy="raw", side_px=30)])
def test_what_was_changed_comes_out_of_the_spool(prepare, policy):
    refs = [said(key, "bee") for key in ("a.jpg", "b.webp", "c.png", "d.jpg")]
    for ref, values in zip(refs, written(*prepare(*refs, pixels=policy)), strict=True):
        encoded, facts = process.examine(FILES[ref.key], ImageLimits(), policy)
        assert values[record.ENCODED] == [encoded]
        assert values[record.FORMAT] == [facts.format.encode()]
        assert (values[record.HEIGHT], values[record.WIDTH]) == ([facts.height], [facts.width])
        assert (values[record.LABEL], values[record.TEXT]) == ([1], [b"bee"])


@pytest.mark.parametrize("spare", [0, -1])
def test_a_record_has_no_more_bytes_than_readers_believe(prepare, monkeypatch, spare):
    shard, task = prepare(said("a.jpg", "bee"))
    (row,) = shard.rows.read().to_pylist()
    write_shard(shard, task)
    size = os.path.getsize(shard_path(task.out, shard)) - tfrecord.OVERHEAD
    monkeypatch.setattr(tfrecord, "MAX_RECORD_BYTES", size + spare)
    again = replace(shard, digest="another")
    if not spare:
        assert write_shard(again, task)
        return
    message = rf"^{row['key']} makes a record of {size} bytes; {size - 1} are allowed; lower max_bytes$"
    with pytest.raises(DataError, match=message):
        write_shard(again, task)


@pytest.mark.parametrize(
    ("label", "fields", "names"),
    [
        ("", {"label_kind": "none", "labels": ()}, (record.LABEL, record.TEXT)),
        ("ant", {"channel_statistics": False}, (record.MEAN_RGB, record.VAR_RGB)),
    ],
    ids=["labels", "moments"],
)
def test_of_what_is_not_known_nothing_is_written(prepare, label, fields, names):
    (values,) = written(*prepare(said(label=label), **fields))
    assert values.keys().isdisjoint(names)


def test_a_mask_is_written_as_it_lies_or_made_plain(prepare):
    plain, changed = written(*prepare(said("a.jpg", "ant", mask="plain.png"), said("c.png", "bee", mask="colours.png")))
    assert plain["image/segmentation/class/encoded"] == [FILES["plain.png"]]
    assert changed["image/segmentation/class/encoded"] == [annotations.encode_mask(CLASSES)]
    assert changed["image/segmentation/class/format"] == [b"png"]


@pytest.mark.parametrize("data", [FILES["colours.png"], None])
def test_a_mask_that_changes_under_way_stops_the_shard(prepare, tmp_path, data):
    shard, task = prepare(said("a.jpg", "ant", mask="plain.png"))
    (tmp_path / "plain.png").unlink()
    if data:
        (tmp_path / "plain.png").write_bytes(data)
    match = r"^plain.png changed while it was being ingested \(.*\); run the ingest again$"
    with pytest.raises(SourceChanged, match=match):
        write_shard(shard, task)
    assert list(tmp_path.rglob("*.tfrecord")) == []


def test_a_spool_that_is_lost_stops_the_shard(prepare, tmp_path):
    shard, task = prepare(said("b.webp", "ant"))
    (spool,) = tmp_path.rglob("spool-*")
    data = flipped(spool.read_bytes(), -1)
    spool.write_bytes(data)
    with pytest.raises(SourceChanged, match=r"^b.webp changed in the work directory; check the disk"):
        write_shard(shard, task)
    spool.write_bytes(data[:-1])
    with pytest.raises(OSError, match=rf"^it ends at byte {len(data) - 1}; "):
        write_shard(shard, task)
    spool.unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(str(spool))):
        write_shard(shard, task)
