from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.common import system
from beam_jobs.errors import DiskError, OptionError, TrainingDiverged
from tests.small_disk import small_disk
from tests.trainer.train_once import Act
from trainer.evaluation.evaluate import evaluate
from trainer.job import _mixed_precision as mixed_precision
from trainer.options import TrainOptions
from trainer.training import loop
from trainer.training.callbacks import is_better, measure_waits
from trainer.training.checkpoint import Checkpoints, Progress
from trainer.training.loop import Segment, Task, fit_steps, segments, train

pytestmark = pytest.mark.filterwarnings("ignore")
BATCH, RECORDS, STEPS = 4, 18, 4  # two records of an epoch are left over for the next


def told(**values) -> TrainOptions:
    # Without XLA, whose compilation takes longer than all these steps; it has a test of its own.
    return TrainOptions(**({"jit": "never"} | values))


def model_of(seed: int = 3) -> keras.Model:
    keras.utils.set_random_seed(seed)
    layers = [
        keras.layers.Dense(4, name="base"),
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(2, activation="softmax", name="head"),
    ]
    return keras.Sequential([keras.Input([2]), *layers])


def records(first: int) -> tf.data.Dataset:
    """Batches of an endless order of points whose class is the sign of their first coordinate."""

    def batch(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.cast(tf.range(BATCH), tf.int64) + number * BATCH + first
        points = tf.stack([tf.sin(tf.cast(rows, tf.float32) * 7), tf.cos(tf.cast(rows, tf.float32))], 1)
        return points, tf.one_hot(tf.cast(points[:, 0] > 0, tf.int32), 2)

    return tf.data.Dataset.counter().map(batch)


class TellTraces(keras.layers.Layer):
    """Passes values on, and tells of every trace of the model, whether it is one for training."""

    def __init__(self, tell: Callable[[bool], object]) -> None:
        super().__init__()
        self._tell = tell

    def call(self, values, training=False):
        self._tell(bool(training))
        return values


def test_a_training_under_xla_is_traced_once_for_training_and_once_for_evaluation():
    traces: list[bool] = []
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input([2]), TellTraces(traces.append), keras.layers.Dense(2, activation="softmax")])
    traces.clear()  # that of its building
    seen: list[list[bool]] = []

    def validate(_: int) -> dict[str, float]:
        batches = records(1000).take(3).unbatch().take(10).batch(4)  # the last one has two
        evaluation = evaluate(
            model, lambda _: batches.map(lambda points, label: ({"image": points}, tf.argmax(label, 1)))
        )
        seen.append(traces.copy())
        traces.clear()
        return evaluation.logs()

    task = task_of(told(jit="always", epochs=3, steps_per_execution=2), model=model, validate=validate)
    train(task, told(jit="always", epochs=3, steps_per_execution=2))
    assert seen == [[True, False], [], []]


def task_of(options: TrainOptions, **values) -> Task:
    model = values.pop("model", None) or model_of()
    validation = records(1000).take(3)

    def validate(_: int) -> dict[str, Any]:
        return model.evaluate(validation, verbose=0, return_dict=True)

    given = {
        "model": model,
        "core": model,
        "loss": keras.losses.CategoricalCrossentropy(),
        "metrics": lambda: [keras.metrics.CategoricalAccuracy(name="accuracy")],
        "train": lambda start, meter: measure_waits(records(start.epoch * RECORDS + start.records), meter),
        "validate": validate,
        "steps": STEPS,
        "batch_size": BATCH,
        "epoch_records": RECORDS,
    }
    return Task(**(given | values))


def trained(options: TrainOptions, **values) -> tuple[keras.Model, Progress]:
    task = task_of(options, **values)
    return task.model, train(task, options)


@pytest.fixture(scope="module")
def plain() -> tuple[keras.Model, Progress]:
    """Two epochs with the options as they are. Read only."""
    return trained(told(epochs=2))


def weights(model: keras.Model) -> list[np.ndarray]:
    return [np.array(value) for value in model.get_weights()]


def same(model: keras.Model, other: keras.Model) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(weights(model), weights(other), strict=True))


@pytest.fixture(autouse=True)
def _interruptible() -> None:
    """SIGINT counts in this process: a shell has it ignored in what it starts in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("step", "options", "expected"),
    [
        (0, {"epochs": 3}, [(0, 0, 3, 4)]),
        (5, {"epochs": 3}, [(5, 1, 2, 3), (8, 2, 3, 4)]),
        (12, {"epochs": 3}, []),
        (0, {"epochs": 3, "frozen": True, "unfreeze_epoch": 1}, [(0, 0, 1, 4), (4, 1, 3, 4)]),
        (2, {"epochs": 3, "frozen": True, "unfreeze_epoch": 1}, [(2, 0, 1, 2), (4, 1, 3, 4)]),
        (4, {"epochs": 3, "frozen": True, "unfreeze_epoch": 1}, [(4, 1, 3, 4)]),
    ],
)
def test_what_is_left_of_a_training_is_cut_into_these_calls_of_fit(step, options, expected):
    found = list(segments(step, STEPS, told(**options)))
    assert found == [Segment(first_step=a, epoch=b, end=c, steps=d) for a, b, c, d in expected]


@pytest.mark.parametrize(
    ("records_", "at_once", "expected"), [(100, 1, (12, 1)), (100, 5, (10, 5)), (100, 50, (12, 12)), (5, 3, (1, 1))]
)
def test_an_epoch_is_a_multiple_of_the_steps_that_run_at_once(records_, at_once, expected):
    steps, options = fit_steps(records_, told(steps_per_execution=at_once), 8)
    assert (steps, options.steps_per_execution) == expected


STATEFUL = {"ema": 0.8, "accumulate_steps": 2, "keep": "best", "monitor": "val_loss", "patience": 5}


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (5, STATEFUL),
        (6, {"optimizer": "sgd", "nesterov": True, "mixed_precision": "none", "steps_per_execution": 2}),
        (4, {"frozen": True, "unfreeze_epoch": 1, "ema": 0.5}),
        (7, {"frozen": True, "unfreeze_epoch": 1}),
    ],
)
def test_an_interrupted_training_goes_on_as_if_nothing_had_been(tmp_path, step, options):
    options_ = told(epochs=3, **options)
    whole, wanted = trained(options_)
    checkpoints = Checkpoints(str(tmp_path / "training"))
    executions = -(-step // options_.steps_per_execution)
    with pytest.raises(KeyboardInterrupt):
        trained(options_, checkpoints=checkpoints, callbacks=[Act(executions, interrupt)])
    assert checkpoints.latest().state["step"] == step
    resumed, progress = trained(options_, checkpoints=checkpoints, model=model_of(99))
    assert same(resumed, whole)
    assert progress.best == wanted.best
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert progress.history[name] == pytest.approx(wanted.history[name], rel=1e-6), name
    assert len(progress.history["input_wait"]) == 3


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (0, [(4, 0, 16), (8, 1, 14)]),
        (2, [(2, 0, 8), (4, 0, 16), (6, 1, 6), (8, 1, 14)]),  # the end of an epoch is one checkpoint, not two
    ],
)
def test_checkpoints_come_at_the_end_of_epochs_and_between_as_told(tmp_path, every, expected):
    saved = []

    class Recorded(Checkpoints):
        def save(self, step, checkpoint):
            saved.append((step, checkpoint.position.epoch, checkpoint.position.records))
            super().save(step, checkpoint)

    trained(told(epochs=2, checkpoint_steps=every), checkpoints=Recorded(str(tmp_path)))
    assert saved == expected
    assert json.loads((tmp_path / "checkpoint-00000008" / "position.json").read_text()) == {"epoch": 1, "records": 14}


def test_a_second_signal_is_not_held(tmp_path):
    started = time.monotonic()
    before = signal.getsignal(signal.SIGINT)

    def twice() -> None:
        interrupt()
        interrupt()

    with pytest.raises(KeyboardInterrupt):
        trained(told(epochs=2), checkpoints=Checkpoints(str(tmp_path)), callbacks=[Act(2, twice)])
    assert Checkpoints(str(tmp_path)).latest() is None
    assert signal.getsignal(signal.SIGINT) is before
    assert time.monotonic() - started < 60


def test_the_weights_that_are_left_are_the_average_and_validation_saw_the_same(plain):
    model, progress = trained(told(epochs=2, ema=0.9))
    assert model.evaluate(records(1000).take(3), verbose=0, return_dict=True)["loss"] == pytest.approx(
        progress.history["val_loss"][-1], rel=1e-5
    )
    head, other = (layer.get_layer("head").kernel for layer in (model, plain[0]))
    assert not np.allclose(head, other)
    # What trains is not the average: the losses of the steps are those of a training without one.
    assert progress.history["loss"] == pytest.approx(plain[1].history["loss"], rel=1e-5)


def scripted(values: list[float]) -> Callable[[int], dict[str, float]]:
    return lambda epoch: {"accuracy": values[epoch], "accuracy_low": -values[epoch], "loss": values[epoch]}


@pytest.mark.parametrize(
    ("options", "best_epoch", "epochs_run"),
    [
        ({"keep": "best", "monitor": "val_loss"}, 0, 5),
        ({"keep": "best", "choose_by": "lower_bound"}, 0, 5),
        ({"keep": "best", "patience": 2}, 1, 4),
        ({"keep": "best", "patience": 1, "min_delta": 0.3}, 0, 2),
        ({"keep": "last", "patience": 2}, 1, 4),
    ],
)
def test_the_best_epoch_is_chosen_and_training_stops_when_none_is_better(options, best_epoch, epochs_run):
    options_ = told(epochs=5, **options)
    seen = []

    class Weights(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(weights(self.model))

    model, progress = trained(options_, validate=scripted([0.5, 0.7, 0.6, 0.7, 0.55]), callbacks=[Weights()])
    assert (progress.best_epoch, len(progress.history["loss"])) == (best_epoch, epochs_run)
    left = seen[best_epoch] if options_.keep == "best" else seen[-1]
    assert all(np.array_equal(a, b) for a, b in zip(weights(model), left, strict=True))


def spoiled(step: int, options: TrainOptions, **values) -> tuple[keras.Model, Progress]:
    """A training whose weights are NaN after a step, counted from 1."""
    task = task_of(options, **values)
    spoil = Act(step, lambda: task.model.layers[0].bias.assign([np.nan] * 4))
    return task.model, train(dataclasses.replace(task, callbacks=[spoil]), options)


def test_a_loss_that_is_not_a_number_ends_the_training_and_says_when(tmp_path):
    checkpoints = Checkpoints(str(tmp_path))
    with pytest.raises(
        TrainingDiverged, match=r"^loss is nan after step 7, in epoch 2 of 3; lower train.learning_rate"
    ):
        spoiled(6, told(epochs=3), checkpoints=checkpoints)
    assert checkpoints.latest().state["step"] == STEPS  # of the last epoch that was whole


def test_a_validation_that_is_not_a_number_ends_the_training_too():
    with pytest.raises(TrainingDiverged, match="^val_loss is nan after step 8, in epoch 2 of 3; "):
        trained(told(epochs=3), validate=lambda epoch: {"loss": math.nan if epoch else 1.0})


def test_the_best_epoch_stays_when_the_loss_is_not_a_number_any_more():
    model, progress = spoiled(6, told(epochs=3, keep="best"))
    expected, _ = trained(told(epochs=3, keep="best"), validate=scripted([0.9, 0.1, 0.1]))
    assert same(model, expected)
    assert progress.diverged.startswith("loss is nan after step 7, in epoch 2 of 3; ")
    assert len(progress.history["loss"]) == 1


def test_a_training_that_stopped_early_is_not_taken_up_again(tmp_path):
    options = told(epochs=5, patience=1, keep="best")
    checkpoints = Checkpoints(str(tmp_path))
    values = scripted([0.5, 0.4, 0.9, 0.9, 0.9])
    first, _ = trained(options, validate=values, checkpoints=checkpoints)
    again, progress = trained(options, validate=values, checkpoints=checkpoints, model=model_of(5))
    assert len(progress.history["loss"]) == 2
    assert same(first, again)


def test_checkpoints_of_another_model_are_named(tmp_path):
    trained(told(epochs=1), checkpoints=Checkpoints(str(tmp_path)))
    other = keras.Sequential([keras.Input([2]), keras.layers.Dense(2, activation="softmax")])
    with pytest.raises(OptionError, match=f"is of another model: .*; remove {tmp_path} to start from the beginning$"):
        trained(told(epochs=2), checkpoints=Checkpoints(str(tmp_path)), model=other)


@pytest.mark.parametrize(
    ("value", "best", "expected"), [(0.5, None, True), (0.5, 0.4, True), (float("nan"), None, False)]
)
def test_nan_is_never_better(value, best, expected):
    assert is_better(value, best, told()) is expected


def test_a_frozen_base_stays_until_it_is_unfrozen():
    def base(model: keras.Model) -> np.ndarray:
        return np.array(model.get_layer("base").kernel)

    start = base(model_of())
    never, _ = trained(told(epochs=2, frozen=True))
    late, _ = trained(told(epochs=2, frozen=True, unfreeze_epoch=1))
    np.testing.assert_array_equal(base(never), start)
    assert not np.array_equal(base(late), start)
    assert not np.array_equal(never.get_layer("head").kernel, model_of().get_layer("head").kernel)


def test_the_learning_rate_goes_on_where_it_was_when_the_base_is_unfrozen():
    rates = []

    class Rates(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    options = {"schedule": "linear", "learning_rate": 0.8, "epochs": 2, "warmup_epochs": 0}
    trained(told(**options, frozen=True, unfreeze_epoch=1, unfreeze_factor=0.5), callbacks=[Rates()])
    assert rates == pytest.approx([0.8, 0.7, 0.6, 0.5, 0.2, 0.15, 0.1, 0.05])


def test_several_steps_at_once_train_as_single_ones_do(plain):
    one, progress = plain
    more, other = trained(told(epochs=2, steps_per_execution=2))
    assert progress.step == other.step == 8
    for a, b in zip(weights(one), weights(more), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_compiled_and_in_half_precision_it_trains_too():
    with mixed_precision(told(mixed_precision="float16")):
        model = model_of()
    start = weights(model)
    _, progress = trained(told(epochs=1, jit="always", ema=0.5, accumulate_steps=2), model=model)
    assert np.isfinite(progress.history["loss"]).all()
    assert not np.array_equal(weights(model)[0], start[0])
    assert {value.dtype for value in weights(model)} == {np.dtype("float32")}


def test_a_display_sees_the_steps_of_a_training_and_what_is_between_them(monkeypatch):
    monkeypatch.setattr(loop, "_MAX_TIMING_SHARE", math.inf)
    monkeypatch.setattr(loop, "_NO_FORECAST_S", 0.0)
    seen, timed = [], []

    @contextlib.contextmanager
    def watch(stage, total, read):
        seen.append((stage, total.images))
        displayed.append(read)
        yield

    displayed: list[Callable[[], system.Progress]] = []
    act = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(
            (displayed[0]().images, displayed[0]().note.rpartition(",")[0])
        )
    )
    shown = system.watch.set(watch)
    try:
        trained(
            told(epochs=2),
            callbacks=(act,),
            validate=lambda _: {"loss": seen.append(displayed[0]().note) or 1.0},
            time_smaller=lambda: timed.append(displayed[0]().note),
        )
    finally:
        system.watch.reset(shown)
    assert seen[0] == ("training", 2 * STEPS * BATCH)
    assert seen[1] == (BATCH, "epoch 1/2, step 1/4")
    assert seen[STEPS] == (STEPS * BATCH, "epoch 1/2, step 4/4")
    assert seen[STEPS + 1].startswith("epoch 1/2, validating, loss ")
    assert seen[-2] == (2 * STEPS * BATCH, "epoch 2/2, step 4/4")
    assert [note.rpartition(",")[0] for note in timed] == ["epoch 2/2, timing smaller images"]


def test_a_long_training_says_how_long_it_takes_and_what_a_smaller_side_would_save(capsys, monkeypatch):
    monkeypatch.setattr(loop, "_NO_FORECAST_S", 0.0)
    trained(told(epochs=3), validation_steps=9, time_smaller=lambda: pytest.fail("it would take too long"))
    lines = capsys.readouterr().err.splitlines()
    forecasts = [line for line in lines if line.startswith("about")]
    assert all(re.fullmatch(r"about \d:\d\d of training left at [\d,.]+ images/s", line) for line in forecasts)
    # Five steps after the first, which compiles, and when the epoch of the five has ended.
    assert [lines.index(line) for line in forecasts] == [1, 3]
    monkeypatch.setattr(loop, "_MAX_TIMING_SHARE", math.inf)
    for saved, hint in ((-1.0, ""), (1e3, "; about 0:00 with input.image_side_px=48")):
        trained(told(epochs=3), time_smaller=lambda saved=saved: (48, saved))
        first, corrected = (line for line in capsys.readouterr().err.splitlines() if line.startswith("about"))
        assert first.endswith(f"images/s{hint}")
        assert corrected.endswith("images/s")


def test_a_forecast_is_within_a_quarter_of_the_time_that_is_left(monkeypatch):
    forecasts, ends = [], []
    monkeypatch.setattr(loop, "_NO_FORECAST_S", 0.0)
    monkeypatch.setattr(loop, "clock_time", lambda seconds: forecasts.append((seconds, time.monotonic())))
    sleep = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: time.sleep(0.3))

    def validate(_: int) -> dict[str, float]:
        time.sleep(0.6)
        ends.append(time.monotonic())
        return {"loss": 1.0}

    # The first forecast takes a step of validation for a third of one of training.
    trained(told(epochs=3), callbacks=[sleep], validation_steps=6, validate=validate)
    assert len(forecasts) == 2
    for seconds, since in forecasts:
        assert seconds == pytest.approx(ends[-1] - since, rel=0.25)


def test_the_wait_and_the_figures_go_to_tensorboard(tmp_path):
    trained(told(epochs=2), log_dir=str(tmp_path))
    tags: dict[str, set[str]] = {}
    for path in tmp_path.rglob("events.out.tfevents.*"):
        found = {value.tag for event in tf.compat.v1.train.summary_iterator(str(path)) for value in event.summary.value}
        tags.setdefault(path.parent.name, set()).update(found)
    assert {"epoch_loss", "epoch_input_wait", "epoch_images_per_second", "epoch_learning_rate"} <= tags["train"]
    assert {"epoch_loss", "epoch_accuracy"} <= tags["validation"]


def test_a_profile_is_written_for_tensorboard(tmp_path):
    trained(told(epochs=1, profile_steps="1-2"), log_dir=str(tmp_path))
    written = list((tmp_path / "plugins" / "profile").rglob("*.xplane.pb"))
    assert len(written) == 1
    assert 0 < os.path.getsize(written[0]) < 50e6


def test_worker_that_does_not_write_writes_nothing(tmp_path):
    options = told(epochs=1, profile_steps="1-2")
    trained(options, log_dir=str(tmp_path / "log"), checkpoints=Checkpoints(str(tmp_path / "saved")), writes=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_checkpoints_that_a_small_disk_cannot_hold_are_refused_before_the_first_step(tmp_path):
    steps = []
    count = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda step, logs: steps.append(step))
    with small_disk(tmp_path / "disk") as make:
        place = make(2 << 20)
        layers = [keras.layers.Dense(20_000, name="base"), keras.layers.Dense(2, activation="softmax", name="head")]
        model = keras.Sequential([keras.Input([2]), *layers])
        task = task_of(told(), model=model, checkpoints=Checkpoints(str(place / "training")), callbacks=[count])
        # 100,002 values and as many of each of the two slots of the optimizer, in three checkpoints at a time.
        wanted = r"not enough room for the checkpoints, about 3\.6 MB are needed and 2\.\d MB are free; make room"
        with pytest.raises(DiskError, match=wanted):
            train(task, told(epochs=3))
        assert not steps
        assert not (place / "training").exists()
        make(4 << 20)
        train(task, told(epochs=3))
        assert len(steps) == 3 * STEPS
        assert sum(path.stat().st_size for path in place.rglob("*.npz")) == pytest.approx(2.4e6, rel=0.01)
