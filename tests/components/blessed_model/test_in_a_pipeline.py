"""Transform, Trainer, Evaluator and Pusher for real, on forty tiny photographs."""

from __future__ import annotations

import base64
import csv
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_data_validation as tfdv
import tensorflow_transform as tft
from tfx import v1 as tfx

from beam_jobs.dataset import manifest, record
from beam_jobs.options import IngestOptions, TableColumns
from components.blessed_model import blessed_model
from components.evaluation import load_evaluation
from components.evaluation.config import evaluation_config
from components.evaluation.results import EvaluateOptions
from components.image_example_gen.component import ImageExampleGen
from tests.command import python
from tests.components.conftest import run_pipeline
from tests.make_images import crop, encode
from tests.trainer.conftest import records_of
from trainer import run_fn
from trainer.input import columns
from trainer.input.columns import TransformOptions
from trainer.options import InputOptions, TrainerConfig, TrainOptions
from trainer.serving.export import DESCRIPTION_NAME, EVALUATE_SIGNATURE, PROBABILITIES

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
COLUMNS = TransformOptions(columns={"camera": "vocabulary(5)", "iso": "scale"})
EVALUATE = EvaluateOptions(above_largest_class=False, max_drop=1.0)


def write_source(root: Path) -> Path:
    """Forty photographs of two classes beside a table with their camera, and with an iso for three in four."""
    root.mkdir()
    with open(root / "images.csv", "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "label", "camera", "iso"])
        for place in range(40):
            label, name = (("bright", "china.jpg"), ("dark", "flower.jpg"))[place % 2]
            (root / f"{place}.jpg").write_bytes(encode(crop(place, 20 + place % 5, 24, name), "JPEG"))
            writer.writerow(
                [f"{place}.jpg", label, ("north", "south")[place // 2 % 2], 100 * place if place % 4 else ""]
            )
    return root


def run_once(root: Path, seed: int) -> SimpleNamespace:
    ingest = IngestOptions(
        source=str(root / "source" / "images.csv"),
        out="",
        splits={"train": 0.6, "eval": 0.4},
        columns=TableColumns(image="path", label="label", extra=("camera", "iso")),
    )
    config = TrainerConfig(
        input=InputOptions(image_side_px=8, batch_size=8, seed=seed), train=TrainOptions(epochs=1, model="small_cnn")
    )
    example_gen = ImageExampleGen(ingest)
    examples = example_gen.outputs["examples"]
    extra = [record.EXTRA_PREFIX + name for name in ingest.columns.extra]
    statistics = tfx.components.StatisticsGen(
        examples=examples, stats_options=tfdv.StatsOptions(feature_allowlist=[*record.STATISTICS_FEATURES, *extra])
    )
    schema = tfx.components.SchemaGen(statistics=statistics.outputs["statistics"], infer_feature_shape=True)
    transform = tfx.components.Transform(
        examples=examples,
        schema=schema.outputs["schema"],
        preprocessing_fn="trainer.serving.preprocessing.preprocessing_fn",
        materialize=False,
        splits_config=tfx.proto.SplitsConfig(analyze=["train"]),
        disable_statistics=True,
        custom_config={columns.CONFIG_KEY: COLUMNS.to_json()},
    )
    trainer = tfx.components.Trainer(
        run_fn="trainer.run_fn.run_fn",
        examples=examples,
        transform_graph=transform.outputs["transform_graph"],
        schema=schema.outputs["schema"],
        train_args=tfx.proto.TrainArgs(splits=["train"]),
        eval_args=tfx.proto.EvalArgs(splits=["eval"]),
        custom_config={run_fn.CONFIG_KEY: config.to_json()},
    )
    blessed = blessed_model(trainer.outputs["model"], DESCRIPTION_NAME)
    evaluator = tfx.components.Evaluator(
        examples=examples,
        model=trainer.outputs["model"],
        baseline_model=blessed.outputs["model"],
        example_splits=["eval"],
        eval_config=evaluation_config(EVALUATE, EVALUATE_SIGNATURE, PROBABILITIES),
    )
    pusher = tfx.components.Pusher(
        model=trainer.outputs["model"],
        model_blessing=evaluator.outputs["blessing"],
        push_destination=tfx.proto.PushDestination(
            filesystem=tfx.proto.PushDestination.Filesystem(base_directory=str(root / "serving"))
        ),
    )
    steps = run_pipeline(root, example_gen, statistics, schema, transform, trainer, blessed, evaluator, pusher)
    return SimpleNamespace(steps=steps, evaluation=load_evaluation(steps["Evaluator"].outputs["evaluation"]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run, and one with another seed."""
    root = tmp_path_factory.mktemp("small")
    write_source(root / "source")
    first, other = (run_once(root, seed) for seed in (0, 1))
    return SimpleNamespace(root=root, first=first, other=other)


def test_the_first_model_is_compared_with_none_and_pushed(runs):
    assert runs.first.evaluation.baseline is None
    assert runs.first.steps["Pusher"].properties["pushed_model"]["pushed_destination"]


def test_the_next_model_is_compared_with_the_one_before(runs):
    assert runs.other.steps["Evaluator"].state == "complete"
    assert runs.other.evaluation.baseline == runs.first.evaluation.overall


def test_the_transform_graph_takes_no_image_and_serves_single_rows(runs):
    output = tft.TFTransformOutput(runs.first.steps["Transform"].outputs["transform_graph"])
    spec = output.raw_feature_spec()
    assert not {record.ENCODED, record.FILENAME} & set(spec)
    assert output.vocabulary_by_name("column_camera") in ([b"north", b"south"], [b"south", b"north"])
    directory = runs.first.steps["ImageExampleGen"].outputs["examples"]
    train = records_of(directory, "train")
    isos = np.concatenate([record.decode(item).get("extra/iso", []) for item in train])
    for item in train[:8]:
        row = output.transform_raw_features(tf.io.parse_example([item], spec))
        wanted = [(iso - isos.min()) / np.ptp(isos) for iso in record.decode(item).get("extra/iso", [])]
        np.testing.assert_allclose(row["extra/iso"].values, wanted, rtol=1e-6)


def test_the_pushed_model_serves_files_in_a_process_of_its_own_as_it_was_evaluated(runs):
    pushed = runs.first.steps["Pusher"].properties["pushed_model"]["pushed_destination"]
    directory = runs.first.steps["ImageExampleGen"].outputs["examples"]
    records = records_of(directory, "eval")
    files = [record.decode(item)[record.ENCODED][0] for item in records]
    code = (
        "import sys, json, base64, tensorflow as tf\n"
        "serve = tf.saved_model.load(sys.argv[1]).signatures['serving_default']\n"
        "found = serve(image_bytes=tf.constant([base64.b64decode(text) for text in json.load(sys.stdin)]))\n"
        "print(json.dumps([found['class'].numpy().tolist(), [text.decode() for text in found['text'].numpy()],\n"
        "    found['probability'].numpy().tolist(), found['probabilities'].numpy().tolist()]))"
    )
    sent = json.dumps([base64.b64encode(data).decode() for data in files])
    done = python(code, pushed, input=sent, check=True)
    classes, texts, sure, shares = json.loads(done.stdout.splitlines()[-1])
    evaluated = tf.saved_model.load(pushed).signatures[EVALUATE_SIGNATURE](examples=tf.constant(records))[PROBABILITIES]
    np.testing.assert_allclose(shares, evaluated, atol=1e-5)
    labels = manifest.load(directory).labels
    assert texts == [labels[index] for index in classes]
    np.testing.assert_allclose(sure, np.max(shares, axis=1), atol=1e-6)
    true = [record.decode(item)[record.LABEL][0] for item in records]
    assert np.mean(np.equal(classes, true)) == runs.first.evaluation.overall.value
