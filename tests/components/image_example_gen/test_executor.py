from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tfx.dsl.components.base import base_beam_executor
from tfx.types import artifact_utils, standard_artifacts

from beam_jobs.common import system
from beam_jobs.dataset import manifest, schemas
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import OptionError, SourceChanged, TooManyRejects
from beam_jobs.options import IngestOptions
from beam_jobs.sources import containers
from beam_jobs.stages import resume, work_dir
from components.image_example_gen.component import Executor
from tests.beam_jobs.make_archives import make_tar
from tests.components.conftest import BEAM_ARGS
from tests.make_images import jpeg


def do(source: Path | str, out: Path, **values) -> standard_artifacts.Examples:
    given = {"splits": {"train": 0.7, "eval": 0.3}, "shards": 2, **values}
    options = IngestOptions(source=str(source), out="elsewhere", **given)
    return execute(out, options=json.dumps(options.to_json()), input_fingerprint="f00")


def execute(out: Path, beam_args: Sequence[str] = BEAM_ARGS, **properties) -> standard_artifacts.Examples:
    examples = standard_artifacts.Examples()
    examples.uri = str(out / "examples")
    context = base_beam_executor.BaseBeamExecutor.Context(
        beam_pipeline_args=list(beam_args), tmp_dir=str(out / "tmp"), unique_id="1"
    )
    Executor(context).Do({}, {"examples": [examples]}, {"producer": "", **properties})
    return examples


def test_the_artifact_becomes_a_sound_dataset_named_by_its_content(photos, dataset, tmp_path):
    examples = do(photos, tmp_path)
    made = manifest.load(examples.uri)
    assert made.digest == manifest.load(str(dataset)).digest  # as the ingest makes it without TFX
    assert verify(examples.uri).problems == []
    assert examples.get_string_custom_property("dataset_digest") == made.digest
    assert examples.get_string_custom_property("input_fingerprint") == "f00"
    assert not (tmp_path / "elsewhere").exists()
    assert not Path("elsewhere").exists()


def test_much_that_every_worker_would_unpack_is_refused_by_the_beam_arguments(tmp_path, monkeypatch):
    """The runner decides, which TFX makes of the arguments; the job server is not asked."""
    archive = make_tar(tmp_path / "a.tar.gz", {"cat/a.jpg": jpeg(1), "dog/b.jpg": jpeg(2)}, "w:gz")
    monkeypatch.setattr(containers, "MAX_COMPRESSED_BYTES", 0)
    options = json.dumps(IngestOptions(source=str(archive), out="elsewhere", splits={"train": 1.0}).to_json())
    for runner in ("PortableRunner", "FlinkRunner"):
        with pytest.raises(OptionError, match=r"a\.tar\.gz is compressed, .* decompress them first"):
            execute(tmp_path / runner, [f"--runner={runner}", "--job_endpoint=localhost:1"], options=options)
    for runner in ("FnApiRunner", "DirectRunner"):
        examples = execute(tmp_path / runner, [f"--runner={runner}"], options=options)
        assert manifest.load(examples.uri).counts.written == 2


def test_splits_keep_the_order_of_the_options(photos, tmp_path):
    names = ["zoo", "alpha", "mid"]
    examples = do(photos, tmp_path, splits=dict.fromkeys(names, 1.0))
    assert artifact_utils.decode_split_names(examples.split_names) == names
    assert list(manifest.load(examples.uri).splits) == names
    assert sorted(path.name for path in Path(examples.uri).glob("Split-*")) == sorted(f"Split-{n}" for n in names)


def test_a_class_without_images_is_a_warning_in_the_log(photos, tmp_path, caplog):
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "bare").mkdir()
    with caplog.at_level(logging.INFO):
        do(tmp_path / "photos", tmp_path)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "warning   1 class folder holds no good image, so the dataset has no such class: bare" in said
    assert any(record.levelno == logging.INFO and "examined" in record.getMessage() for record in caplog.records)


def test_a_command_watches_the_stages_of_the_ingest(photos, tmp_path):
    seen = []

    @contextlib.contextmanager
    def watch(stage, total, read):
        first = read()
        yield
        seen.append((stage, total.images, first.images, first.note, read().images))

    token = system.watch.set(watch)
    try:
        images = manifest.load(do(photos, tmp_path).uri).counts.written
    finally:
        system.watch.reset(token)
    assert seen == [("examining", images, 0, "starting decoders", images), ("writing", images, 0, "starting", images)]


def test_what_a_failed_attempt_examined_is_taken_up_by_the_next_one(photos, tmp_path):
    source = Path(shutil.copytree(photos, tmp_path / "source"))
    (source / "china" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(TooManyRejects, match=r"All bad images are listed in .*/\.work-\w+-f00/rejects\.parquet"):
        do(source, tmp_path / "attempts", max_reject_ratio=0.0)
    # TFX would remove the directory of the attempt now; the work beside it stays, facts of good images included.
    (work,) = (tmp_path / "attempts").glob(".work-*")
    (facts,) = (work / "examined").glob("facts-*.parquet")
    rows = schemas.read(str(facts)).to_pylist()
    for row in rows:
        row["mean_rgb"] = [1.0, 2.0, 3.0]  # a mark that only taking up the file can carry on
    checksum = schemas.write(str(facts), pa.Table.from_pylist(rows, schemas.EXAMINED))
    (marker,) = (work / "examined").glob("done-*.json")
    values = resume.read_checked(str(marker))
    files = {**values["files"], facts.name: checksum}
    resume.Attempt(str(marker)).seal({**values, "files": files}, lambda: None)
    (tmp_path / "attempts" / ".work-older").mkdir()
    examples = do(source, tmp_path / "attempts", max_reject_ratio=0.1)
    assert manifest.load(examples.uri).channels.mean_rgb == (1.0, 2.0, 3.0)
    assert not list((tmp_path / "attempts").glob(".work-*"))


def test_runs_that_share_a_work_directory_wait_for_each_other(photos, tmp_path):
    """Those of a service, of which each writes into a directory of its own."""
    shared = tmp_path / "shared"
    options = IngestOptions(source=str(photos), out="", splits={"train": 0.7, "eval": 0.3}, shards=2)
    given = {"options": json.dumps(options.to_json()), "input_fingerprint": "f00", "work_dir": str(shared)}
    other = shared / ".work-other"
    other.mkdir(parents=True)
    work = shared / f".work-{dataclasses.replace(options, out=f'{tmp_path}/1/examples').digest()[:16]}-f00"
    with work_dir.exclusive(str(work)), pytest.raises(OptionError, match=f"^{work} is in use by another ingest"):
        execute(tmp_path / "1", **given)
    execute(tmp_path / "2", **given)
    assert [path.name for path in shared.iterdir()] == [other.name], "another ingest may be at work there"


def test_where_no_driver_runs_the_executor_finds_the_span(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos" / "3")
    options = json.dumps(IngestOptions(source=f"{tmp_path}/photos/{{SPAN}}", out="").to_json())
    examples = execute(tmp_path, options=options)
    assert manifest.load(examples.uri).source == "3"
    assert examples.span == 3


def test_a_dataset_that_changes_after_the_driver_looked_is_not_adopted(dataset, tmp_path):
    with pytest.raises(SourceChanged, match=r"another dataset was published in .*/dataset just now; run"):
        execute(tmp_path, dataset=str(dataset), input_fingerprint="f00")
