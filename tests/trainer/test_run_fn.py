from __future__ import annotations

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.dataset import manifest, record
from beam_jobs.errors import OptionError, TrainingDiverged
from tests.trainer.conftest import analyze, column_spec, fn_args_of, records_of
from trainer.options import InputOptions, TrainerConfig, TrainOptions
from trainer.run_fn import HISTORY_NAME, channel_statistics, run_fn
from trainer.serving.predict import ServingSpec
from trainer.training.checkpoint import DIVERGED_NAME, Checkpoints

pytestmark = pytest.mark.slow


def history_of(directory) -> dict:
    return json.loads((directory / HISTORY_NAME).read_text())


def test_a_model_logs_and_a_history_are_written(trained):
    assert (trained.model / "saved_model.pb").is_file()
    for split in ("train", "validation"):
        events = list((trained.log / split).glob("events.out.tfevents.*"))
        steps = {event.step for path in events for event in tf.compat.v1.train.summary_iterator(str(path))}
        assert {0, 1} <= steps


def test_the_history_has_an_entry_an_epoch_and_says_what_it_is_of(trained):
    written = history_of(trained.log)
    assert written["dataset_digest"] == manifest.load(str(trained.dataset)).digest
    assert written["config"] == json.loads(json.dumps(trained.config.to_json()))
    history = written["history"]
    assert history.keys() >= {"loss", "accuracy", "val_loss", "val_accuracy", "train_seconds"}
    assert {name: len(series) for name, series in history.items()} == dict.fromkeys(history, 2)
    assert all(math.isfinite(value) for series in history.values() for value in series)
    assert all(value > 0 for value in history["train_seconds"])
    assert written["input_wait"] == pytest.approx(np.mean(history["input_wait"]))
    assert 0 <= written["input_wait"] <= 1
    assert written["exported"] == "last"
    assert written["spread"]["val_accuracy"]["mean"] == pytest.approx(np.mean(history["val_accuracy"]))
    assert written["spread"]["val_loss"]["count"] == len(history["val_loss"])


def test_the_exported_model_knows_the_classes_and_serves_the_records(trained):
    loaded = tf.saved_model.load(str(trained.model))
    records = records_of(trained.dataset, "eval")
    encoded = [record.decode(serialized)[record.ENCODED][0] for serialized in records]
    assert ServingSpec.read(str(trained.model)) == ServingSpec.of(manifest.load(str(trained.dataset)))
    outputs = loaded.signatures["serving_default"](image_bytes=tf.constant(encoded))
    assert set(outputs["text"].numpy()) <= {b"china", b"flower"}
    assert outputs["probabilities"].shape == (len(records), 2)
    evaluated = loaded.signatures["evaluate"](examples=tf.constant(records))["probabilities"]
    np.testing.assert_allclose(evaluated, outputs["probabilities"], atol=1e-6)
    # The validation of the last epoch was of this very model.
    labels = [record.decode(serialized)[record.LABEL][0] for serialized in records]
    hits = np.mean(outputs["class"].numpy() == labels)
    assert history_of(trained.log)["history"]["val_accuracy"][-1] == pytest.approx(hits, abs=1e-6)


def test_the_model_normalises_by_statistics_of_the_train_split(trained, transform_output):
    mean, std = channel_statistics(str(transform_output))
    channels = manifest.load(str(trained.dataset)).channels
    assert channels.split == "train"
    np.testing.assert_allclose(mean, channels.mean_rgb, atol=1e-4)
    np.testing.assert_allclose(std, channels.std_rgb, atol=1e-4)


def test_records_without_moments_cannot_be_trained_on(tmp_path):
    rows = [{record.HEIGHT: [5], "extra/iso": [1]}, {record.HEIGHT: [6], "extra/iso": []}]
    ragged = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    graph = analyze(rows, {**column_spec([record.HEIGHT]), "extra/iso": ragged}, tmp_path, {"iso": "scale"})
    with pytest.raises(OptionError, match="^the records have no channel statistics, which training needs"):
        channel_statistics(str(graph))


def test_the_seed_alone_decides_a_training(trained, transform_output, tmp_path):
    losses = []
    for number, seed in enumerate((3, 3, 4)):
        config = TrainerConfig(
            input=InputOptions(image_side_px=8, batch_size=100, seed=seed), train=TrainOptions(epochs=1, jit="never")
        )
        run_fn(fn_args_of(trained.dataset, transform_output, tmp_path / str(number), config))
        losses.append(history_of(tmp_path / str(number) / "log")["history"]["loss"][0])
        keras.utils.set_random_seed(number)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] != pytest.approx(losses[2], rel=1e-3)


def own(name: str, **values) -> TrainerConfig:
    options = {"epochs": 3, "jit": "never", **values}
    path = f"tests.trainer.workers.own_models.{name}"
    return TrainerConfig(input=InputOptions(image_side_px=8, batch_size=4), train=TrainOptions(model=path, **options))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("badly_named", "cannot be exported: '_head/.*' is not a valid root scope name"),
        ("calls_python", "cannot be exported: it has the op EagerPyFunc, which calls Python"),
    ],
)
def test_a_model_that_cannot_be_exported_is_refused_before_the_first_step(
    trained, transform_output, tmp_path, capsys, name, complaint
):
    with pytest.raises(OptionError, match=f"^model 'tests.trainer.workers.own_models.{name}' {complaint}"):
        run_fn(fn_args_of(trained.dataset, transform_output, tmp_path, own(name)))
    assert "epoch 1" not in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_the_best_epoch_of_a_training_that_diverged_is_exported_and_marked(trained, transform_output, tmp_path, capsys):
    run_fn(fn_args_of(trained.dataset, transform_output, tmp_path, own("diverging", keep="best")))
    assert (tmp_path / "model" / DIVERGED_NAME).read_text().startswith("loss is nan after step 7, in epoch 2 of 3; ")
    assert "the best epoch, 1, is exported and evaluated, not pushed" in capsys.readouterr().err
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    records = tf.constant(records_of(trained.dataset, "eval"))
    assert np.isfinite(loaded.signatures["evaluate"](examples=records)["probabilities"]).all()
    with pytest.raises(TrainingDiverged, match="^loss is nan after step 7"):
        run_fn(fn_args_of(trained.dataset, transform_output, tmp_path / "last", own("diverging")))
    assert not (tmp_path / "last" / "model").exists()


def test_checkpoints_are_gone_once_the_model_is_exported(trained):
    assert list(trained.log.rglob("checkpoint*")) == []
    assert list(trained.log.parent.glob(".work-*")) == []


def test_a_training_that_was_stopped_goes_on_from_the_work_dir(trained, transform_output, tmp_path):
    config = TrainerConfig(
        input=InputOptions(image_side_px=8, batch_size=4), train=TrainOptions(epochs=2, jit="never", keep="best")
    )
    stopped = fn_args_of(trained.dataset, transform_output, tmp_path / "1", config)
    stopped.custom_config["work_dir"] = str(tmp_path / "work")
    bad_monitor = TrainerConfig(input=config.input, train=TrainOptions(epochs=2, jit="never", keep="best", monitor="x"))
    other = fn_args_of(trained.dataset, transform_output, tmp_path / "2", bad_monitor)
    other.custom_config["work_dir"] = str(tmp_path / "work")
    with pytest.raises(OptionError, match="there is no metric 'monitor=x'"):
        run_fn(other)
    stopped.serving_model_dir = str(tmp_path / "work" / "a_file" / "model")
    (tmp_path / "work").mkdir(exist_ok=True)
    (tmp_path / "work" / "a_file").write_text("")
    with pytest.raises(tf.errors.OpError):  # the export fails, so all epochs are there to be taken up
        run_fn(stopped)
    first = history_of(tmp_path / "1" / "log")["history"]
    again = fn_args_of(trained.dataset, transform_output, tmp_path / "3", config)
    again.custom_config["work_dir"] = str(tmp_path / "work")
    [work] = (tmp_path / "work").glob(".work-*")
    with Checkpoints(str(work)).exclusive(), pytest.raises(OptionError, match="is in use by another training: process"):
        run_fn(again)
    run_fn(again)
    assert history_of(tmp_path / "3" / "log")["history"] == first  # seconds and all: nothing was trained again
    assert (tmp_path / "3" / "model" / "saved_model.pb").is_file()
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["a_file"]
