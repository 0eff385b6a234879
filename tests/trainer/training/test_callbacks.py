from __future__ import annotations

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.training.callbacks import Profile, WaitMeter, epoch_line, measure_waits
from trainer.training.checkpoint import Progress

SLOW_S = 0.05
STEPS = 12


def batches(seconds: float) -> tf.data.Dataset:
    """Endless batches, each of which takes so long to make; two are kept ready."""

    def make(number: np.ndarray) -> np.float32:
        time.sleep(seconds)
        return np.float32(number)

    def batch(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        value = tf.ensure_shape(tf.numpy_function(make, [number], tf.float32), [])
        return tf.fill([4, 1], value), tf.zeros([4, 1])

    return tf.data.Dataset.counter().map(batch).prefetch(2)


class Slow(keras.layers.Layer):
    """Takes its time, as a step on a device would; not compiled, so that it can."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def call(self, inputs):
        def wait(values: np.ndarray) -> np.ndarray:
            time.sleep(self.seconds)
            return values

        return tf.ensure_shape(tf.numpy_function(wait, [inputs], tf.float32), inputs.shape)


def share(input_s: float, step_s: float, at_once: int) -> float:
    """The share of its time that `fit` waits, its first execution aside."""
    model = keras.Sequential([keras.Input([1]), Slow(step_s), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=at_once, jit_compile=False)
    meter, marks, waits = WaitMeter(), [], []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            marks.append(time.perf_counter())
            waits.append(meter.take())

    model.fit(measure_waits(batches(input_s), meter), steps_per_epoch=STEPS, callbacks=[Watch()], verbose=0)
    assert len(waits) == STEPS / at_once
    return sum(waits[1:]) / (marks[-1] - marks[0])


@pytest.mark.parametrize(("input_s", "step_s", "least", "most"), [(SLOW_S, 0.0, 0.7, 2.0), (0.0, SLOW_S, 0.0, 0.1)])
def test_the_wait_is_long_for_a_slow_input_and_short_for_a_slow_model(input_s, step_s, least, most):
    assert least <= share(input_s, step_s, at_once=4) < most  # inside of a compiled loop


def test_of_an_input_half_again_as_slow_as_the_model_a_third_is_waiting():
    assert share(SLOW_S * 3, SLOW_S * 2, 1) == pytest.approx(1 / 3, abs=0.15)


def test_a_person_who_pulls_is_timed_too_and_gets_the_same_batches():
    meter = WaitMeter()
    ragged = tf.data.Dataset.range(3).map(lambda n: {"a": n, "b": tf.RaggedTensor.from_row_lengths([n], [1, 0])})
    plain, watched = (list(dataset) for dataset in (ragged, measure_waits(ragged, meter)))
    assert meter.take() > 0
    assert meter.take() == 0
    for one, other in zip(plain, watched, strict=True):
        assert int(one["a"]) == int(other["a"])
        assert one["b"].to_list() == other["b"].to_list()


def test_a_wait_is_that_of_the_asking_not_of_the_making():
    meter = WaitMeter()
    stream = iter(measure_waits(batches(SLOW_S), meter))
    next(stream)
    time.sleep(SLOW_S * 4)  # two are ready now
    meter.take()
    next(stream)
    assert meter.take() < SLOW_S / 2
    for _ in range(3):
        next(stream)
    assert meter.take() > SLOW_S / 2


def test_the_line_of_an_epoch_reads_like_this():
    logs = {"loss": 0.51239, "accuracy": 0.9, "val_loss": 1.0, "images_per_second": 1234.4, "input_wait": 0.0042}
    assert epoch_line(2, 10, {**logs, "recall/cat": 0.1}) == (
        "epoch 3/10  loss 0.5124  accuracy 0.9000  val_loss 1.0000  1,234 images/s  waited for input 0.4 %"
    )


@pytest.mark.parametrize(
    ("window", "at_once", "expected"),
    [((3, 5), 2, (4, 6)), ((0, 1), 1, (0, 1)), ((6, 100), 1, (6, 8)), ((50, 60), 1, None)],
)
def test_only_the_window_of_steps_is_profiled(monkeypatch, window, at_once, expected):
    progress, seen = Progress(), []
    monkeypatch.setattr("trainer.training.callbacks._profiler", lambda: [lambda *_: seen.append(progress.step)] * 2)
    profile = Profile(progress, window, "logs")
    for batch in range(0, 8, at_once):
        profile.on_train_batch_begin(batch)
        progress.step += at_once
        profile.on_train_batch_end(batch)
    profile.on_train_end()
    assert (tuple(seen) or None) == expected
