from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs import ingest, storage
from beam_jobs.dataset import manifest, schemas
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import DiskError, FeedlineError, OptionError, SourceChanged, TooManyRejects
from beam_jobs.options import ImageLimits, IngestOptions, PixelOptions, TableColumns
from tests import image_table
from tests.beam_jobs import kill
from tests.beam_jobs.runs import KilledAfterWriting, Recorder, files_under, shards_under
from tests.make_images import class_folders, crop, encode, jpeg

FIXTURE = {"splits": {"train": 0.7, "eval": 0.3}, "shards": 2}  # what the fixture `dataset` was made with


@pytest.fixture
def options(photos, tmp_path) -> IngestOptions:
    return IngestOptions(source=str(photos), out=str(tmp_path / "out"), **FIXTURE)


def small(tmp_path: Path, **fields) -> IngestOptions:
    source = class_folders(tmp_path / "small", per_class=4)
    return IngestOptions(**{"source": str(source), "out": str(tmp_path / "out"), "splits": {"all": 1}, **fields})


def test_class_folders_become_a_sound_dataset_and_nothing_else(dataset, photos):
    loaded = manifest.load(str(dataset))
    assert loaded.labels == ("china", "flower")
    assert loaded.source == photos.name  # where it lay is no part of the dataset
    assert (loaded.counts.found, loaded.counts.written, loaded.counts.rejected) == (24, 24, 0)
    assert {name: len(info.shards) for name, info in loaded.splits.items()} == {"train": 2, "eval": 2}
    checked = verify(str(dataset))
    assert (checked.records, checked.problems) == (24, [])
    keys = image_table.read(dataset)["key"].to_pylist()
    assert sorted(keys) == sorted(str(path.relative_to(photos)) for path in photos.rglob("*.*g"))
    shards = [f"Split-{split}/data-0000{n}-of-00002.tfrecord" for split in ("eval", "train") for n in range(2)]
    parts = [f"images/part-{split}-0000{n}.parquet" for split in ("eval", "train") for n in range(2)]
    tables = ["image-class-label.labels.txt", *parts, "rejects.parquet"]
    assert list(files_under(dataset)) == [*shards, "dataset.json", "dataset_info.json", "features.json", *tables]
    assert sorted(path.name for path in dataset.iterdir() if path.is_dir()) == ["Split-eval", "Split-train", "images"]


@pytest.mark.parametrize("fields", [{"threads": 1}, {"threads": 4, "bucket_images": 5}])
def test_every_run_gives_the_same_bytes_whatever_the_cut_of_the_work(options, dataset, fields):
    ingest.run(replace(options, **fields))
    mine, fixture = files_under(Path(options.out)), files_under(dataset)
    assert mine == fixture


def test_a_copy_by_a_relative_name_in_another_time_zone_and_locale_gives_the_same_shards(
    options, dataset, photos, tmp_path
):
    moved = shutil.copytree(photos, tmp_path / "moved")
    for path in moved.rglob("*.*g"):
        os.utime(path, (1, 1))
    code = (
        "import sys; from beam_jobs import ingest; from beam_jobs.options import IngestOptions;"
        f"ingest.run(IngestOptions(source='moved', out={options.out!r}, **{FIXTURE!r}))"
    )
    strange = {"TZ": "Pacific/Apia", "LC_ALL": "C", "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, **strange}, check=True)
    assert shards_under(Path(options.out)) == shards_under(dataset)
    assert manifest.load(options.out).digest == manifest.load(str(dataset)).digest


def test_another_runner_gives_the_same_bytes(options, dataset):
    def two_workers() -> beam.Pipeline:
        flags = ["--runner=FnApiRunner", "--direct_running_mode=multi_threading", "--direct_num_workers=2"]
        return beam.Pipeline(options=PipelineOptions(flags))

    ingest.run(replace(options, bucket_images=5), two_workers)
    assert files_under(Path(options.out)) == files_under(dataset)


def test_the_order_of_the_listing_does_not_show(tmp_path):
    photos = class_folders(tmp_path / "photos", per_class=8)
    for number in range(4):  # changed ones, bad ones and equal ones among them
        (photos / "china" / f"{number}.webp").write_bytes(encode(crop(number), "WEBP"))
    (photos / "china" / "bad.jpg").write_bytes(b"bad")
    (photos / "flower" / "copy.jpg").write_bytes((photos / "china" / "000.jpg").read_bytes())
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name},{path.stem}" for path in photos.rglob("*.*")]
    # Listed twice with another label, one has to give way; it must not be the one that happens to come second.
    rows += [f"photos/china/{number}.webp,flower,again" for number in range(4)]
    columns = TableColumns(image="file", label="kind", extra=("note",))
    found = []
    for turn in range(2):
        random.Random(turn).shuffle(rows)
        (tmp_path / "table.csv").write_text("\n".join(["file,kind,note", *rows, ""]))
        out = tmp_path / f"out{turn}"
        ingest.run(
            IngestOptions(
                source=str(tmp_path / "table.csv"),
                out=str(out),
                columns=columns,
                bucket_images=3,
                max_reject_ratio=0.3,
                **FIXTURE,
            )
        )
        found.append(files_under(out))
    assert found[0] == found[1]
    assert len(rows) == 26


def test_stages_are_reported_in_a_line_each(tmp_path):
    lines: list[str] = []
    ingest.run(small(tmp_path), report=lines.append)
    assert [re.sub(r"[\d.]+ [kM]B|in [\d.]+ s\b|\([\d,]+ images/s\)", "N", line) for line in lines] == [
        "scanned   8 images, N N",
        "examined  8 good, 0 rejected N N",
        "wrote     8 records in 1 shard N N",
    ]


def with_bad_files(tmp_path: Path, **fields) -> IngestOptions:
    options = small(tmp_path, **fields)
    (Path(options.source) / "china" / "empty.jpg").write_bytes(b"")
    (Path(options.source) / "flower" / "notes.txt").write_bytes(b"a note")
    return options


def test_hidden_names_are_counted_and_named_beside_what_was_found(tmp_path):
    options = small(tmp_path)
    found = ingest.run(options).counts.found
    for name in ("china/.x.png", "china/.t/1.jpg", "Thumbs.db", ".net/1.jpg"):
        (Path(options.source) / name).parent.mkdir(exist_ok=True)
        (Path(options.source) / name).write_bytes(b"hidden")
    result = ingest.run(replace(options, overwrite=True))
    names = (".net/", "china/.t/", "Thumbs.db", "china/.x.png")
    assert (result.counts.found, result.remarks.hidden, result.remarks.hidden_names) == (found, 4, names)


def test_too_many_rejects_publish_nothing_and_say_why(tmp_path):
    options = with_bad_files(tmp_path, max_reject_ratio=0.19)
    with pytest.raises(TooManyRejects) as caught:
        ingest.run(options)
    assert str(caught.value).startswith(
        "2 of 10 images are bad (20.0%), max_reject_ratio is 19.0%: 1 empty_file, 1 not_an_image. "
        "First: china/empty.jpg: empty_file (the file has 0 bytes); flower/notes.txt: not_an_image (it starts with "
    )
    assert f" are listed in {options.out}/_work/rejects.parquet. " in str(caught.value)
    assert len(schemas.read(f"{options.out}/_work/rejects.parquet")) == 2
    assert not manifest.is_published(options.out)
    # The ratio is not part of what was examined, so raising it goes on from there.
    recorder = Recorder()
    counts = ingest.run(replace(options, max_reject_ratio=0.2), recorder).counts
    assert recorder.counters()["resumed_buckets"] == 1
    assert (counts.found, counts.written, counts.rejects) == (10, 8, {"empty_file": 1, "not_an_image": 1})
    rows = schemas.read(f"{options.out}/rejects.parquet").to_pylist()
    assert [(row["key"], row["stage"], row["reason"], row["bytes"]) for row in rows] == [
        ("china/empty.jpg", "examine", "empty_file", 0),
        ("flower/notes.txt", "examine", "not_an_image", 6),
    ]


def test_nothing_but_rejects_is_too_many_whatever_the_ratio(tmp_path):
    (tmp_path / "bad" / "cat").mkdir(parents=True)
    (tmp_path / "bad" / "cat" / "a.jpg").write_bytes(b"")
    for ratio in (1, 0.5):
        with pytest.raises(TooManyRejects, match=r"^1 of 1 images are bad \(100.0%\), max_reject_ratio is ") as caught:
            ingest.run(small(tmp_path, source=str(tmp_path / "bad"), max_reject_ratio=ratio))
        assert str(caught.value).endswith(
            "rejects.parquet. Repair or replace them: a dataset needs at least one good image"
        )


def test_an_image_that_grows_over_the_limit_when_it_is_made_plain_is_written(tmp_path):
    data = encode(crop(3), "WEBP", quality=50)  # the limit is one of files as they come
    (tmp_path / "source" / "cat").mkdir(parents=True)
    (tmp_path / "source" / "cat" / "a.webp").write_bytes(data)
    options = small(tmp_path, source=str(tmp_path / "source"), limits=ImageLimits(max_bytes=len(data)))
    assert ingest.run(options).counts.written == 1
    (row,) = image_table.read(options.out).to_pylist()
    assert row["bytes"] > len(data)
    assert verify(options.out).problems == []


def test_what_was_examined_is_kept_when_the_runner_fails(options, dataset):
    def fail():
        raise RuntimeError("a long story\n\n  no more workers  \n")

    options = replace(options, bucket_images=10)
    message = "^writing failed: no more workers; finished work is kept, run the same command again$"
    with pytest.raises(FeedlineError, match=message):
        ingest.run(options, Recorder(fail))
    next(Path(options.out, "_work", "examined").glob("done-*")).unlink()
    recorder = Recorder()
    ingest.run(options, recorder)
    assert {name: recorder.counters()[name] for name in ("resumed_buckets", "images", "written_shards")} == {
        "resumed_buckets": 2,
        "images": 24,
        "written_shards": 4,
    }
    assert shards_under(Path(options.out)) == shards_under(dataset)


def test_what_was_examined_for_other_options_is_not_taken_up(tmp_path):
    change = {"pixels": PixelOptions(policy="raw", side_px=16)}
    options = small(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        ingest.run(options, KilledAfterWriting())
    recorder = Recorder()
    ingest.run(replace(options, **change), recorder)
    assert (recorder.counters()["resumed_buckets"], recorder.counters()["resumed_shards"]) == (0, 0)
    ingest.run(replace(options, out=f"{options.out}2", **change))
    assert files_under(Path(options.out)) == files_under(Path(f"{options.out}2"))


def test_nothing_of_an_abandoned_run_with_other_options_is_published(options, dataset):
    with pytest.raises(KeyboardInterrupt):
        ingest.run(replace(options, shards=3, splits={"train": 0.7, "test": 0.3}), KilledAfterWriting())
    ingest.run(options)
    assert files_under(Path(options.out)) == files_under(dataset)


def edit_unseen(path: Path) -> None:
    """Puts another image into a file and leaves its size and time as they were."""
    status = path.stat()
    path.write_bytes(jpeg(99, quality=50).ljust(status.st_size, b"\0"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


@pytest.mark.parametrize(
    ("change", "detail", "left"),
    [(edit_unseen, "the file differs from the examined file", 8), (Path.unlink, "No such file or directory", 7)],
)
def test_an_image_that_changes_under_way_stops_the_ingest(tmp_path, change, detail, left):
    options = small(tmp_path)
    victim = Path(options.source) / "china" / "001.jpg"
    message = rf"^china/001.jpg changed while it was being ingested \({detail}\); run the ingest again$"
    with pytest.raises(SourceChanged, match=message):
        ingest.run(options, Recorder(lambda: change(victim)))
    assert not manifest.is_published(options.out)
    assert list(Path(options.out).rglob("*.tfrecord")) == []
    assert ingest.run(options).counts.written == left  # nothing of the image that was is taken up
    assert verify(options.out).problems == []


def test_an_output_that_somebody_removes_is_named_and_made_anew_by_the_next_run(tmp_path):
    options = small(tmp_path)
    with pytest.raises(
        DiskError, match=r"/out: No such file or directory while writing \(.*/out/_work/(?:plan|units)/"
    ):
        ingest.run(options, Recorder(lambda: shutil.rmtree(options.out)))
    assert not manifest.is_published(options.out)
    assert ingest.run(options).counts.written == 8
    assert verify(options.out).problems == []


def test_a_published_output_is_refused(dataset, options):
    before = files_under(dataset)
    with pytest.raises(OptionError, match=rf"^{dataset} already holds a dataset; choose another --out, or replace it"):
        ingest.run(replace(options, out=str(dataset)))
    assert files_under(dataset) == before


@pytest.mark.parametrize("begun", ["", "_work", f"_work/.{0:032x}.tmp"], ids=["output", "work", "mark"])
def test_an_ingest_goes_on_that_was_ended_before_its_work_directory_was_marked(options, begun):
    work = Path(options.out, "_work")
    (work if begun else work.parent).mkdir(parents=True)
    if begun.endswith(".tmp"):
        Path(options.out, begun).write_bytes(b"")
    assert ingest.run(options).counts.written
    assert not work.exists()


def test_no_image_and_no_shard_is_read_outside_of_a_job(options, monkeypatch):
    real, opened = ingest.run_job, {True: [], False: []}
    now = opened[False]

    def run_job(*arguments):
        nonlocal now
        now = opened[True]
        real(*arguments)
        now = opened[False]

    monkeypatch.setattr(ingest, "run_job", run_job)
    kill.on_each_moment((options.source, options.out), lambda path: now.append(Path(path).suffix))
    ingest.run(options)
    contents = {".jpg", ".tfrecord"}
    assert contents <= set(opened[True])
    assert not contents.intersection(opened[False])


def test_the_work_directory_says_which_stage_runs(options, monkeypatch):
    real, said = storage.write_bytes, []

    def write_bytes(path: str, data: bytes, *arguments, **named) -> None:
        if path == f"{options.out}/_work/progress.json":
            said.append(json.loads(data))
        real(path, data, *arguments, **named)

    monkeypatch.setattr(storage, "write_bytes", write_bytes)
    ingest.run(options)
    stages = [stage for stage, _ in itertools.groupby(said, lambda values: values["stage"])]
    assert stages == ["scanning", "examining", "planning", "writing", "publishing"]
    ends = {values["stage"]: (values["done"], values["of"]) for values in said}
    assert ends == {
        "scanning": (None, 0),
        "planning": (None, 24),
        "publishing": (None, 24),
        **dict.fromkeys(("examining", "writing"), (24, 24)),
    }


def test_a_place_that_cannot_be_written_is_named(options):
    with pytest.raises(OptionError, match="^/proc/nowhere/out cannot be written: "):
        ingest.run(replace(options, out="/proc/nowhere/out"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "/out is a file; --out must be a new or empty directory$"),
        ("thesis.txt", "/out holds 'thesis.txt' and is not an unfinished ingest; choose another"),
        ("_work/thesis.txt", "/out is not empty and is not an unfinished ingest"),
    ],
)
def test_an_output_that_holds_something_else_is_refused_and_left_alone(options, name, message):
    mine = Path(options.out, name)
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(OptionError, match=message):
        ingest.run(options)
    assert mine.read_text() == "mine"
