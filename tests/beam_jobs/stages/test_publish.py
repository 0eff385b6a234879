from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from beam_jobs.dataset import manifest, schemas, tfrecord
from beam_jobs.errors import CorruptDataset
from beam_jobs.images.decode import decode_rgb
from beam_jobs.options import HttpOptions
from beam_jobs.rejects import Reject
from beam_jobs.stages.publish import RunProperties, producer, publish
from beam_jobs.stages.reject_table import from_rejects
from beam_jobs.stages.write import part_path, shard_path, sidecar_path, write_shard
from tests import image_table
from tests.beam_jobs import gcs_server, kill
from tests.beam_jobs.conftest import OPTIONS
from tests.beam_jobs.loaded_plan import change_rows, load, set_column
from tests.beam_jobs.runs import files_under
from tests.make_images import flipped

NO_REJECTS = schemas.REJECTS.empty_table()
REJECT = Reject(key="b", uri="b.jpg", stage="examine", reason="too_small", detail="7x7 pixels")


@pytest.fixture
def written(stages):
    return write_all(stages)


def write_all(stages, **task_fields):
    stages.task = replace(stages.task, **task_fields)
    for task in stages.shards:
        write_shard(task, stages.task)
    return stages


def publish_it(stages, rejects=NO_REJECTS, found=24, label_kind="single", **options):
    options = replace(OPTIONS, out=stages.task.out, **options)
    held = RunProperties(images=found, label_kind=label_kind, work=stages.task.work)
    return publish(options, stages.plan, stages.shards, [rejects], held)


def test_the_manifest_describes_the_files(written):
    result = publish_it(written)
    assert json.dumps(manifest.load(written.task.out).to_json()) == json.dumps(result.to_json())
    for name, info in result.splits.items():
        for path, shard in zip(result.shard_paths(written.task.out, name), info.shards, strict=True):
            data = Path(path).read_bytes()
            assert (shard.bytes, shard.sha256) == (len(data), hashlib.sha256(data).hexdigest())
            with open(path, "rb") as stream:
                assert shard.records == len(list(tfrecord.read_records(stream, path)))
    counted = [info.classes for info in result.splits.values()]
    assert sum(sum(classes.values()) for classes in counted) == 24
    assert {label: sum(classes.get(label, 0) for classes in counted) for label in ("china", "flower")} == {
        "china": 12,
        "flower": 12,
    }


def test_of_an_output_that_is_removed_meanwhile_nothing_is_published(written):
    out = Path(written.task.out)

    def remove(path: str) -> None:
        if path.endswith(manifest.REJECTS_NAME):  # it is read once more for its checksum
            shutil.rmtree(out / "Split-train", ignore_errors=True)

    kill.on_each_moment((str(out),), remove)
    with pytest.raises(FileNotFoundError, match="Split-train"):
        publish_it(written)
    assert not manifest.is_published(str(out))


def test_channel_statistics_are_those_of_the_pixels_of_the_first_split(written, photos):
    channels = publish_it(written).channels
    keys = load(written.plan.splits[0]).images["key"].to_pylist()
    pixels = np.concatenate([decode_rgb((photos / key).read_bytes()).numpy().reshape(-1, 3) for key in keys])
    assert channels.split == "train"
    np.testing.assert_allclose(channels.mean_rgb, pixels.mean(0), rtol=1e-4)
    np.testing.assert_allclose(channels.std_rgb, pixels.std(0), rtol=1e-4)


def test_publishing_twice_writes_the_same_files(written):
    publish_it(written)
    before = files_under(Path(written.task.out))
    Path(written.task.out, "dataset.json").unlink()  # as after a kill just before it
    publish_it(written)
    assert files_under(Path(written.task.out)) == before


def test_options_of_one_run_stay_out_of_the_manifest(written):
    http = HttpOptions(retries=9)
    result = publish_it(written, threads=7, bucket_images=3, overwrite=True, http=http)
    assert set(result.options) == {
        *("source_kind", "columns", "splits", "stratify", "seed", "shard_mb", "shards", "pixels", "facts"),
        *("duplicates", "near_duplicates", "near_distance", "max_reject_ratio", "limits", "about"),
    }
    assert result.options_digest == OPTIONS.digest()
    assert result.label_kind == "single"
    assert result.source == OPTIONS.source


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("place", "harm"),
    [
        (shard_path, cut),
        (shard_path, Path.unlink),
        (part_path, cut),
        (part_path, Path.unlink),
        (sidecar_path, Path.unlink),
    ],
    ids=lambda f: f.__name__,
)
def test_a_shard_that_is_not_what_was_written_stops_the_publishing(written, place, harm):
    shard = written.shards[1]
    harm(Path(place(written.task.work if place is sidecar_path else written.task.out, shard)))
    path = (part_path if place is part_path else shard_path)(written.task.out, shard)
    with pytest.raises(CorruptDataset, match=rf"^{path} differs from the data written to it; check the disk, then run"):
        publish_it(written)
    assert not manifest.is_published(written.task.out)
    # The next run takes up the other shards and writes this one again.
    assert [write_shard(task, written.task) for task in written.shards] == [False, True, False, False]
    publish_it(written)


def test_a_shard_that_changed_in_a_store_is_found_without_reading_it(stages, monkeypatch, tmp_path):
    with gcs_server.serving(monkeypatch, tmp_path) as server:
        out = "gs://bucket/out"
        task = replace(stages.task, out=out, reader=replace(stages.task.reader, work=f"{out}/_work"))
        stages = replace(stages, task=task)
        for shard in stages.shards:
            write_shard(shard, task)
        name = f"out/Split-train/{stages.shards[1].name}"
        good, server.objects[name] = server.objects[name], flipped(server.objects[name], 100)
        with pytest.raises(CorruptDataset, match=f"^gs://bucket/{name} differs from the data written to it"):
            publish_it(stages)
        server.objects[name] = good
        assert write_shard(stages.shards[1], task) is True
        publish_it(stages)
        read = r"(\.tfrecord|part-\w+-\d+\.parquet)\?alt=media"
        assert not [asked for asked in server.asked if re.search(read, asked)]


def with_column(stages, name, values):
    """Puts values, by key, into a column of the plan; the rest of the rows keep theirs."""

    def changed(rows):
        pairs = zip(rows["key"].to_pylist(), rows[name].to_pylist(), strict=True)
        return set_column(rows, name, [values.get(key, before) for key, before in pairs])

    directory = f"{stages.task.work}/changed"
    stages.plan = replace(
        stages.plan, splits=tuple(change_rows(split, directory, changed) for split in stages.plan.splits)
    )
    rows = [shard for split in stages.plan.splits for shard in split.shards]
    stages.shards = [replace(task, rows=part) for task, part in zip(stages.shards, rows, strict=True)]


def test_strays_go_and_what_is_not_known_is_not_published(stages):
    written = write_all(stages, label_kind="none")
    strays = (
        Path(written.task.out, "Split-train", "data-00002-of-00003.tfrecord"),
        Path(written.task.out, "images", "part-train-00002.parquet"),
    )
    for stray in strays:
        stray.write_bytes(b"of an abandoned run")
    result = publish_it(written, label_kind="none", facts="basic")
    assert [len(list(stray.parent.iterdir())) for stray in strays] == [2, 4]
    assert not any(stray.exists() for stray in strays)
    assert ([info.classes for info in result.splits.values()], result.channels) == ([{}, {}], None)
    assert manifest.load(written.task.out).channels is None


def test_counts_add_up(stages):
    keys = load(stages.plan.splits[0]).images["key"].to_pylist()
    with_column(stages, "normalised", {keys[0]: "format+alpha", keys[1]: "alpha"})
    written = write_all(stages)
    first = written.plan.splits[0]
    two = replace(first, images=first.shards[0].images, shards=first.shards[:1])
    dropped = change_rows(two, written.task.work, lambda rows: rows.slice(0, 2))
    plan = replace(written.plan, dropped=dropped)
    near = {"near_clusters": 2, "near_images": 5, "near_dropped": 1}  # of the two that are dropped
    written.plan = replace(plan, clusters=3, cluster_images=7, label_conflicts=1, **near)
    rejects = from_rejects([REJECT, replace(REJECT, key="a"), replace(REJECT, key="c", reason="no_label")])
    counts = publish_it(written, rejects, found=29).counts
    assert (counts.found, counts.written, counts.rejected, counts.dropped) == (29, 24, 3, 2)
    assert (counts.duplicates_dropped, counts.near_dropped) == (1, 1)
    assert (counts.near_clusters, counts.near_images) == (2, 5)
    assert counts.rejects == {"too_small": 2, "no_label": 1}
    assert counts.normalised == {"alpha": 2, "format": 1}
    assert (counts.duplicate_clusters, counts.duplicate_images, counts.label_conflicts) == (3, 7, 1)
    table = image_table.read(written.task.out)
    dropped = [row for row in table.to_pylist() if row["shard"] == -1]
    assert [(row["split"], row["offset"]) for row in dropped] == [("", -1), ("", -1)]
    assert schemas.read(str(Path(written.task.out, "rejects.parquet"))) == rejects.take([1, 0, 2])


def test_the_producer_names_what_shapes_the_bytes():
    assert producer() == {
        name: metadata.version(name)
        for name in ("feedline", "tensorflow", "pillow", "opencv-python-headless", "pycocotools")
    }
