"""Adding images to a published dataset, and trying rejects again: whole ingests over real files."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from beam_jobs.dataset import manifest, schemas
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import CorruptDataset, OptionError, TooManyRejects
from beam_jobs.ingest import run
from beam_jobs.inspect import find_record
from beam_jobs.options import About, IngestOptions, PixelOptions
from tests import image_table
from tests.beam_jobs.runs import KilledAfterWriting, Recorder, files_under, shards_under
from tests.make_images import jpeg


@pytest.fixture
def source(photos, tmp_path) -> Path:
    return Path(shutil.copytree(photos, tmp_path / "photos"))


@pytest.fixture
def options(source, dataset) -> IngestOptions:
    """The options that `dataset` was made with, of a source of one's own."""
    splits = {"train": 0.7, "eval": 0.3}
    return IngestOptions(source=str(source), out=str(dataset), splits=splits, shards=2, max_reject_ratio=0.2)


def rows_of(options: IngestOptions) -> dict[str, dict]:
    return {row["key"]: row for row in image_table.read(options.out).to_pylist()}


def rejects_of(options: IngestOptions) -> dict[str, str]:
    rows = schemas.read(os.path.join(options.out, "rejects.parquet")).to_pylist()
    return {row["key"]: row["reason"] for row in rows}


def sound(options: IngestOptions) -> bool:
    return verify(options.out, 2).problems == []


def test_new_images_come_into_new_shards_and_the_old_ones_keep_their_bytes(source, options):
    labels = manifest.load(options.out).labels
    old, old_shards = rows_of(options), sorted(shards_under(Path(options.out)).values())
    inodes = {path.stat().st_ino for path in Path(options.out).rglob("*.tfrecord")}
    for index in range(30):
        (source / "china" / f"new{index:02d}.jpg").write_bytes(jpeg(500 + index))
    (source / "zebra").mkdir()
    (source / "zebra" / "first.jpg").write_bytes(jpeg(900))
    recorder = Recorder()
    result = run(replace(options, append=True), recorder)
    assert recorder.counters()["images"] == 31  # the old ones are not looked at again
    assert sound(options)
    rows = rows_of(options)
    assert {key: rows[key] for key in old} == old
    assert len(rows) == len(old) + 31
    after = list(shards_under(Path(options.out)).values())
    assert [data for data in old_shards if data not in after] == []
    assert inodes <= {path.stat().st_ino for path in Path(options.out).rglob("*.tfrecord")}
    assert labels == ("china", "flower")
    assert result.labels == ("china", "flower", "zebra")
    assert (result.counts.found, result.counts.written) == (55, 55)
    assert sum(sum(info.classes.values()) for info in result.splits.values()) == 55
    for name, info in result.splits.items():
        count = len(info.shards)
        assert [shard.name for shard in info.shards] == [
            f"data-{index:05d}-of-{count:05d}.tfrecord" for index in range(count)
        ]
        assert info.records == sum(row["split"] == name for row in rows.values())
    assert find_record(options.out, "zebra/first.jpg")[1]["image/class/label"] == [2]
    assert find_record(options.out, "china/000.jpg")[1]["image/class/label"] == [0]
    assert result == manifest.load(options.out)
    assert sorted(path.name for path in Path(options.out).parent.iterdir()) == ["dataset", "photos"]


def test_channel_statistics_are_those_of_all_images(source, options, tmp_path):
    for index in range(12):
        (source / "flower" / f"new{index:02d}.jpg").write_bytes(jpeg(700 + index))
    appended = run(replace(options, append=True))
    # The same images in one go: other shards, the same splits, so the same pixels.
    whole = run(replace(options, out=str(tmp_path / "whole")))
    assert appended.channels.mean_rgb == pytest.approx(whole.channels.mean_rgb, rel=1e-6)
    assert appended.channels.std_rgb == pytest.approx(whole.channels.std_rgb, rel=1e-6)
    assert {name: info.classes for name, info in appended.splits.items()} == {
        name: info.classes for name, info in whole.splits.items()
    }


@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_a_copy_of_an_old_image_joins_its_split_or_is_dropped(source, options, policy):
    options = replace(options, duplicates=policy)
    split = rows_of(options)["china/000.jpg"]["split"]
    shutil.copy(source / "china" / "000.jpg", source / "china" / "zz-copy.jpg")
    result = run(replace(options, append=True))
    rows = rows_of(options)
    assert rows["china/000.jpg"]["cluster"] == rows["china/zz-copy.jpg"]["cluster"] != ""
    assert (result.counts.duplicate_clusters, result.counts.duplicate_images) == (1, 2)
    if policy == "keep":
        assert rows["china/zz-copy.jpg"]["split"] == split
        assert result.counts.written == 25
    else:
        assert rows["china/zz-copy.jpg"]["shard"] == -1
        assert (result.counts.written, result.counts.duplicates_dropped) == (24, 1)
    assert sound(options)


def test_an_addition_keeps_the_description_until_it_has_one_of_its_own(source, options):
    assert manifest.load(options.out).options["about"] == About().to_json()
    for number, title in enumerate(("First", "", "Third")):
        (source / "flower" / f"new{number}.jpg").write_bytes(jpeg(710 + number))
        run(replace(options, append=True, about=About(title=title)))
        assert manifest.load(options.out).options["about"]["title"] == (title or "First")
    lines: list[str] = []
    run(replace(options, append=True, about=About(title="Fourth")), report=lines.append)
    assert lines[1:] == ["the description was not changed, because it is stored only together with new images"]


def test_nothing_new_changes_nothing(options):
    before, lines = files_under(Path(options.out)), []
    run(replace(options, append=True), report=lines.append)
    assert files_under(Path(options.out)) == before
    assert lines == [f"nothing to add: {options.out} already lists every image of {options.source}"]


def test_killed_between_writing_and_publishing_the_old_dataset_stays_and_a_rerun_finishes(source, options):
    before = files_under(Path(options.out))
    (source / "china" / "new.jpg").write_bytes(jpeg(800))
    with pytest.raises(KeyboardInterrupt):
        run(replace(options, append=True), KilledAfterWriting())
    assert files_under(Path(options.out)) == before
    recorder = Recorder()
    run(replace(options, append=True), recorder)
    assert recorder.counters()["resumed_buckets"] == 1
    assert "china/new.jpg" in rows_of(options)
    assert sound(options)


def test_bad_new_images_are_rejects_and_too_many_change_nothing(source, options):
    before = files_under(Path(options.out))
    (source / "china" / "bad.jpg").write_bytes(b"text")
    with pytest.raises(TooManyRejects, match="^1 of 1 new images are bad"):
        run(replace(options, append=True))
    assert files_under(Path(options.out)) == before
    for index in range(9):
        (source / "china" / f"new{index}.jpg").write_bytes(jpeg(800 + index))
    result = run(replace(options, append=True))
    assert rejects_of(options) == {"china/bad.jpg": "not_an_image"}
    assert (result.counts.found, result.counts.written, result.counts.rejected) == (34, 33, 1)
    assert sound(options)


def test_rejects_are_tried_again_and_nothing_else_is(source, options):
    shutil.rmtree(options.out)
    (source / "china" / "bad.jpg").write_bytes(b"text")
    (source / "flower" / "worse.jpg").write_bytes(b"")
    first = run(options)
    assert set(rejects_of(options)) == {"china/bad.jpg", "flower/worse.jpg"}
    (source / "china" / "not asked for.jpg").write_bytes(jpeg(801))
    before, lines = files_under(Path(options.out)), []
    assert run(replace(options, retry_rejects=True), report=lines.append) == first
    assert lines[-1] == "nothing to add: every image was rejected; the dataset is unchanged"
    assert files_under(Path(options.out)) == before
    assert sorted(path.name for path in Path(options.out).parent.iterdir()) == ["dataset", "photos"]
    (source / "china" / "bad.jpg").write_bytes(jpeg(800))
    recorder = Recorder()
    result = run(replace(options, retry_rejects=True), recorder)
    counters = recorder.counters()
    assert (counters["images"], counters["rejects"]) == (1, 1)
    assert rejects_of(options) == {"flower/worse.jpg": "empty_file"}
    assert "china/bad.jpg" in rows_of(options)
    assert "china/not asked for.jpg" not in rows_of(options)
    assert (result.counts.found, result.counts.written, result.counts.rejected) == (26, 25, 1)
    assert sound(options)


@pytest.mark.parametrize("mode", ["append", "retry_rejects"])
def test_there_must_be_a_dataset(options, tmp_path, mode):
    message = f"holds no dataset to add to; leave --{mode.replace('_', '-')} out to make one"
    with pytest.raises(OptionError, match=message):
        run(replace(options, out=str(tmp_path / "none"), **{mode: True}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "was made with seed 0, not 1"),
        ({"splits": {"train": 1}}, "was made with splits "),
        ({"pixels": PixelOptions(policy="raw")}, r"was made with pixels\.policy 'copy', not 'raw'; omit it"),
    ],
)
def test_what_is_added_is_made_with_the_options_of_the_dataset(options, change, message):
    with pytest.raises(OptionError, match=message):
        run(replace(options, append=True, **change))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda shard: shard.write_bytes(shard.read_bytes()[:-9]), r"has \d+ bytes instead of \d+ as in dataset\.json"),
        (lambda shard: shard.unlink(), "is missing; write the dataset again, with --overwrite"),
    ],
    ids=["cut", "missing"],
)
def test_a_dataset_that_lost_a_shard_is_not_published_again(options, damage, message):
    damage(next(Path(options.out).glob("Split-train/*")))
    before = files_under(Path(options.out))
    with pytest.raises(CorruptDataset, match=message):
        run(replace(options, append=True))
    assert files_under(Path(options.out)) == before
