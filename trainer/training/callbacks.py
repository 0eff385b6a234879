"""Callbacks of `fit`: clocks of steps and input waits, the lines of epochs, the best epoch, early stopping, averages.

Callbacks access `self.model` after a step only where they must: on the JAX backend this copies all state into it.

The input wait of a step is the time between the request for a batch and its delivery. `fit` requests batches from
inside a compiled loop, often several without a return to Python, so a clock around `next()` cannot measure it. The
dataset therefore measures it: its last stage zips the batches with the time of the request. `zip` reads its inputs in
order, the clock first; the stage reads the time again when the batch has arrived. This is independent of the consumer.

In two cases the figure is an upper bound, because a batch is requested before the step that consumes it could begin:
under a strategy of several devices, and on an accelerator with `steps_per_execution` above 1.
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
        """Adds the wait for a batch that has just arrived.

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
def timed(dataset: tf.data.Dataset, meter: WaitMeter) -> tf.data.Dataset:
    """Returns the same dataset, which adds the wait for each element to a meter.

    It must be the last stage: with a prefetch after it, the meter would measure the wait of the prefetch.
    """
    # Python's clock, at some 20 us a batch: TensorFlow refuses its own when ops have to be deterministic.
    clock = tf.data.Dataset.counter().map(lambda _: tf.numpy_function(_now, [], tf.float64))

    def stamp(request_time: tf.Tensor, element: Any) -> Any:
        add_wait = tf.numpy_function(meter.add, [request_time], tf.int64)
        with tf.control_dependencies([add_wait]):  # without it the call is pruned: nothing needs its result
            return tf.nest.map_structure(tf.identity, element, expand_composites=True)

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.zip((clock, dataset)).map(stamp).with_options(options)


def _now() -> np.float64:
    return np.float64(time.perf_counter())


INPUT_WAIT = "input_wait"
LEARNING_RATE = "learning_rate"
TRAIN_SECONDS = "train_seconds"
IMAGES_PER_SECOND = "images_per_second"
PRINTED_METRICS = ("loss", "accuracy", "auc", "val_loss", "val_accuracy", "val_auc")  # the history has all figures
Logs = dict[str, float]


_TIMED_STEPS = 5  # on which the forecast is based


class Clock(keras.callbacks.Callback):
    """Counts steps, times the training part of each epoch without validation, and measures its share of input wait.

    It must be the first callback: it adds durations, the share of input wait and the learning rate to the figures of
    the epoch for the others.

    Args:
      progress: state that it updates.
      meter: meter of the dataset that `fit` reads.
      epoch_images: images in all steps of an epoch.
      epoch_steps: steps of an epoch.
      options: options of the training.
      forecast: takes the seconds of a step once five were timed, and again at the end of that epoch, with the seconds
        of its validation.
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
        self._epoch_images = epoch_images
        self._epoch_steps = epoch_steps
        self._forecast, self._forecasts = forecast, 0
        self._epochs = options.epochs
        self._steps = options.steps_per_execution
        self._is_first = True
        self._mark = 0.0
        self._first_step = progress.step  # of this process
        self._timed_steps = 0
        self._timed_seconds = 0.0
        self._epoch = progress.step // epoch_steps
        self._loss = math.nan
        self._activity = ""  # what is done between two steps
        self._validation_mark = self._validation_seconds = 0.0

    def done(self) -> system.Progress:
        """Returns the number of images of the finished steps of this process, and epoch, step and loss as a note."""
        step = self._progress.step
        of_epoch = f"step {step - self._epoch * self._epoch_steps}/{self._epoch_steps}"
        note = f"epoch {self._epoch + 1}/{self._epochs}, {self._activity or of_epoch}"
        note += "" if math.isnan(self._loss) else f", loss {self._loss:.3f}"
        images = (step - self._first_step) * self._epoch_images // self._epoch_steps
        return system.Progress(images, note=note)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """See Keras."""
        self._activity, self._validation_mark = "validating", time.monotonic()

    def on_test_end(self, logs: Logs | None = None) -> None:
        """See Keras."""
        self._activity, self._validation_seconds = "", time.monotonic() - self._validation_mark

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """See Keras."""
        self._is_first = True

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        self._epoch = epoch
        self._meter.take()  # Keras may have drawn a batch to see what batches are like
        self._mark = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Adds the time of the step; Keras has read the loss, so the step has ended on the device too."""
        progress, now = self._progress, time.monotonic()
        waited, seconds, self._mark = self._meter.take(), now - self._mark, now
        progress.step += self._steps
        progress.train_seconds += seconds
        self._loss = (logs or {}).get("loss", math.nan)
        if not self._is_first:
            progress.counted_seconds += seconds
            progress.waited_seconds += waited
            self._timed_steps += self._steps
            self._timed_seconds += seconds
        self._is_first = False
        if self._forecasts == 0 and self._timed_steps >= _TIMED_STEPS:
            self._give_forecast(None)
            self._mark = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        assert logs is not None  # noqa: S101 - Keras passes them
        progress = self._progress
        logs[TRAIN_SECONDS] = progress.train_seconds
        logs[IMAGES_PER_SECOND] = self._epoch_images / progress.train_seconds
        logs[INPUT_WAIT] = progress.input_wait
        logs[LEARNING_RATE] = float(self.model.optimizer.learning_rate)
        say(epoch_line(epoch, self._epochs, logs))
        progress.train_seconds = progress.counted_seconds = progress.waited_seconds = 0.0
        if self._forecasts == 1:
            self._give_forecast(self._validation_seconds)

    def _give_forecast(self, validation_seconds: float | None) -> None:
        self._forecasts += 1
        self._activity = "timing smaller images"
        self._forecast(self._timed_seconds / self._timed_steps, validation_seconds)
        self._activity = ""


def say(line: str) -> None:
    """Prints a line of progress on standard error."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def epoch_line(epoch: int, epochs: int, logs: Mapping[str, float]) -> str:
    """Returns an epoch as one line: losses and accuracies, images per second and the share of input wait."""
    figures = [f"{name} {logs[name]:.4f}" for name in PRINTED_METRICS if name in logs]
    return "  ".join(
        [
            f"epoch {epoch + 1}/{epochs}",
            *figures,
            f"{logs[IMAGES_PER_SECOND]:,.0f} images/s",
            f"waited for input {logs[INPUT_WAIT]:.1%}".replace("%", " %"),
        ]
    )


class FiniteLoss(keras.callbacks.Callback):
    """Ends a training whose loss is not finite: its weights are NaN too, and no later step changes that."""

    def __init__(self, progress: Progress, epochs: int) -> None:
        super().__init__()
        self._progress = progress
        self._epochs = epochs
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """See Keras.

        Raises:
          TrainingDiverged: the loss is NaN or infinite.
        """
        self._check("loss", logs or {})

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras.

        Raises:
          TrainingDiverged: the loss of the validation is NaN or infinite.
        """
        self._check("val_loss", logs or {})

    def _check(self, name: str, logs: Logs) -> None:
        value = float(logs.get(name, 0.0))
        if not math.isfinite(value):
            raise TrainingDiverged(
                f"{name} is {value} after step {self._progress.step:,}, in epoch {self._epoch + 1} of {self._epochs}; "
                "lower train.learning_rate, or set train.clip_norm"
            )


class Profile(keras.callbacks.Callback):
    """Profiles a window of steps for TensorBoard.

    A profiler keeps its events in memory until it stops; a window bounds them and is written when it ends.

    Args:
      progress: state that has the current step.
      window: first step and the one after the last; an execution of several steps is profiled completely or not at all.
      directory: directory of the logs.
    """

    def __init__(self, progress: Progress, window: tuple[int, int], directory: str) -> None:
        super().__init__()
        self._progress = progress
        self._window = window
        self._directory = directory
        self._start, self._stop = _profiler()
        self._is_running = False

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        first, end = self._window
        if not self._is_running and first <= self._progress.step < end:
            self._start(self._directory)
            self._is_running = True

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        if self._is_running and self._progress.step >= self._window[1]:
            self._end()

    def on_train_end(self, logs: Logs | None = None) -> None:
        """See Keras."""
        if self._is_running:
            self._end()

    def _end(self) -> None:
        self._stop()
        self._is_running = False


def _profiler() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    if keras.backend.backend() == "jax":
        import jax

        return jax.profiler.start_trace, jax.profiler.stop_trace
    return tf.profiler.experimental.start, tf.profiler.experimental.stop


class AverageWeights(keras.callbacks.Callback):
    """Validates with the running average of the weights, and trains with the weights themselves.

    Keras overwrites the weights with their average at the end of every `fit`. A training may have several calls, so
    this callback restores the weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self._weights: list[np.ndarray] = []

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """See Keras."""
        self._weights = copy_values(self.model)
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)

    def on_test_end(self, logs: Logs | None = None) -> None:
        """See Keras."""
        restore_values(self.model, self._weights)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        self._weights = copy_values(self.model)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """See Keras."""
        restore_values(self.model, self._weights)


class BestEpoch(keras.callbacks.Callback):
    """Compares epochs by the monitored figure: stores the weights of the best, and stops a training without progress.

    Attributes:
      best_weights: `exported_weights` of the best epoch; empty unless `options.keep` is `best`.
    """

    def __init__(self, progress: Progress, options: TrainOptions, best_weights: list[np.ndarray]) -> None:
        super().__init__()
        self._progress = progress
        self._options = options
        self.best_weights = best_weights

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras.

        Raises:
          OptionError: the monitored figure does not exist.
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


def check_monitor(options: TrainOptions, figures: Collection[str]) -> None:
    """Raises `OptionError` if the options need a monitored figure that is not in `figures`."""
    if options.keep == "best" or options.patience:
        monitored_value(options, dict.fromkeys(figures, 0.0))


def monitored_value(options: TrainOptions, logs: Mapping[str, float]) -> float:
    """Returns the value of the monitored figure.

    Raises:
      OptionError: the figure does not exist.
    """
    worse_end = "_high" if "loss" in options.monitor else "_low"
    name = options.monitor + (worse_end if options.choose_by == "lower_bound" else "")
    if name not in logs:
        raise OptionError(unknown("figure", name, sorted(logs), "monitor="))
    return float(logs[name])


def is_better(value: float, best: float | None, options: TrainOptions) -> bool:
    """Returns whether a value is better than the best one by more than `min_delta`; False for NaN."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    gain = best - value if "loss" in options.monitor else value - best
    return gain > options.min_delta
