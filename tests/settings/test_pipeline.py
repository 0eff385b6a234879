"""What the settings of the pipeline itself, of Transform and of the evaluation change."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft
from tfx.orchestration.local.local_dag_runner import LocalDagRunner
from tfx.orchestration.pipeline import RunOptions

from beam_jobs.dataset import manifest, record
from beam_jobs.ingest import run as run_ingest
from beam_jobs.options import IngestOptions
from components.evaluation import load_evaluation
from pipeline.config import PipelineConfig
from pipeline.pipeline import create_pipeline
from pipeline.runs.history import newest_run, open_store
from tests.components.evaluation.answers import write_answers
from tests.components.evaluation.test_config import LABELS, answers_of, evaluate, models
from tests.make_images import class_folders
from tests.settings.table import Row, config_of, row
from tests.trainer.conftest import analyze, column_spec

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

__all__ = ["models"]


Run = Callable[[Mapping[str, Any]], Any]


class Built:
    """The pipeline of a configuration, as a runner gets it."""

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self.pipeline = create_pipeline(config)
        self.components = {component.id: component for component in self.pipeline.components}

    @property
    def places(self) -> set[str]:
        """The directories that artifacts, models and the store of metadata are written to."""
        destination = json.loads(self.components["Pusher"].exec_properties["push_destination"])
        store = self.pipeline.metadata_connection_config.sqlite.filename_uri
        pushed = destination["filesystem"]["base_directory"]
        return {os.path.dirname(path) for path in (pushed, store, self.pipeline.pipeline_info.pipeline_root)}

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names of the dataset that the first component makes or adopts; runs it."""
        first = "ImageExampleGen"
        LocalDagRunner().run(self.pipeline, run_options=RunOptions(to_nodes=[first]))
        return manifest.load(newest_run(open_store(self.config.metadata_path))[first].outputs["examples"]).labels


def of_schema(built: Built) -> list[str]:
    return sorted(name for name in built.components if "Schema" in name)


def transformed(found: Mapping[str, Any]) -> Any:
    return found.get("extra/price")


SPANS = {"ingest.source": "spans/span-{SPAN}", "ingest.splits": {"train": 0.5, "eval": 0.5}}
VERSIONS = {**SPANS, "ingest.source": "versions/span-{SPAN}/version-{VERSION}"}
INGEST = {"ingest.source": "photos", "ingest.columns.extra": ["price", "camera"]}
PASSES_BEFORE = (True, False)

ROWS = [
    row(
        "root",
        "elsewhere",
        lambda built: {os.path.basename(path) for path in built.places},
        ({"work"}, {"elsewhere"}),
        first=("work",),
        given=INGEST,
    ),
    row(
        "name", "photos", lambda built: built.pipeline.pipeline_info.pipeline_name, ("feedline", "photos"), given=INGEST
    ),
    row("dataset", "second", lambda built: built.classes, (("one",), ("two",)), first=("first",)),
    row("span", 1, lambda built: built.classes, (("two",), ("one",)), given=SPANS),
    row("version", 1, lambda built: built.classes, (("two",), ("one",)), given=VERSIONS),
    row("schema", "schema.pbtxt", of_schema, (["InferredSchema"], ["ReviewedSchema"]), given=INGEST),
    row(
        "beam_args",
        ["--runner=DirectRunner"],
        lambda built: built.pipeline.beam_pipeline_args[0],
        ("--runner=FnApiRunner", "--runner=DirectRunner"),
        given=INGEST,
    ),
    row("transform.columns", {"price": "scale"}, transformed, (None, [0.0, 1.0, 0.5])),
    row("evaluate.min_accuracy", 0.91, lambda found: found.blessed, PASSES_BEFORE),
    row("evaluate.max_drop", 0.04, lambda found: found.blessed, PASSES_BEFORE, first=(0.06,)),
    row(
        "evaluate.above_largest_class",
        False,
        lambda found: found.blessed,
        (False, True),
        given={"answers": "of chance"},
    ),
    row("evaluate.slice_by", ["camera"], lambda found: sorted(found.slices), ([], ["camera"])),
]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Builds pipelines in a folder of sources: `one` and `two` are classes of what comes first and second."""
    root = tmp_path_factory.mktemp("pipeline")
    for place, label in {
        "photos": "one",
        "spans/span-1": "one",
        "spans/span-2": "two",
        "versions/span-1/version-1": "one",
        "versions/span-1/version-2": "two",
    }.items():
        class_folders(root / place, 6, (label,))
    for name, source in {"first": "spans/span-1", "second": "spans/span-2"}.items():
        run_ingest(IngestOptions(source=str(root / source), out=str(root / name), splits={"train": 1, "eval": 1}))
    (root / "schema.pbtxt").write_text('feature { name: "image/bytes" }')
    (root / "runs").mkdir()

    def built(settings: Mapping[str, Any]) -> Built:
        return Built(config_of({"root": f"runs/{len(os.listdir('runs'))}", **settings}))

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        yield built


def transform(settings: Mapping[str, Any], out: Path) -> dict[str, list[float]]:
    """Returns column -> what the transform graph makes of it, in three records."""
    names = record.STATISTICS_FEATURES
    spec = {**column_spec(names), "extra/price": tf.io.FixedLenFeature([1], tf.float32)}
    usual = {"string": b"png", "int64": 1, "float32": 1.0}
    facts = {name: np.full(spec[name].shape, usual[record.FEATURES[name][0]]).tolist() for name in names}
    rows = [{**facts, record.LABEL: [0], record.TEXT: [b"cat"], "extra/price": [price]} for price in (2.0, 6.0, 4.0)]
    columns = config_of({"root": "work", **INGEST, **settings}).transform.columns
    graph = tft.TFTransformOutput(str(analyze(rows, spec, out, columns)))
    batch = {name: tf.constant([row[name] for row in rows], spec[name].dtype) for name in spec}
    found = graph.transform_raw_features(batch)
    return {name: np.ravel(value).tolist() for name, value in found.items() if name.startswith("extra/")}


@pytest.mark.parametrize("row", [row for row in ROWS if "." not in row.setting], ids=str)
def test_a_setting_of_the_pipeline_changes_what_runs(row: Row, build: Run):
    row.check(build)


@pytest.mark.parametrize("row", [row for row in ROWS if row.setting.startswith("transform.")], ids=str)
def test_a_setting_of_transform_changes_the_columns(row: Row, tmp_path: Path):
    row.check(lambda settings: transform(settings, tmp_path / str(len(os.listdir(tmp_path)))))


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """Attributes: whether the model is `blessed`, and the `slices` that were measured, feature by feature."""

    blessed: bool
    slices: tuple[str, ...]


@pytest.fixture(scope="module")
def judge(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Evaluates a model that is right for 36 of 40 images, beside one that is right for 38 where one is compared."""
    root = tmp_path_factory.mktemp("evaluate")
    cameras = [{"camera": [b"old" if place % 4 else b"new"]} for place in range(len(LABELS))]
    both = np.concatenate([answers_of(36), answers_of(38)], axis=1)
    uneven = [0] * 26 + [1] * 14
    chance = np.eye(2, dtype=np.float32)[[label if place < 31 else 1 - label for place, label in enumerate(uneven)]]
    answers = {
        "": write_answers(root / "answers", LABELS, both, cameras),
        "of chance": write_answers(root / "chance", uneven, np.concatenate([chance, chance], axis=1)),
    }

    def judged(settings: Mapping[str, Any]) -> Evaluated:
        out = root / str(len(os.listdir(root)))
        given = dict(settings)
        records = answers[given.pop("answers", "")]
        options = config_of({"root": "work", **INGEST, **given}).evaluate
        chosen = models if options.max_drop is not None else {"candidate": models["candidate"]}
        blessed = evaluate(options, chosen, records, out)
        return Evaluated(blessed=blessed, slices=tuple(load_evaluation(str(out)).slices))

    return judged


@pytest.mark.parametrize("row", [row for row in ROWS if row.setting.startswith("evaluate.")], ids=str)
def test_a_setting_of_the_evaluation_changes_what_is_blessed_or_measured(row: Row, judge: Run):
    row.check(judge)
