from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tfx.orchestration import metadata
from tfx.orchestration.portable import data_types
from tfx.types import standard_artifacts

from beam_jobs.dataset import manifest
from beam_jobs.errors import CorruptDataset, SourceError
from beam_jobs.options import IngestOptions
from components.image_example_gen.component import Driver
from tests.beam_jobs.object_store import SCHEME


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


def test_the_fingerprint_joins_the_other_properties_and_replaces_a_stale_one(photos, tmp_path):
    found = drive(photos, tmp_path, input_fingerprint=None)
    assert found.keys() == {"options", "producer", "input_fingerprint", "span"}
    assert found["producer"].string_value == "v1"
    assert found["span"].int_value == 0
    assert json.loads(found["options"].string_value)["source"] == str(photos)
    assert len(found["input_fingerprint"].string_value) == 64
    assert drive(photos, tmp_path, input_fingerprint="old")["input_fingerprint"] == found["input_fingerprint"]


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


def remove_table(dataset: Path) -> None:
    (dataset / "images" / "part-train-00001.parquet").unlink()


@pytest.mark.parametrize(
    ("damage", "error", "message", "scheme"),
    [
        (remove_manifest, SourceError, "dataset is not a dataset: it has no dataset.json", ""),
        (cut_manifest, CorruptDataset, "dataset.json cannot be used", ""),
        (cut_shard, CorruptDataset, r"Split-train/.*-00000-of-00002.* has \d+ bytes, \d+ were written", ""),
        (add_a_file, CorruptDataset, "Split-train/more.tfrecord is no shard of the dataset", ""),
        (remove_shard, CorruptDataset, "Split-eval/.*-00001-of-00002.* is missing", f"{SCHEME}://"),
        (remove_table, CorruptDataset, "images/part-train-00001.parquet is missing", ""),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_no_whole_dataset_is_not_adopted(dataset, tmp_path, damage, error, message, scheme):
    adopt(f"{scheme}{dataset}", tmp_path)
    damage(dataset)
    with pytest.raises(error, match=message) as caught:
        adopt(f"{scheme}{dataset}", tmp_path)
    assert "\n" not in str(caught.value)
