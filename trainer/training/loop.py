"""The training loop: `keras.Model.fit` on any backend, with one call per segment that resuming and unfreezing need.

Only the input dataset is TensorFlow's; Keras compiles and runs the steps on the devices of its backend. A signal to
stop takes effect between two steps, after a checkpoint.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import keras
import numpy as np

from beam_jobs.common import system
from beam_jobs.common.strings import clock_time
from beam_jobs.errors import TrainingDiverged
from trainer.input.position import Position
from trainer.options import TrainOptions
from trainer.training import transfer
from trainer.training.callbacks import AverageWeights, BestEpoch, Clock, FiniteLoss, Profile, WaitMeter, say
from trainer.training.checkpoint import Checkpoint, Checkpoints, Progress, assign, count_bytes, to_arrays
from trainer.training.fit import fit
from trainer.training.optimizers import exported_weights, make_optimizer
from trainer.training.strategy import scope, strategy_host

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHORT_S = 60.0  # of a training without a forecast
_SMALL_PART = 0.15  # of a training, which timing smaller images may take at most
_WORTH_SAVING = 0.2  # of a step


class Interruption:
    """Defers the first signal. A second one takes effect at once."""

    def __init__(self) -> None:
        self._number = 0
        self._handlers: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return bool(self._number)

    def install_handlers(self) -> None:
        """Installs a handler for each signal that is not ignored."""
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._handle)

    def restore_handlers(self) -> None:
        """Restores the previous handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def deliver(self) -> None:
        """Raises the deferred signal with its previous handler.

        Raises:
          KeyboardInterrupt: that handler did not end the process.
        """
        self.restore_handlers()
        signal.raise_signal(self._number)
        raise KeyboardInterrupt

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._number:
            self._number = number
            self.deliver()
        self._number = number


@contextmanager
def deferred_signals() -> Iterator[Interruption]:
    """Defers signals during its block; does nothing outside the main thread, the only one that receives signals."""
    interruption = Interruption()
    if threading.current_thread() is threading.main_thread():
        interruption.install_handlers()
    try:
        yield interruption
    finally:
        interruption.restore_handlers()


_JIT = {"auto": "auto", "always": True, "never": False}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model and its data.

    Attributes:
      model: model that `fit` trains; not compiled.
      core: the part of the model whose layers may be frozen; the model itself, unless it is wrapped.
      loss: loss of the model.
      metrics: creates the metrics of the model: Keras does not reset the sums of a metric that is compiled again.
      train: (position, meter) -> endless batches from the position, as `fit` takes them.
      validate: epoch -> figures of the validation split; None for no validation.
      steps: steps per epoch.
      batch_size: images per step, over all hosts.
      epoch_records: images in one pass over the split.
      log_dir: directory of the logs for TensorBoard; empty for none.
      checkpoints: storage of the checkpoints; None for none.
      strategy: strategy in whose scope the model was built; None for one device.
      writes: whether this process writes checkpoints and logs; of several workers, one does.
      callbacks: additional Keras callbacks.
      validation_steps: steps of a validation.
      time_smaller: returns the side of smaller images, in pixels, and the seconds of a step that they save; None where
        that was not measured.
    """

    model: keras.Model
    core: keras.Model
    loss: keras.losses.Loss
    metrics: Callable[[], Sequence[keras.metrics.Metric]]
    train: Callable[[Position, WaitMeter], Any]
    validate: Callable[[int], Mapping[str, float]] | None = None
    steps: int
    batch_size: int
    epoch_records: int
    log_dir: str = ""
    checkpoints: Checkpoints | None = None
    strategy: Any = None
    writes: bool = True
    callbacks: Sequence[keras.callbacks.Callback] = field(default_factory=tuple)
    validation_steps: int = 0
    time_smaller: Callable[[], tuple[int, float] | None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One call of `fit`.

    Attributes:
      first_step: first step, counted from the beginning of the training.
      epoch: first epoch, from 0.
      end: the epoch after the last.
      steps: steps of each of its epochs.
    """

    first_step: int
    epoch: int
    end: int
    steps: int


def fit_steps(records: int, options: TrainOptions, batch_size: int) -> tuple[int, TrainOptions]:
    """Returns the steps per epoch, and options whose `steps_per_execution` divides them.

    The next epoch begins with the remaining records.
    """
    steps = max(1, records // batch_size)
    execution_steps = min(options.steps_per_execution, steps)
    return steps - steps % execution_steps, replace(options, steps_per_execution=execution_steps)


def segments(step: int, steps: int, options: TrainOptions) -> Iterator[Segment]:
    """Yields the remaining calls of `fit` after `step` steps.

    The rest of an interrupted epoch is one segment; unfreezing divides the other epochs into two.
    """
    epoch, epoch_step = divmod(step, steps)
    if epoch_step:
        yield Segment(first_step=step, epoch=epoch, end=epoch + 1, steps=steps - epoch_step)
        epoch += 1
    for end in (options.unfreeze_epoch, options.epochs):
        if epoch < end:
            yield Segment(first_step=epoch * steps, epoch=epoch, end=end, steps=steps)
            epoch = end


def train(task: Task, options: TrainOptions) -> Progress:
    """Trains a model, from its newest checkpoint if there is one, and assigns it the weights to export.

    SIGINT and SIGTERM take effect after the current step and its checkpoint.

    Args:
      task: model and data; `task.steps` is a multiple of `options.steps_per_execution`.
      options: options of the training.

    Returns:
      the final state of the training, with the history and the best epoch.

    Raises:
      OptionError: the monitored figure does not exist, or the checkpoint is of another model.
      TrainingDiverged: the loss is NaN or infinite and there is no best epoch to export; with one, its weights are
        assigned, and `diverged` of the result is set.
      DiskError: a local disk cannot store the checkpoints; raised before the first step where it is too small.
    """
    with deferred_signals() as interruption, scope(task.strategy):
        return _Training(task, options, interruption).run()


class _Training:
    """The state of `train`."""

    def __init__(self, task: Task, options: TrainOptions, interruption: Interruption) -> None:
        self._task = task
        self._options = options
        self._interruption = interruption
        self._meter = WaitMeter()
        checkpoint = task.checkpoints.latest() if task.checkpoints else None
        self._checkpoint: Checkpoint | None = checkpoint
        self._progress = Progress.from_json(checkpoint.state) if checkpoint else Progress()
        best = _group(checkpoint, "best") if checkpoint else {}
        self._best_epoch = BestEpoch(self._progress, options, list(best.values()))
        self._phase = -1  # first epoch of the phase that the model is compiled for
        epoch_images = task.steps * task.batch_size
        self._clock = Clock(self._progress, self._meter, epoch_images, task.steps, options, self._forecast)

    def run(self) -> Progress:
        task, progress = self._task, self._progress
        if self._checkpoint:
            epoch, step = divmod(progress.step, task.steps)
            place = f"epoch {epoch + 1} of {self._options.epochs}, step {step + 1} of {task.steps}"
            is_done = progress.stopped or epoch >= self._options.epochs
            place = "the end of the training" if is_done else place
            _log.warning("continuing at %s, from %s", place, task.checkpoints and task.checkpoints.directory)
            self._restore(self._checkpoint)
        steps = self._options.epochs * task.steps - progress.step
        with system.watch.get()("training", system.Progress(max(0, steps) * task.batch_size), self._clock.done):
            self._fit_segments()
        self._assign_final_weights()
        return progress

    def _fit_segments(self) -> None:
        for segment in segments(self._progress.step, self._task.steps, self._options):
            if self._progress.stopped:
                break
            try:
                self._fit(segment)
            except TrainingDiverged as error:
                if not self._best_epoch.best_weights:
                    raise
                self._progress.diverged = str(error)
                break

    def _forecast(self, step_seconds: float, validation_seconds: float | None) -> None:
        """Prints how long the training will take if it is minutes, and first how long with smaller images."""
        task, is_first = self._task, validation_seconds is None
        if validation_seconds is None:
            # A validation has no backward pass, which takes about two thirds of a step.
            validation_seconds = step_seconds * task.validation_steps / 3 if task.validate else 0.0
        seconds = (self._options.epochs * task.steps - self._progress.step) * step_seconds
        seconds += (self._options.epochs - self._progress.step // task.steps) * validation_seconds
        if seconds <= _SHORT_S:
            return
        text = f"about {clock_time(seconds)} of training left at {task.batch_size / step_seconds:,.1f} images/s"
        # It compiles two models and runs few images: that takes less than the steps so far, of which one compiled.
        is_cheap = self._progress.train_seconds <= _SMALL_PART * seconds
        smaller = task.time_smaller() if is_first and is_cheap else None
        if smaller:
            side, saved = smaller
            if saved > _WORTH_SAVING * step_seconds:
                less = seconds * max(0.0, 1 - saved / step_seconds)
                text += f"; about {clock_time(less)} with input.image_side_px={side}"
        say(text)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Compiles the model for the epoch of the last step and restores all variables."""
        model, progress = self._task.model, self._progress
        self._compile(max(0, progress.step - 1) // self._task.steps)
        assert self._task.checkpoints  # noqa: S101 - the checkpoint is one of them
        directory = self._task.checkpoints.directory
        assign(_state(model), checkpoint.arrays, "model", directory)
        assign(model.optimizer.variables, checkpoint.arrays, "optimizer", directory)

    def _compile(self, epoch: int) -> None:
        """Freezes the layers and compiles the model with the optimizer for the phase that an epoch belongs to."""
        task, options = self._task, self._options
        phase = options.unfreeze_epoch if epoch >= options.unfreeze_epoch else 0
        if phase == self._phase:
            return
        # It depends on the number of the epoch alone, so that a resumed training has the same trainable variables.
        if options.frozen and epoch < (options.unfreeze_epoch or options.epochs):
            transfer.freeze(task.core)
        elif options.frozen:
            transfer.unfreeze(task.core, options.unfreeze_layers)
        task.model.compile(
            optimizer=make_optimizer(options, task.steps, phase * task.steps),
            loss=task.loss,
            # Weighted by the weight column and by `valid`, which is 0 for padding.
            weighted_metrics=list(task.metrics()),
            jit_compile=_JIT[options.jit],
            steps_per_execution=options.steps_per_execution,
        )
        task.model.optimizer.build(task.model.trainable_variables)
        self._phase = phase

    def _fit(self, segment: Segment) -> None:
        task = self._task
        self._compile(segment.epoch)
        self._check_room()
        start = Position.after(segment.first_step * task.batch_size, task.epoch_records)
        batches = task.train(start, self._meter)
        if segment.first_step % task.steps and not task.strategy:
            # The sums of the metrics, which `_RestoreMetrics` restores, exist only after Keras has evaluated a batch.
            task.model.evaluate(batches, steps=1, verbose=0)
        fit(
            task.strategy,
            task.model,
            batches,
            epochs=range(segment.epoch, segment.end),
            steps_per_epoch=segment.steps,
            validation=self._validate if task.validate else None,
            callbacks=self._callbacks(),
        )

    def _check_room(self) -> None:
        """Checks that the disk has room for the remaining checkpoints."""
        task, model, options = self._task, self._task.model, self._options
        if not task.checkpoints or not task.writes:
            return
        size = count_bytes(_state(model)) + count_bytes(model.optimizer.variables)
        size += count_bytes(model.weights) if options.keep == "best" else 0
        remaining_steps = options.epochs * task.steps - self._progress.step
        within_epochs = remaining_steps // options.checkpoint_steps if options.checkpoint_steps else 0
        task.checkpoints.check_room(size, math.ceil(remaining_steps / task.steps) + within_epochs)

    def _validate(self) -> Mapping[str, float]:
        assert self._task.validate  # noqa: S101 - `_fit` checks it
        return self._task.validate(self._progress.step // self._task.steps - 1)

    def _callbacks(self) -> list[keras.callbacks.Callback]:
        """Returns the callbacks in the order of their data: those that change figures, read them, write them."""
        task, options, progress = self._task, self._options, self._progress
        unfinished, self._checkpoint = self._checkpoint, None  # only the first epoch continues one
        callbacks: list[keras.callbacks.Callback] = [
            _RestoreMetrics(unfinished),
            self._clock,
            FiniteLoss(progress, options.epochs),
        ]
        if options.ema:
            callbacks.append(AverageWeights())
        if options.keep == "best" or options.patience:
            callbacks.append(self._best_epoch)
        callbacks.append(keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: progress.add_epoch(logs or {})))
        if task.log_dir and task.writes:
            callbacks.append(keras.callbacks.TensorBoard(task.log_dir, write_graph=False))
            if options.profile_window:
                callbacks.append(Profile(progress, options.profile_window, task.log_dir))
        return [*callbacks, *task.callbacks, _SaveCheckpoint(self)]

    def _assign_final_weights(self) -> None:
        model = self._task.model
        best = self._best_epoch.best_weights if self._options.keep == "best" else []
        weights = best or exported_weights(model)
        for variable, value in zip(model.weights, weights, strict=True):
            variable.assign(value)

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether a checkpoint must follow the step that has just ended.

        It is False for the last step of an epoch, whose checkpoint follows the validation, also after a signal.
        """
        interval, step = self._options.checkpoint_steps, self._progress.step
        previous_step = step - self._options.steps_per_execution
        is_due = self._interruption.requested or bool(interval and step // interval > previous_step // interval)
        return is_due and step % self._task.steps != 0

    def save(self) -> None:
        task, model, step = self._task, self._task.model, self._progress.step
        if not task.checkpoints or not task.writes:
            return
        arrays = to_arrays(_state(model), "model") | to_arrays(model.optimizer.variables, "optimizer")
        if step % task.steps and strategy_host(task.strategy).count == 1:
            # Only all workers together can read the sums of their metrics, and one worker writes.
            arrays |= to_arrays(model.metrics_variables, "metrics")
        arrays |= {f"best/{index:05d}": value for index, value in enumerate(self._best_epoch.best_weights)}
        position = Position.after(step * task.batch_size, task.epoch_records)
        task.checkpoints.save(step, Checkpoint(arrays=arrays, state=self._progress.to_json(), position=position))

    def stop_if_requested(self) -> None:
        """Delivers a deferred signal."""
        if self._interruption.requested:
            self._interruption.deliver()


class _SaveCheckpoint(keras.callbacks.Callback):
    """Writes checkpoints; it must be the last callback, because the others change the state."""

    def __init__(self, training: _Training) -> None:
        super().__init__()
        self._training = training

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if self._training.checkpoint_is_due:
            _ = self.model  # copies the state of the JAX backend into the variables
            self._training.save()
            self._training.stop_if_requested()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._training.save()
        self._training.stop_if_requested()


class _RestoreMetrics(keras.callbacks.Callback):
    """Restores the sums of the metrics from the checkpoint of an unfinished epoch."""

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        super().__init__()
        self._arrays = _group(checkpoint, "metrics") if checkpoint else {}

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if self._arrays:
            assign(self.model.metrics_variables, self._arrays, "metrics")
        self._arrays = {}


def _group(checkpoint: Checkpoint, group: str) -> dict[str, np.ndarray]:
    return {name: value for name, value in checkpoint.arrays.items() if name.startswith(f"{group}/")}


def _state(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables without those of metrics and optimizer: weights, statistics, random generator states."""
    others = {id(variable) for variable in [*model.metrics_variables, *model.optimizer.variables]}
    return [variable for variable in model.variables if id(variable) not in others]
