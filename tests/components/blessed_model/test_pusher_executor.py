from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from google.protobuf import json_format
from tfx.proto import pusher_pb2
from tfx.types import standard_artifacts

from beam_jobs import storage
from components.blessed_model import PusherExecutor, publish_model, push_model
from tests.components.conftest import artifact
from trainer.training.checkpoint import DIVERGED_NAME

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def model(tmp_path) -> Path:
    """A `Model` artifact's directory, with an empty folder as SavedModels have."""
    serving = tmp_path / "model" / "Format-Serving"
    (serving / "assets").mkdir(parents=True)
    (serving / "variables").mkdir()
    (serving / "variables" / "variables.index").write_text("weights")
    (serving / "saved_model.pb").write_text("graph")
    return serving


@pytest.fixture
def base(tmp_path) -> Path:
    return tmp_path / "serving"


def content(directory: Path) -> dict[str, str]:
    return {str(p.relative_to(directory)): p.read_text() if p.is_file() else "" for p in directory.rglob("*")}


def execute(model: Path, base: Path, out: Path, blessed: int) -> standard_artifacts.PushedModel:
    trained = artifact(standard_artifacts.Model, model.parent)
    blessing = artifact(standard_artifacts.ModelBlessing, out / "blessing")
    pushed = artifact(standard_artifacts.PushedModel, out / "pushed")
    trained.set_string_custom_property("tfx_version", "1.16.0")
    blessing.set_int_custom_property("blessed", blessed)
    destination = pusher_pb2.PushDestination(filesystem={"base_directory": str(base)})
    PusherExecutor().Do(
        {"model": [trained], "model_blessing": [blessing]},
        {"pushed_model": [pushed]},
        {"push_destination": json_format.MessageToJson(destination)},
    )
    return pushed


def test_a_blessed_model_is_pushed_whole_and_the_artifact_says_where(model, base, tmp_path):
    pushed = execute(model, base, tmp_path, blessed=1)
    [version] = os.listdir(base)
    assert abs(int(version) - time.time()) < 60
    assert content(base / version) == content(tmp_path / "pushed") == content(model)
    assert pushed.get_int_custom_property("pushed") == 1
    assert pushed.get_string_custom_property("pushed_destination") == str(base / version)
    assert pushed.get_string_custom_property("pushed_version") == version


def test_a_model_that_is_not_blessed_is_not_pushed(model, base, tmp_path):
    pushed = execute(model, base, tmp_path, blessed=0)
    assert pushed.get_int_custom_property("pushed") == 0
    assert not base.exists()


def test_the_model_of_a_training_that_diverged_is_not_pushed(model, base, tmp_path):
    (model / "assets.extra").mkdir()
    (model / DIVERGED_NAME).write_text("loss is nan after step 7")
    pushed = execute(model, base, tmp_path / "pushed", blessed=1)
    assert pushed.get_int_custom_property("pushed") == 0
    assert not base.exists()


def test_the_same_model_is_pushed_once_and_another_becomes_a_newer_version(model, base):
    first = push_model(str(model), str(base))
    assert push_model(str(model), str(base)) == first
    assert os.listdir(base) == [first]
    (model / "saved_model.pb").write_text("a new graph")
    second = push_model(str(model), str(base))
    assert int(second) > int(first)
    (model / "saved_model.pb").write_text("graph")
    # What serves is the newest version, so going back to an earlier model takes a newer version too.
    assert int(push_model(str(model), str(base))) > int(second)


def test_a_clock_that_was_set_back_makes_no_older_version(model, base):
    (base / "9000000000").mkdir(parents=True)
    assert push_model(str(model), str(base)) == "9000000001"


def test_a_full_disk_adds_no_version_and_leaves_nothing(model, base, monkeypatch):
    copied = []

    def one_file_then_full(stream, out):
        copied.append(out)
        if len(copied) > 1:
            raise OSError(28, "No space left on device")
        return shutil_copy(stream, out)

    shutil_copy = shutil.copyfileobj
    monkeypatch.setattr(shutil, "copyfileobj", one_file_then_full)
    with pytest.raises(OSError, match="No space left"):
        push_model(str(model), str(base))
    assert len(copied) == 2
    assert os.listdir(base) == []


def test_the_rest_of_a_killed_push_is_no_version_and_is_written_over(model, base, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.5)
    storage.write_bytes(str(base / ".pushing-1700000000" / "stray"), b"half")
    assert push_model(str(model), str(base)) == "1700000000"
    assert os.listdir(base) == ["1700000000"]
    assert content(base / "1700000000") == content(model)


def test_a_damaged_version_is_replaced(model, base):
    storage.write_bytes(str(base / "1700000000" / "saved_model.pb"), b"gra")
    publish_model(str(model), str(base / "1700000000"))
    assert content(base / "1700000000") == content(model)
