from __future__ import annotations

import contextlib
import logging

import pytest

from beam_jobs import ingest
from beam_jobs.common import system
from beam_jobs.errors import CorruptDataset, OptionError
from beam_jobs.options import IngestOptions
from pipeline.config import build
from pipeline.runners.local import _logging_to, _Progress, preflight, run
from pipeline.runs.history import Step
from pipeline.runs.root import check_free, copy_schema, images_dir
from tests.make_images import class_folders, flipped


@pytest.fixture
def photos(tmp_path):
    return class_folders(tmp_path / "photos", per_class=1)


def config(photos, root):
    return build({"root": str(root), "ingest": {"source": str(photos)}})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"columns": {"labels": "tags"}}, "^the images have any number of labels; a model needs one label per image"),
        ({"columns": {"label": "tags"}, "facts": "basic"}, "^facts is basic; statistics and normalisation need"),
    ],
)
def test_what_a_model_cannot_be_trained_on_is_refused_at_once(tmp_path, section, message):
    (tmp_path / "0.jpg").write_bytes(b"never looked at")
    (tmp_path / "table.csv").write_text("image,tags\n0.jpg,a")
    settings = {"root": str(tmp_path / "work"), "ingest": {"source": str(tmp_path / "table.csv"), **section}}
    with pytest.raises(OptionError, match=message):
        preflight(build(settings))
    assert not (tmp_path / "work").exists()


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore")
def test_a_record_that_beam_cannot_read_is_damage_of_the_dataset(tmp_path):
    photos, out = class_folders(tmp_path / "photos", per_class=8), tmp_path / "dataset"
    ingest.run(IngestOptions(source=str(photos), out=str(out), splits={"train": 1, "eval": 1}))
    shard = next((out / "Split-train").glob("*.tfrecord"))
    shard.write_bytes(flipped(shard.read_bytes(), 40))  # inside the first record
    settings = build({"root": str(tmp_path / "work"), "dataset": str(out)})
    with pytest.raises(
        CorruptDataset, match="dataset cannot be read: Not a valid .* mask; `feedline verify` says"
    ) as said:
        run(settings, lambda _: None)
    assert len(str(said.value)) < 1000  # Beam shows the whole record
    assert not (tmp_path / "work" / "serving").exists()


def test_a_root_that_cannot_be_written_is_named():
    with pytest.raises(OptionError, match="^root /proc/nowhere cannot be written: /proc cannot be .*; choose another"):
        check_free("/proc/nowhere")


@pytest.mark.parametrize("verbose", [False, True])
def test_log_lines_go_to_the_file_progress_to_the_user_and_logging_is_put_back(tmp_path, capfd, verbose):
    said = []
    (tmp_path / "data").write_bytes(bytes(2_000_000))
    before = logging.getLogger().handlers[:]
    watched = []

    @contextlib.contextmanager
    def watch(stage, total, read):
        watched.append(f"{stage} begins")
        (tmp_path / "data").read_bytes()
        assert read().note == "2.0 MB read"
        yield
        watched.append(f"{stage} ends")

    with _logging_to(str(tmp_path / "run.log"), _Progress(said.append, watch, verbose)):
        assert system.watch.get() is watch  # for the executors
        logging.getLogger("absl").info("Component Trainer is running.")
        logging.getLogger("tensorflow").info("noise")
        logging.getLogger("absl").info("Component Trainer is finished.")
        logging.getLogger("absl").info("Component Pusher is running.")
        logging.getLogger("absl").info("A cached execution 7 is used.")
        logging.getLogger("absl").info("Component Pusher is finished.")
        logging.getLogger().warning("warning   1 class folder holds no good image")
        logging.getLogger().warning("another warning")
        logging.getLogger("trainer.training.loop").warning("continuing at epoch 5 of 10, step 41 of 90, from work")
        logging.getLogger("trainer.run_fn").info("records  8 of 1 kB in 1 file")
        logging.getLogger("absl").info("Component Pusher is running.")
    assert watched == ["Trainer begins", "Trainer ends", *("Pusher begins", "Pusher ends") * 2]  # the last one failed
    assert system.watch.get() is system.no_watch
    assert [line.split() for line in said[:2]] == [["Trainer", "0.0", "s"], ["Pusher", "cached"]]
    plan = "records  8 of 1 kB in 1 file"
    continued = "continuing at epoch 5 of 10, step 41 of 90, from work"
    assert said[2:] == ["warning   1 class folder holds no good image", continued, *[plan] * verbose]
    assert all(line in (tmp_path / "run.log").read_text() for line in ("noise", plan))
    assert logging.getLogger().handlers == before
    assert capfd.readouterr().err == ""


@pytest.fixture
def inferred(tmp_path) -> dict[str, Step]:
    """The steps of a run that inferred a schema, however it went on."""
    (tmp_path / "artifact").mkdir()
    (tmp_path / "artifact" / "schema.pbtxt").write_text("inferred")
    outputs = {"schema": str(tmp_path / "artifact")}
    step = Step(component="InferredSchema", state="complete", seconds=1.0, outputs=outputs, properties={})
    return {"InferredSchema": step}


def test_an_inferred_schema_is_kept_under_its_name_and_never_over_a_file(tmp_path, photos, inferred):
    asked = build({"root": str(tmp_path), "ingest": {"source": str(photos)}, "schema": str(tmp_path / "mine.pbtxt")})
    assert copy_schema(asked, inferred) == str(tmp_path / "mine.pbtxt")
    assert (tmp_path / "mine.pbtxt").read_text() == "inferred"
    (tmp_path / "mine.pbtxt").write_text("reviewed meanwhile")
    assert copy_schema(asked, inferred) == str(tmp_path / "mine.pbtxt")
    assert (tmp_path / "mine.pbtxt").read_text() == "reviewed meanwhile"


def test_without_a_name_the_schema_goes_into_the_root_and_a_reviewed_one_nowhere(tmp_path, photos, inferred):
    assert copy_schema(config(photos, tmp_path), inferred) == str(tmp_path / "schema.inferred.pbtxt")
    assert copy_schema(config(photos, tmp_path), {}) == ""


def test_rejected_images_of_a_table_are_looked_for_beside_it(tmp_path, photos):
    (tmp_path / "table.csv").write_text("image,label\n0.jpg,a")
    assert images_dir(config(tmp_path / "table.csv", tmp_path / "work")) == str(tmp_path)
    assert images_dir(config(photos, tmp_path / "work")) == str(photos)
