"""What earlier releases left behind is opened, continued or made again by this one; see the package."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as pb

from beam_jobs import ingest, verify_dataset
from beam_jobs.dataset import manifest
from pipeline.cli import execute
from pipeline.runs.history import newest_executions, newest_run, open_store
from tests import image_table
from tests.beam_jobs.runs import Recorder
from tests.command import python
from tests.golden import make
from trainer import InputOptions, make_dataset
from trainer.training.checkpoint import Checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

HERE = Path(__file__).parent
RELEASES = sorted(path.parent.name for path in HERE.glob("*/about.json"))
# What shapes the pixels that resize and raw store.
SHAPING = ("tensorflow", "pillow", "opencv-python-headless")
# Of a probability, between two versions of TensorFlow.
TOLERANCE = 1e-4


class Golden:
    """The copies of one release, in a place of their own."""

    def __init__(self, release: str, place: Path) -> None:
        self.place = place
        self.about = json.loads((HERE / release / "about.json").read_text(encoding="utf-8"))
        for archive in (HERE / release).glob("*.tar.xz"):
            with tarfile.open(archive) as tar:
                tar.extractall(place, filter="data")
        make.move(place, make.PLACE, str(place))

    def dataset(self, name: str) -> str:
        return str(self.place / "datasets" / name)

    @property
    def database(self) -> str:
        return str(self.place / "root" / "metadata.sqlite")

    def ingest(self, name: str, out: str, *more: str) -> manifest.Manifest:
        """Ingests the source of a dataset with the options of that dataset."""
        source, *arguments = make.DATASETS[name]
        assert execute(["ingest", str(self.place / source), *arguments, "--out", out, *make.SPLITS, *more]) == 0
        return manifest.load(out)


@pytest.fixture(scope="module", params=RELEASES)
def untouched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """Read only."""
    return Golden(request.param, tmp_path_factory.mktemp("golden"))


@pytest.fixture(params=RELEASES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    """A copy of one's own."""
    return Golden(request.param, tmp_path)


@pytest.mark.parametrize("name", make.DATASETS)
def test_a_dataset_is_sound_and_has_its_digest(untouched, name):
    path = untouched.dataset(name)
    assert manifest.load(path).digest == untouched.about["digests"][name]
    assert verify_dataset(path).problems == []


@pytest.mark.parametrize("name", ["copy", "raw", "table"])
def test_a_dataset_is_read_in_training(untouched, name):
    dataset = manifest.load(untouched.dataset(name))
    options = InputOptions(image_side_px=16, batch_size=1)
    batches = make_dataset(untouched.dataset(name), "train", options, training=False)
    keys = {key for features, _ in batches for key in features["key"].numpy().tolist()}
    assert len(keys) == dataset.splits["train"].records > 5


@pytest.mark.parametrize("name", make.DATASETS)
def test_a_dataset_is_upgraded(golden, name):
    path = golden.dataset(name)
    rows = image_table.read(path)
    assert execute(["upgrade", path]) == 0
    upgraded = manifest.load(path)
    assert (upgraded.format_version, upgraded.digest) == (manifest.FORMAT_VERSION, golden.about["digests"][name])
    assert image_table.read(path) == rows
    assert verify_dataset(path).problems == []


@pytest.mark.parametrize("name", ["raw", "table"])
def test_a_dataset_is_inspected_compared_exported_and_reported(untouched, name, tmp_path, capsys):
    path = untouched.dataset(name)
    written = manifest.load(path).counts.written
    assert execute(["inspect", path, "--json"]) == 0
    assert execute(["diff", path, path]) == 0
    assert capsys.readouterr().out.endswith("equal\n")
    assert execute(["export", path, "--to", "webdataset", "--out", str(tmp_path / "tar")]) == 0
    names = [name for tar in (tmp_path / "tar").rglob("*.tar") for name in names_in(tar)]
    assert len({name.partition(".")[0] for name in names}) == written
    assert execute(["report", path, "--out", str(tmp_path / "report.html")]) == 0


def names_in(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        return tar.getnames()


@pytest.mark.parametrize("name", [name for name in make.DATASETS if name != "appended"])
def test_the_same_images_give_the_same_dataset_again(untouched, name, tmp_path):
    here = {package: metadata.version(package) for package in SHAPING}
    digest = untouched.ingest(name, str(tmp_path / "again")).digest
    assert digest == untouched.about["digests"][name], f"made with {untouched.about['versions']}, here is {here}"
    # The tables have the same columns, down to the lists.
    outs = untouched.dataset(name), tmp_path / "again"
    for paths in zip(*((image_table.files(out)[0], Path(out, manifest.REJECTS_NAME)) for out in outs), strict=True):
        before, after = (pq.ParquetFile(path).schema for path in paths)
        assert [after.column(i).path for i in range(len(after))] == [before.column(i).path for i in range(len(before))]


@pytest.mark.parametrize("name", ["resize", "coco", "appended"])
def test_images_are_added_to_a_dataset(golden, name):
    path = golden.dataset(name)
    before = manifest.load(path)
    # Known images add nothing, whatever options have come since.
    assert golden.ingest(name, path, "--append").digest == before.digest
    if name == "coco":
        return
    for number in (7, 8):
        image = golden.place / "extra" / "china" / f"{number}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(make.jpeg(number))
    assert execute(["ingest", str(golden.place / "extra"), "--out", path, "--append"]) == 0
    after = manifest.load(path)
    assert after.counts.written == before.counts.written + 2
    old, new = ({shard.sha256 for split in one.splits.values() for shard in split.shards} for one in (before, after))
    assert old < new
    assert verify_dataset(path).problems == []


def test_a_half_finished_ingest_is_done_again_from_the_beginning(golden):
    left = [path.name for path in (golden.place / "half" / "_work" / "written").glob("*.json")]
    assert len(left) == 1
    recorder = Recorder()
    ingest.run(make.half_options(golden.place), recorder)
    # The versions of Feedline and of its libraries are part of the names of what was examined and written.
    assert (recorder.counters()["resumed_buckets"], recorder.counters()["resumed_shards"]) == (0, 0)
    half = str(golden.place / "half")
    assert manifest.load(half).digest == golden.about["digests"]["copy"]
    assert verify_dataset(half).problems == []
    assert not (golden.place / "half" / "_work").exists()


TRAIN = """
import pathlib, sys
from tests.golden import make
from trainer.ops.resize import DecodeRandomCrop
*others, scaled = DecodeRandomCrop.__init__.__defaults__
assert scaled is True
DecodeRandomCrop.__init__.__defaults__ = (*others, False)
print(len(make.train(pathlib.Path(sys.argv[1]))))
"""


def trained(place: Path) -> int:
    """Trains to the end in a process of its own, as deterministic ops stay on; returns how many steps it executed.

    Crops are of the full image, as when the checkpoints were made: later ones are of an image decoded at a fraction.
    """
    done = python(TRAIN, place, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


def test_a_killed_training_goes_on_from_its_checkpoint(golden):
    assert make.job(golden.place).digest == golden.about["training"]
    checkpoints = Checkpoints(str(golden.place / "training"))
    left = checkpoints.latest()
    assert left.state
    done = int(max(path.name for path in (golden.place / "training").iterdir()).rpartition("-")[2])
    executed = trained(golden.place)
    undisturbed = golden.place / "undisturbed"
    shutil.copytree(golden.place / "datasets", undisturbed / "datasets")
    assert executed + done == trained(undisturbed)
    ended, expected = (Checkpoints(str(place / "training")).latest() for place in (golden.place, undisturbed))
    assert ended.position == expected.position
    for name, value in expected.arrays.items():
        np.testing.assert_allclose(ended.arrays[name], value, rtol=2e-3, atol=2e-3, err_msg=name)


def answers(golden: Golden, capsys: pytest.CaptureFixture[str]) -> list[list]:
    capsys.readouterr()
    assert execute(["predict", str(golden.place / "root" / "serving"), *make.images(golden.place), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    return [[str(Path(one["path"]).relative_to(golden.place)), one["text"], one["probability"]] for one in found]


def test_a_pushed_model_answers_as_it_did(untouched, capsys):
    found = answers(untouched, capsys)
    assert [one[:2] for one in found] == [one[:2] for one in untouched.about["answers"]]
    for one, before in zip(found, untouched.about["answers"], strict=True):
        assert one[2] == pytest.approx(before[2], abs=TOLERANCE)


def schema_of(path: str) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT schema_version FROM MLMDEnv").fetchone()[0]


def test_the_database_has_the_schema_that_this_ml_metadata_writes(untouched, tmp_path):
    config = pb.ConnectionConfig()
    config.sqlite.filename_uri = str(tmp_path / "new.sqlite")
    config.sqlite.connection_mode = pb.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
    MetadataStore(config)
    assert schema_of(untouched.database) == schema_of(config.sqlite.filename_uri)


def test_the_history_of_a_root_is_read(untouched, tmp_path, capsys):
    steps = newest_run(open_store(untouched.database))
    assert {step.state for step in steps.values()} == {"complete"}
    assert len(steps) > 8
    serving = str(untouched.place / "root" / "serving")
    assert execute(["lineage", serving, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert untouched.about["release"] in json.dumps(found)
    page = str(tmp_path / "report.html")
    dataset = steps["ImageExampleGen"].outputs["examples"]
    assert execute(["report", dataset, "--model", serving, "--out", page]) == 0


@pytest.fixture
def newer_schema(golden) -> Iterator[Golden]:
    """A root that a release to come has used."""
    with contextlib.closing(sqlite3.connect(golden.database)) as connection:
        connection.execute("UPDATE MLMDEnv SET schema_version = 99")
        connection.commit()
    return golden


def test_a_root_of_a_later_release_is_refused_in_one_line_before_anything_runs(newer_schema, capsys):
    before = Path(newer_schema.database).read_bytes()
    assert execute(["run", "--config", str(newer_schema.place / "pipeline.yaml")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"feedline: error: {newer_schema.database} has schema 99 of ML Metadata")
    assert Path(newer_schema.database).read_bytes() == before
    assert len(list((newer_schema.place / "root" / "artifacts" / "ImageExampleGen" / "examples").iterdir())) == 1


def inputs_of(store: MetadataStore, component: str, key: str) -> list[pb.Artifact]:
    """The artifacts that a component got in the newest run."""
    executions = [one for one in newest_executions(store) if one.type.endswith(component)]
    events = store.get_events_by_execution_ids([one.id for one in executions])
    numbers = [one.artifact_id for one in events if one.type == pb.Event.INPUT and one.path.steps[0].key == key]
    return store.get_artifacts_by_id(numbers)


@pytest.mark.e2e
def test_a_run_goes_on_in_a_root(golden, capsys):
    config = str(golden.place / "pipeline.yaml")
    [old] = (golden.place / "root" / "serving").iterdir()
    [old_number] = os.listdir(golden.place / "root" / "artifacts" / "Trainer" / "model")
    known = len(open_store(golden.database).get_executions())
    # With a limit, the new model is compared with the one that was pushed before.
    assert execute(["run", "--config", config, "--set", "evaluate.max_drop=1", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    # Code and libraries are part of the key of the cache, so every step is made again after an upgrade.
    assert {step["state"] for step in summary["steps"].values()} == {"complete"}
    dataset = manifest.load(summary["steps"]["ImageExampleGen"]["outputs"]["examples"])
    assert dataset.digest == golden.about["digests"]["copy"]
    assert old.is_dir()
    store = open_store(golden.database)
    assert len(store.get_executions()) > known
    [baseline] = inputs_of(store, "Evaluator", "baseline_model")
    assert baseline.uri == os.path.join(golden.place, "root", "artifacts", "Trainer", "model", old_number)
    assert execute(["lineage", str(old)]) == 0
    assert golden.about["release"] in capsys.readouterr().out
