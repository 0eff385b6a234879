"""What happens around the steps of `fit`: clocks, the line of each epoch, the history, the profile.

No callback touches `self.model` after a step unless it must: on the JAX backend that copies all state back into it.

How long a step waits for its input is measured where it waits: between asking for a batch and getting it. `fit` asks
from inside a compiled loop, often several times without a return to Python, so a clock around `next()` would see none
of it. The clocks are therefore in the dataset: its last stage zips the batches with the time of asking. `zip` asks its
inputs in order, the clock first; the batch comes when it comes, and then the time is taken again. It is the same
whether TensorFlow, JAX or a person asks, one batch at a time or many.

In two cases the figure is an upper bound, because a batch is asked for before the step that takes it could begin: under
a strategy of several devices, and on an accelerator with `steps_per_execution` above 1.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import keras
import numpy as np
import tensorflow as tf

from beam_jobs.errors import TrainingDiverged
from trainer.ops.tf_ops import without_autograph
from trainer.options import TrainOptions
from trainer.training.checkpoint import Progress


class WaitMeter:
    """Adds up seconds; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0

    def add(self, asked: np.ndarray) -> np.int64:
        """Counts a batch that has just come.

        Args:
          asked: when it was asked for, by `time.perf_counter`; float64 scalar.
        """
        with self._lock:
            self._seconds += time.perf_counter() - float(asked)
        return np.int64(0)

    def take(self) -> float:
        """Returns the seconds since it was last asked."""
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
        return seconds


@without_autograph
def timed(dataset: tf.data.Dataset, meter: WaitMeter) -> tf.data.Dataset:
    """Returns the same dataset, which tells a meter how long each of its elements was waited for.

    It must be the last stage: a prefetch behind it would wait in place of the training.
    """
    # Python's clock, at some 20 us a batch: TensorFlow refuses its own when ops have to be deterministic.
    clock = tf.data.Dataset.counter().map(lambda _: tf.numpy_function(_now, [], tf.float64))

    def stamp(asked: tf.Tensor, element: Any) -> Any:
        recorded = tf.numpy_function(meter.add, [asked], tf.int64)
        with tf.control_dependencies([recorded]):  # or the call is pruned: nothing needs its result
            return tf.nest.map_structure(tf.identity, element, expand_composites=True)

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.zip((clock, dataset)).map(stamp).with_options(options)


def _now() -> np.float64:
    return np.float64(time.perf_counter())


INPUT_WAIT = "input_wait"
TRAIN_SECONDS = "train_seconds"
IMAGES_PER_SECOND = "images_per_second"
PRINTED_METRICS = ("loss", "accuracy", "auc", "val_loss", "val_accuracy", "val_auc")  # all others are in the history
Logs = dict[str, float]


class Clock(keras.callbacks.Callback):
    """Counts steps, times the training part of each epoch, and tells how much of it was waiting for input.

    It must come first: it adds `train_seconds`, `images_per_second` and `input_wait` to the figures of the epoch, which
    the others then see. Validation starts inside Keras' epoch but is other work.

    Args:
      progress: where it counts.
      meter: of the dataset that `fit` got.
      epoch_images: images in all steps of an epoch.
      options: of training.
      out: where the line of each epoch goes; standard output by default.
    """

    def __init__(
        self,
        progress: Progress,
        meter: WaitMeter,
        epoch_images: int,
        options: TrainOptions,
        out: TextIO | None = None,
    ) -> None:
        super().__init__()
        self._progress = progress
        self._meter = meter
        self._epoch_images = epoch_images
        self._epochs = options.epochs
        self._steps = options.steps_per_execution
        self._out = out
        self._is_first = True
        self._mark = 0.0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """See Keras."""
        self._is_first = True

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        self._meter.take()  # Keras may have drawn a batch to see what batches are like
        self._mark = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Keras has read the loss by now, so the step is over on the device too."""
        progress, now = self._progress, time.monotonic()
        waited, seconds, self._mark = self._meter.take(), now - self._mark, now
        progress.step += self._steps
        progress.train_seconds += seconds
        if not self._is_first:
            progress.counted_seconds += seconds
            progress.waited_seconds += waited
        self._is_first = False

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        assert logs is not None  # noqa: S101 - Keras passes them
        progress = self._progress
        logs[TRAIN_SECONDS] = progress.train_seconds
        logs[IMAGES_PER_SECOND] = self._epoch_images / progress.train_seconds
        logs[INPUT_WAIT] = progress.input_wait
        print(epoch_line(epoch, self._epochs, logs), file=self._out or sys.stderr, flush=True)
        progress.begin_epoch()


def epoch_line(epoch: int, epochs: int, logs: Mapping[str, float]) -> str:
    """Returns an epoch as one line: losses and accuracies, images a second and the wait for input."""
    figures = [f"{name} {logs[name]:.4f}" for name in PRINTED_METRICS if name in logs]
    return "  ".join(
        [
            f"epoch {epoch + 1}/{epochs}",
            *figures,
            f"{logs[IMAGES_PER_SECOND]:,.0f} images/s",
            f"waited for input {logs[INPUT_WAIT]:.1%}".replace("%", " %"),
        ]
    )


class Finite(keras.callbacks.Callback):
    """Ends a training whose loss is not a number: its weights are not, and no later step changes that."""

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


class History(keras.callbacks.Callback):
    """Writes the figures of each epoch into the progress; comes after all that change them."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        self._progress.add_epoch(logs or {})


class Profile(keras.callbacks.Callback):
    """Profiles a window of steps for TensorBoard.

    A profiler that runs to the end keeps all it saw in memory until then; a window is written as soon as it ends.

    Args:
      progress: tells the step.
      window: first step and the one after the last; an execution of several steps is profiled as a whole.
      start: begins to record; takes the directory of the logs.
      stop: writes what was recorded.
      directory: of the logs.
    """

    def __init__(
        self,
        progress: Progress,
        window: tuple[int, int],
        directory: str,
        start: Callable[[str], Any] | None = None,
        stop: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__()
        self._progress = progress
        self._window = window
        self._directory = directory
        self._start, self._stop = (start, stop) if start and stop else _profiler()
        self._runs = False

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        first, end = self._window
        if not self._runs and first <= self._progress.step < end:
            self._start(self._directory)
            self._runs = True

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        if self._runs and self._progress.step >= self._window[1]:
            self._end()

    def on_train_end(self, logs: Logs | None = None) -> None:
        """See Keras."""
        if self._runs:
            self._end()

    def _end(self) -> None:
        self._stop()
        self._runs = False


def _profiler() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    if keras.backend.backend() == "jax":
        import jax

        return jax.profiler.start_trace, jax.profiler.stop_trace
    import tensorflow as tf

    return tf.profiler.experimental.start, tf.profiler.experimental.stop
