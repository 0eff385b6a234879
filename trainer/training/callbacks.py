"""Callbacks of `fit`: times of steps and input waits, a line per epoch, best epoch, early stopping, weight averages.

After a step, callbacks read `self.model` only if necessary: on the JAX backend, this first copies all state into it.

The input wait of a step is the time between the request for a batch and its delivery. `fit` requests batches from
inside a compiled loop, often several without a return to Python, so a clock around `next()` cannot measure it. The
dataset therefore measures it: its last stage zips the batches with the time of the request. `zip` reads its inputs in
order, the clock first; the stage reads the time again when the batch has arrived. This works with any consumer.

In two cases the measured wait is an upper bound, because a batch is requested before the step that consumes it could
begin: under a strategy of several devices, and on an accelerator with `steps_per_execution` above 1.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from beam_jobs.common import system
from beam_jobs.common.strings import unknown
from beam_jobs.errors import OptionError, TrainingDiverged
from trainer.ops.tf_ops import without_autograph
from trainer.options import TrainOptions
from trainer.training.checkpoint import Progress
from trainer.training.optimizers import copy_values, exported_weights, restore_values


class WaitMeter:
    """Sum of the seconds that steps waited for batches; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0

    def add(self, request_time: np.ndarray) -> np.int64:
        """Adds the wait for a batch that has just arrived; returns 0, because `numpy_function` needs a result.

        Args:
          request_time: `time.perf_counter` at the request for the batch, float64 scalar.
        """
        with self._lock:
            self._seconds += time.perf_counter() - float(request_time)
        return np.int64(0)

    def take(self) -> float:
        """Returns the seconds added since the previous call."""
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
        return seconds


@without_autograph
def measure_waits(dataset: tf.data.Dataset, meter: WaitMeter) -> tf.data.Dataset:
    """Returns the dataset with one more stage, which adds the wait for each element to a meter.

    No stage may follow: with a prefetch after it, the meter would measure the wait of the prefetch.
    """
    # A call of Python's clock takes about 20 us. `tf.timestamp` raises an error if deterministic ops are enabled.
    request_times = tf.data.Dataset.counter().map(lambda _: tf.numpy_function(_now, [], tf.float64))

    def add_wait(request_time: tf.Tensor, element: Any) -> Any:
        call = tf.numpy_function(meter.add, [request_time], tf.int64)
        with tf.control_dependencies([call]):  # else TensorFlow removes the call: its result is unused
            return tf.nest.map_structure(tf.identity, element, expand_composites=True)

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # else TensorFlow adds a prefetch as the last stage
    return tf.data.Dataset.zip((request_times, dataset)).map(add_wait).with_options(options)


def _now() -> np.float64:
    return np.float64(time.perf_counter())


INPUT_WAIT = "input_wait"
LEARNING_RATE = "learning_rate"
TRAIN_SECONDS = "train_seconds"
IMAGES_PER_SECOND = "images_per_second"
PRINTED_METRICS = ("loss", "accuracy", "auc", "val_loss", "val_accuracy", "val_auc")  # the history has all metrics
Logs = dict[str, float]


_TIMED_STEPS = 5  # number of steps whose mean duration gives the first forecast


class Clock(keras.callbacks.Callback):
    """Counts steps, measures the duration of each epoch without validation, and the share of input wait in it.

    It must be the first callback: it adds duration, images per second, share of input wait and learning rate to the
    logs of the epoch, which later callbacks read.

    Args:
      progress: state of the training, which this callback updates.
      meter: meter of the dataset that `fit` reads.
      epoch_images: images in all steps of an epoch.
      epoch_steps: steps of an epoch.
      options: options of the training.
      forecast: function of (seconds per step, seconds of a validation or None), called after five timed steps, and
        again at the end of that epoch, when the duration of its validation is known.
    """

    def __init__(
        self,
        progress: Progress,
        meter: WaitMeter,
        epoch_images: int,
        epoch_steps: int,
        options: TrainOptions,
        forecast: Callable[[float, float | None], object],
    ) -> None:
        super().__init__()
        self._progress = progress
        self._meter = meter
        self._epoch_images, self._epoch_steps = epoch_images, epoch_steps
        self._forecast, self._forecast_calls = forecast, 0
        self._epochs = options.epochs
        self._execution_steps = options.steps_per_execution
        self._is_first_execution = True  # since the start of `fit`; includes the time of compiling
        self._step_start = 0.0
        self._first_step = progress.step  # number of steps before the start of this process
        self._timed_steps, self._timed_seconds = 0, 0.0
        self._epoch = progress.step // epoch_steps
        self._loss = math.nan
        self._activity = ""  # name of the work between two steps, such as a validation; shown instead of the step
        self._validation_start = self._validation_seconds = 0.0

    def progress(self) -> system.Progress:
        """Returns the number of images in the finished steps of this process; the note is epoch, step and loss."""
        step = self._progress.step
        epoch_step = f"step {step - self._epoch * self._epoch_steps}/{self._epoch_steps}"
        note = f"epoch {self._epoch + 1}/{self._epochs}, {self._activity or epoch_step}"
        note += "" if math.isnan(self._loss) else f", loss {self._loss:.3f}"
        images = (step - self._first_step) * self._epoch_images // self._epoch_steps
        return system.Progress(images, note=note)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """See Keras."""
        self._activity, self._validation_start = "validating", time.monotonic()

    def on_test_end(self, logs: Logs | None = None) -> None:
        """See Keras."""
        self._activity, self._validation_seconds = "", time.monotonic() - self._validation_start

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """See Keras."""
        self._is_first_execution = True

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        self._epoch = epoch
        self._meter.take()  # discards the wait for a batch that Keras reads to find the shapes
        self._step_start = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Adds the time of the step. The step has ended on the device too, because Keras has read its loss."""
        progress, now = self._progress, time.monotonic()
        waited_seconds, seconds, self._step_start = self._meter.take(), now - self._step_start, now
        progress.step += self._execution_steps
        progress.train_seconds += seconds
        self._loss = (logs or {}).get("loss", math.nan)
        if not self._is_first_execution:
            progress.counted_seconds += seconds
            progress.waited_seconds += waited_seconds
            self._timed_steps += self._execution_steps
            self._timed_seconds += seconds
        self._is_first_execution = False
        if self._forecast_calls == 0 and self._timed_steps >= _TIMED_STEPS:
            self._call_forecast(None)
            self._step_start = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        assert logs is not None  # noqa: S101 - Keras passes them
        progress = self._progress
        logs[TRAIN_SECONDS] = progress.train_seconds
        logs[IMAGES_PER_SECOND] = self._epoch_images / progress.train_seconds
        logs[INPUT_WAIT] = progress.input_wait
        logs[LEARNING_RATE] = float(self.model.optimizer.learning_rate)
        print_line(epoch_line(epoch, self._epochs, logs))
        progress.train_seconds = progress.counted_seconds = progress.waited_seconds = 0.0
        if self._forecast_calls == 1:
            self._call_forecast(self._validation_seconds)

    def _call_forecast(self, validation_seconds: float | None) -> None:
        self._forecast_calls += 1
        self._activity = "timing smaller images"  # the first call of the forecast may do this
        self._forecast(self._timed_seconds / self._timed_steps, validation_seconds)
        self._activity = ""


def print_line(line: str) -> None:
    """Prints a line on standard error."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def epoch_line(epoch: int, epochs: int, logs: Mapping[str, float]) -> str:
    """Returns the results of an epoch as one line: metrics, images per second and the share of input wait."""
    metrics = [f"{name} {logs[name]:.4f}" for name in PRINTED_METRICS if name in logs]
    return "  ".join(
        [
            f"epoch {epoch + 1}/{epochs}",
            *metrics,
            f"{logs[IMAGES_PER_SECOND]:,.0f} images/s",
            f"waited for input {logs[INPUT_WAIT]:.1%}".replace("%", " %"),
        ]
    )


class FiniteLoss(keras.callbacks.Callback):
    """Ends a training when its loss is not finite: its weights are then NaN too, and remain NaN in later steps."""

    def __init__(self, progress: Progress, epochs: int) -> None:
        super().__init__()
        self._progress, self._epochs = progress, epochs
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """See Keras.

        Raises:
          TrainingDiverged: the loss is NaN or infinite.
        """
        self._check_is_finite("loss", logs or {})

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras.

        Raises:
          TrainingDiverged: the loss of the validation is NaN or infinite.
        """
        self._check_is_finite("val_loss", logs or {})

    def _check_is_finite(self, name: str, logs: Logs) -> None:
        value = float(logs.get(name, 0.0))
        if not math.isfinite(value):
            raise TrainingDiverged(
                f"{name} is {value} after step {self._progress.step:,}, in epoch {self._epoch + 1} of {self._epochs}; "
                "lower train.learning_rate, or set train.clip_norm"
            )


class Profile(keras.callbacks.Callback):
    """Profiles some consecutive steps for TensorBoard.

    The profiler keeps its events in memory until it stops and writes them, so only some steps are profiled.

    Args:
      progress: state that has the current step.
      window: first step, and the step after the last. The steps of one execution are all profiled, or none of them.
      directory: directory of the logs.
    """

    def __init__(self, progress: Progress, window: tuple[int, int], directory: str) -> None:
        super().__init__()
        self._progress, self._window, self._directory = progress, window, directory
        self._start_profiler, self._stop_profiler = _profiler()
        self._is_running = False

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        first_step, end_step = self._window
        if not self._is_running and first_step <= self._progress.step < end_step:
            self._start_profiler(self._directory)
            self._is_running = True

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        if self._is_running and self._progress.step >= self._window[1]:
            self._end_profile()

    def on_train_end(self, logs: Logs | None = None) -> None:
        """See Keras."""
        if self._is_running:
            self._end_profile()

    def _end_profile(self) -> None:
        self._stop_profiler()
        self._is_running = False


def _profiler() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """Returns the functions of the backend that start the profiler with a directory, and that stop it."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.profiler.start_trace, jax.profiler.stop_trace
    return tf.profiler.experimental.start, tf.profiler.experimental.stop


class AverageWeights(keras.callbacks.Callback):
    """Validates with the running averages of the weights, and restores the weights for training.

    Keras overwrites the weights with their average at the end of every `fit`. A training may call `fit` several times,
    so this callback restores the weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self._weights: list[np.ndarray] = []

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """See Keras."""
        self._weights = copy_values(self.model)
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)  # assigns the averages

    def on_test_end(self, logs: Logs | None = None) -> None:
        """See Keras."""
        restore_values(self.model, self._weights)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        self._weights = copy_values(self.model)  # Keras overwrites them before `on_train_end`

    def on_train_end(self, logs: Logs | None = None) -> None:
        """See Keras."""
        restore_values(self.model, self._weights)


class BestEpoch(keras.callbacks.Callback):
    """Compares epochs by the monitored metric, stores the weights of the best one, and stops the training early.

    Attributes:
      best_weights: `exported_weights` of the best epoch; empty unless `options.keep` is `best`.
    """

    def __init__(self, progress: Progress, options: TrainOptions, best_weights: list[np.ndarray]) -> None:
        super().__init__()
        self._progress, self._options = progress, options
        self.best_weights = best_weights

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras.

        Raises:
          OptionError: the monitored metric does not exist.
        """
        progress, options = self._progress, self._options
        value = monitored_value(options, logs or {})
        if is_better(value, progress.best, options):
            progress.best, progress.best_epoch, progress.stale = value, epoch, 0
            if options.keep == "best":
                self.best_weights = exported_weights(self.model)
        else:
            progress.stale += 1
        if options.patience and progress.stale >= options.patience:
            progress.stopped = True
            self.model.stop_training = True


def check_monitor(options: TrainOptions, metrics: Collection[str]) -> None:
    """Raises `OptionError` if the options need a monitored metric that is not in `metrics`."""
    if options.keep == "best" or options.patience:
        monitored_value(options, dict.fromkeys(metrics, 0.0))


def monitored_value(options: TrainOptions, logs: Mapping[str, float]) -> float:
    """Returns the value of the monitored metric in the logs of an epoch.

    Raises:
      OptionError: the metric does not exist.
    """
    pessimistic_bound = "_high" if "loss" in options.monitor else "_low"
    name = options.monitor + (pessimistic_bound if options.choose_by == "lower_bound" else "")
    if name not in logs:
        raise OptionError(unknown("metric", name, sorted(logs), "monitor="))
    return float(logs[name])


def is_better(value: float, best: float | None, options: TrainOptions) -> bool:
    """Returns whether a value is better than `best` by more than `min_delta`: always for None, never for NaN."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    gain = best - value if "loss" in options.monitor else value - best
    return gain > options.min_delta
