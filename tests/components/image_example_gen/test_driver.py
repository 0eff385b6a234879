from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tfx.orchestration import metadata
from tfx.orchestration.portable import data_types

from beam_jobs.errors import SourceError
from beam_jobs.options import IngestOptions
from components.image_example_gen.driver import Driver


@pytest.fixture
def source(photos: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(photos, tmp_path / "photos"))


def drive(source: Path, tmp_path: Path, **properties):
    options = IngestOptions(source=str(source), out="")
    execution = data_types.ExecutionInfo(
        exec_properties={"options": json.dumps(options.to_json()), "producer": "v1", **properties}
    )
    connection = metadata.sqlite_metadata_connection_config(str(tmp_path / "metadata.sqlite"))
    with metadata.Metadata(connection) as handle:
        return Driver(handle).run(execution).exec_properties


def fingerprint(source: Path, tmp_path: Path) -> str:
    return drive(source, tmp_path)["input_fingerprint"].string_value


def test_the_fingerprint_joins_the_other_properties(source, tmp_path):
    found = drive(source, tmp_path, input_fingerprint=None)
    assert found.keys() == {"options", "producer", "input_fingerprint"}
    assert found["producer"].string_value == "v1"
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
