from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from beam_jobs import record, tables, tfrecord
from beam_jobs.errors import SourceChanged
from beam_jobs.write import (
    failures,
    load_sidecar,
    note_failure,
    shard_path,
    shard_tasks,
    sidecar_path,
    write_shard,
)
from tests.make_images import jpeg


def test_a_task_a_shard_in_order_of_splits(stages):
    assert [(task.split, task.index, task.count, task.name) for task in stages.shards] == [
        ("train", 0, 2, "data-00000-of-00002.tfrecord"),
        ("train", 1, 2, "data-00001-of-00002.tfrecord"),
        ("eval", 0, 2, "data-00000-of-00002.tfrecord"),
        ("eval", 1, 2, "data-00001-of-00002.tfrecord"),
    ]
    assert len({task.digest for task in stages.shards}) == 4
    rows = [len(tables.read(task.plan_path)) for task in stages.shards]
    assert sum(rows) == 24


def test_the_digest_of_a_task_follows_its_rows_and_the_salt(stages, tmp_path):
    def digests(plan, salt="salt"):
        return [task.digest for task in shard_tasks(plan, str(tmp_path / "plan"), salt)]

    before = digests(stages.plan)
    assert before == [task.digest for task in stages.shards]
    assert set(before).isdisjoint(digests(stages.plan, "other"))
    train, other = stages.plan.splits
    for name in ("key", "uri", "sha256", "source_sha256", "label", "extra"):
        column = train.images[name].to_pylist()
        images = train.images.set_column(train.images.schema.get_field_index(name), name, [["changed", *column[1:]]])
        after = digests(replace(stages.plan, splits=(replace(train, images=images), other)))
        assert [one == two for one, two in zip(before, after, strict=True)] == [False, True, True, True], name


def test_a_shard_holds_the_planned_images_with_their_own_bytes(stages, photos):
    task = stages.shards[0]
    assert write_shard(task, stages.task) is True
    path = Path(shard_path(stages.task.out, task))
    assert path == Path(stages.task.out) / "Split-train" / "data-00000-of-00002.tfrecord"
    with path.open("rb") as stream:
        records = [(offset, record.decode(data)) for offset, data in tfrecord.read_records(stream, "x")]
    planned = stages.plan.splits[0].shard(0).to_pylist()
    assert [values["image/filename"] for _, values in records] == [[row["key"].encode()] for row in planned]
    for (_, values), row in zip(records, planned, strict=True):
        assert values["image/encoded"] == [(photos / row["key"]).read_bytes()]
        assert values["image/class/label"] == [("china", "flower").index(row["key"].split("/")[0])]
        assert values["image/class/text"] == [row["key"].split("/")[0].encode()]
        assert values["image/source_uri"] == [row["key"].encode()]
        assert values["image/height"] == [row["height"]]
    sidecar = load_sidecar(stages.task.work, task)
    assert sidecar.offsets == tuple(offset for offset, _ in records)
    assert (sidecar.records, sidecar.bytes) == (len(planned), path.stat().st_size)
    assert sidecar.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sidecar.digest == task.digest


def test_no_temporary_file_is_left_and_none_is_made_in_the_split(stages):
    write_shard(stages.shards[0], stages.task)
    assert [path.name for path in Path(stages.task.out, "Split-train").iterdir()] == ["data-00000-of-00002.tfrecord"]
    assert list(Path(stages.task.work).rglob("*.tmp")) == []
    assert Path(stages.task.work, "tmp").is_dir()


@pytest.mark.parametrize("threads", [1, 5])
def test_the_number_of_threads_does_not_show(stages, tmp_path, threads):
    task = stages.shards[0]
    other = replace(stages.task, out=str(tmp_path / "b"), work=str(tmp_path / "b/_work"), threads=threads)
    write_shard(task, stages.task)
    write_shard(task, other)
    assert Path(shard_path(stages.task.out, task)).read_bytes() == Path(shard_path(other.out, task)).read_bytes()


def test_a_written_shard_is_not_written_again(stages):
    task = stages.shards[0]
    write_shard(task, stages.task)
    # Without its plan a shard could not be written, so this shows that it was not tried.
    Path(task.plan_path).unlink()
    assert write_shard(task, stages.task) is False


def lose_sidecar(task, stages):
    Path(sidecar_path(stages.task.work, task)).unlink()
    return task


def tear_sidecar(task, stages):
    path = Path(sidecar_path(stages.task.work, task))
    path.write_bytes(path.read_bytes()[:20])
    return task


def lose_a_field(task, stages):
    path = Path(sidecar_path(stages.task.work, task))
    path.write_text(json.dumps({"offsets": [], "digest": task.digest}))
    return task


def lose_shard(task, stages):
    Path(shard_path(stages.task.out, task)).unlink()
    return task


def cut_shard(task, stages):
    path = Path(shard_path(stages.task.out, task))
    path.write_bytes(path.read_bytes()[:-1])
    return task


def change_digest(task, stages):
    return replace(task, digest="other")


@pytest.mark.parametrize(
    "harm", [lose_sidecar, tear_sidecar, lose_a_field, lose_shard, cut_shard, change_digest], ids=lambda f: f.__name__
)
def test_a_shard_that_is_not_known_to_be_whole_is_written_again(stages, harm):
    task = stages.shards[0]
    write_shard(task, stages.task)
    path = Path(shard_path(stages.task.out, task))
    before = path.read_bytes()
    task = harm(task, stages)
    assert write_shard(task, stages.task) is True
    assert path.read_bytes() == before
    assert load_sidecar(stages.task.work, task).digest == task.digest


@pytest.mark.parametrize(
    ("data", "detail"),
    [(jpeg(77), "the file is not the one that was examined"), (None, "No such file or directory")],
)
def test_a_changed_image_stops_the_shard_and_leaves_no_file(stages, photos, tmp_path, data, detail):
    copy = tmp_path / "copy"
    shutil.copytree(photos, copy)
    victim = stages.plan.splits[0].shard(0)["uri"][0].as_py()
    (copy / victim).unlink()
    if data:
        (copy / victim).write_bytes(data)
    message = rf"^{victim} changed while it was being ingested \({detail}\); run it again$"
    with pytest.raises(SourceChanged, match=message):
        write_shard(stages.shards[0], replace(stages.task, base=str(copy)))
    assert list(Path(stages.task.out).rglob("*.tfrecord")) == []
    assert list(Path(stages.task.out).rglob("*.tmp")) == []


def test_extra_columns_are_written(stages):
    train, other = stages.plan.splits
    extra = [['{"age": 3, "site": "ö"}'] * len(train.images)]
    images = train.images.set_column(train.images.schema.get_field_index("extra"), "extra", extra)
    plan = replace(stages.plan, splits=(replace(train, images=images), other))
    task = shard_tasks(plan, str(Path(stages.task.work) / "plan"), "salt")[0]
    write_shard(task, stages.task)
    with open(shard_path(stages.task.out, task), "rb") as stream:
        values = record.decode(tfrecord.read_record_at(stream, "x", 0))
    assert (values["extra/age"], values["extra/site"]) == ([3], ["ö".encode()])


def test_failures_are_noted_once_a_shard_and_read_in_order(stages):
    assert failures(stages.task.work) == []
    for index in (1, 0, 1):
        note_failure(stages.shards[index], stages.task, SourceChanged(f"shard {index}: ä changed"))
    assert failures(stages.task.work) == ["shard 0: ä changed", "shard 1: ä changed"]
