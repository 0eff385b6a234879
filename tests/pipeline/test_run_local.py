from __future__ import annotations

import logging

import pytest

from beam_jobs.errors import OptionError, SourceError
from pipeline.config import build
from pipeline.run_local import _logging_to, _make_root, preflight
from tests.make_images import class_folders


@pytest.fixture
def photos(tmp_path):
    return class_folders(tmp_path / "photos", per_class=1)


def config(photos, root):
    return build({"root": str(root), "ingest": {"source": str(photos)}})


def test_a_root_inside_the_images_is_refused_and_not_made(photos):
    with pytest.raises(OptionError, match="photos/work lies inside .*photos, which a run must not change"):
        preflight(config(photos, photos / "work"))
    assert not (photos / "work").exists()


def test_a_source_that_is_not_there_is_refused_first(tmp_path):
    with pytest.raises(SourceError, match="nothing does not exist"):
        preflight(config(tmp_path / "nothing", tmp_path / "work"))


@pytest.mark.parametrize(
    ("ingest", "message"),
    [
        (
            {"columns": {"labels": "tags"}},
            "^the images have any number of labels; a model is trained on one label each",
        ),
        ({"columns": {"label": ""}}, "^the images have no labels; a model is trained on one label each"),
        ({"columns": {"label": "tags"}, "facts": "basic"}, "^facts is basic; statistics and normalisation need"),
    ],
)
def test_what_a_model_cannot_be_trained_on_is_refused_at_once(tmp_path, ingest, message):
    (tmp_path / "0.jpg").write_bytes(b"never looked at")
    (tmp_path / "table.csv").write_text("image,tags\n0.jpg,a")
    settings = {"root": str(tmp_path / "work"), "ingest": {"source": str(tmp_path / "table.csv"), **ingest}}
    with pytest.raises(OptionError, match=message):
        preflight(build(settings))
    assert not (tmp_path / "work").exists()


def test_a_root_that_cannot_be_made_is_named():
    with pytest.raises(OptionError, match="^root /proc/nowhere cannot be made: "):
        _make_root("/proc/nowhere")


def test_log_lines_go_to_the_file_progress_to_the_user_and_logging_is_put_back(tmp_path, capfd):
    said = []
    before = logging.getLogger().handlers[:]
    with _logging_to(str(tmp_path / "run.log"), said.append):
        logging.getLogger("absl").info("Component Trainer is running.")
        logging.getLogger("tensorflow").info("noise")
        logging.getLogger("absl").info("Component Trainer is finished.")
        logging.getLogger("absl").info("Component Pusher is running.")
        logging.getLogger("absl").info("A cached execution 7 is used.")
        logging.getLogger("absl").info("Component Pusher is finished.")
    assert [line.split() for line in said] == [["Trainer", "0.0", "s"], ["Pusher", "cached"]]
    assert "noise" in (tmp_path / "run.log").read_text()
    assert logging.getLogger().handlers == before
    assert capfd.readouterr().err == ""
