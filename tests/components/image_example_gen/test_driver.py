from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
from tfx.orchestration import metadata
from tfx.orchestration.portable import data_types
from tfx.types import standard_artifacts

from beam_jobs.dataset import manifest
from beam_jobs.errors import CorruptDataset, SourceError
from beam_jobs.options import IngestOptions
from components.image_example_gen.driver import Driver
from tests.beam_jobs.object_store import SCHEME


@pytest.fixture
def source(photos: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(photos, tmp_path / "photos"))


def run_driver(properties: dict, tmp_path: Path):
    execution = data_types.ExecutionInfo(
        exec_properties=properties, output_dict={"examples": [standard_artifacts.Examples()]}
    )
    connection = metadata.sqlite_metadata_connection_config(str(tmp_path / "metadata.sqlite"))
    with metadata.Metadata(connection) as handle:
        output = Driver(handle).run(execution)
    examples = standard_artifacts.Examples()
    examples.set_mlmd_artifact(output.output_artifacts["examples"].artifacts[0])
    return output.exec_properties, examples


def drive(source: Path | str, tmp_path: Path, **properties):
    options = IngestOptions(source=str(source), out="")
    given = {"options": json.dumps(options.to_json()), "producer": "v1", **properties}
    return run_driver(given, tmp_path)[0]


def adopt(dataset: Path | str, tmp_path: Path, **properties):
    return run_driver({"dataset": str(dataset), "producer": "", **properties}, tmp_path)


def fingerprint(source: Path, tmp_path: Path) -> str:
    return drive(source, tmp_path)["input_fingerprint"].string_value


def test_the_fingerprint_joins_the_other_properties(source, tmp_path):
    found = drive(source, tmp_path, input_fingerprint=None)
    assert found.keys() == {"options", "producer", "input_fingerprint", "span"}
    assert found["producer"].string_value == "v1"
    assert found["span"].int_value == 0
    assert json.loads(found["options"].string_value)["source"] == str(source)
    assert len(found["input_fingerprint"].string_value) == 64


def test_a_stale_fingerprint_is_replaced(source, tmp_path):
    found = drive(source, tmp_path, input_fingerprint="old")
    assert found["input_fingerprint"].string_value == fingerprint(source, tmp_path)


def test_touching_a_file_changes_nothing(source, tmp_path):
    before = fingerprint(source, tmp_path)
    os.utime(source / "china" / "000.jpg", (1, 1))
    assert fingerprint(source, tmp_path) == before


def test_an_image_that_moves_to_another_class_changes_the_fingerprint(source, tmp_path):
    before = fingerprint(source, tmp_path)
    shutil.move(source / "china" / "000.jpg", source / "flower" / "new.jpg")
    moved = fingerprint(source, tmp_path)
    shutil.move(source / "flower" / "new.jpg", source / "china" / "000.jpg")
    assert moved != before
    assert fingerprint(source, tmp_path) == before


def test_an_edit_that_keeps_size_and_time_changes_the_fingerprint(source, tmp_path):
    before = fingerprint(source, tmp_path)
    path = source / "china" / "000.jpg"
    status, data = path.stat(), bytearray(path.read_bytes())
    data[-10] ^= 0xFF
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert fingerprint(source, tmp_path) != before


def test_a_source_that_is_not_there_stops_the_pipeline_by_name(tmp_path):
    with pytest.raises(SourceError, match="absent"):
        drive(tmp_path / "absent", tmp_path)


def test_the_newest_span_and_version_take_the_place_of_the_pattern(photos, tmp_path):
    for name in ("1/v7", "02/v1", "02/v10"):
        shutil.copytree(photos, tmp_path / "photos" / name)
    options = IngestOptions(source=f"{tmp_path}/photos/{{SPAN}}/v{{VERSION}}", out="")
    given = {"options": json.dumps(options.to_json()), "producer": ""}
    newest, examples = run_driver(given, tmp_path)
    assert json.loads(newest["options"].string_value)["source"] == f"{tmp_path}/photos/02/v10"
    assert (newest["span"].int_value, newest["version"].int_value) == (2, 10)
    assert (examples.span, examples.version) == (2, 10)
    assert not examples.is_external
    assert run_driver({**given, "span": 2, "version": 10}, tmp_path)[0] == newest  # asked for or found: one cache key
    older, examples = run_driver({**given, "span": 1}, tmp_path)
    assert json.loads(older["options"].string_value)["source"] == f"{tmp_path}/photos/1/v7"
    assert (examples.span, examples.version) == (1, 7)


def test_a_span_that_is_not_there_stops_the_pipeline_by_name(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos" / "1")
    with pytest.raises(SourceError, match=r"photos/\{SPAN\} has no span 3; it has 1"):
        drive(f"{tmp_path}/photos/{{SPAN}}", tmp_path, span=3)


def test_an_adopted_dataset_is_the_artifact_and_belongs_to_somebody_else(dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    properties, examples = adopt("dataset", tmp_path)
    made = manifest.load(str(dataset))
    assert examples.uri == properties["dataset"].string_value == str(dataset)
    assert examples.is_external
    assert (examples.span, examples.version) == (0, 0)
    assert properties["producer"].string_value.startswith(f"feedline {made.producer['feedline']}, tensorflow ")
    assert properties["input_fingerprint"].string_value == made.to_json()["checksum"]


def test_an_adopted_dataset_can_be_a_span(dataset, tmp_path):
    (tmp_path / "sets").mkdir()
    dataset.rename(tmp_path / "sets" / "07")
    _, examples = adopt(f"{tmp_path}/sets/{{SPAN}}", tmp_path)
    assert examples.uri == f"{tmp_path}/sets/07"
    assert examples.span == 7


def test_a_touched_dataset_is_the_same_and_other_rejects_make_it_another(dataset, tmp_path):
    before, _ = adopt(dataset, tmp_path)
    for path in dataset.rglob("*"):
        os.utime(path, (1, 1))
    assert adopt(dataset, tmp_path)[0] == before
    made = manifest.load(str(dataset))
    counts = dataclasses.replace(made.counts, found=made.counts.found + 1, rejects={"not_an_image": 1})
    manifest.write(dataclasses.replace(made, counts=counts), str(dataset))
    assert adopt(dataset, tmp_path)[0]["input_fingerprint"] != before["input_fingerprint"]


def remove_manifest(dataset: Path) -> None:
    (dataset / "dataset.json").unlink()


def cut_manifest(dataset: Path) -> None:
    (dataset / "dataset.json").write_text("{")


def remove_shard(dataset: Path) -> None:
    next(dataset.glob("Split-eval/*-00001-of-*")).unlink()


def cut_shard(dataset: Path) -> None:
    path = next(dataset.glob("Split-train/*-00000-of-*"))
    path.write_bytes(path.read_bytes()[:-1])


def add_a_file(dataset: Path) -> None:
    (dataset / "Split-train" / "more.tfrecord").write_bytes(b"")


def remove_split(dataset: Path) -> None:
    shutil.rmtree(dataset / "Split-eval")


def remove_table(dataset: Path) -> None:
    (dataset / "images.parquet").unlink()


@pytest.mark.parametrize("scheme", ["", f"{SCHEME}://"], ids=["local", "remote"])
@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (remove_manifest, SourceError, "dataset is not a dataset: it has no dataset.json"),
        (cut_manifest, CorruptDataset, "dataset.json cannot be used"),
        (remove_shard, CorruptDataset, "Split-eval/.*-00001-of-00002.* is missing"),
        (cut_shard, CorruptDataset, r"Split-train/.*-00000-of-00002.* has \d+ bytes, \d+ were written"),
        (add_a_file, CorruptDataset, "Split-train/more.tfrecord is no shard of the dataset"),
        (remove_split, CorruptDataset, "Split-eval/.*-00000-of-00002.* is missing"),
        (remove_table, CorruptDataset, "images.parquet is missing"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_no_whole_dataset_is_not_adopted(dataset, tmp_path, damage, error, message, scheme):
    adopt(f"{scheme}{dataset}", tmp_path)
    damage(dataset)
    with pytest.raises(error, match=message) as caught:
        adopt(f"{scheme}{dataset}", tmp_path)
    assert "\n" not in str(caught.value)
