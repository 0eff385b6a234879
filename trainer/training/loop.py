"""The training loop: `keras.Model.fit` on any backend, with several calls if a training is resumed or unfreezes layers.

Only the input dataset belongs to TensorFlow; Keras compiles and runs the steps on the devices of its backend. A signal
to stop takes effect between two steps, after a checkpoint.
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
from trainer.training.callbacks import AverageWeights, BestEpoch, Clock, FiniteLoss, Profile, WaitMeter, print_line
from trainer.training.checkpoint import Checkpoint, Checkpoints, Progress, assign, count_bytes, to_arrays
from trainer.training.fit import fit
from trainer.training.optimizers import exported_weights, make_optimizer
from trainer.training.strategy import scope, strategy_host

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NO_FORECAST_S = 60.0  # a forecast is printed only if the remaining training takes longer
_MAX_TIMING_SHARE = 0.15  # largest share of the remaining time that timing smaller images may take
_MIN_SAVED_SHARE = 0.2  # least share of the duration of a step that smaller images must save to be recommended


class Interruption:
    """Defers the first signal to stop. A second signal takes effect at once."""

    def __init__(self) -> None:
        self._deferred_number = 0  # number of the deferred signal; 0 before a signal
        self._handlers: dict[signal.Signals, Any] = {}

    @property
    def is_requested(self) -> bool:
        """Whether a signal has arrived."""
        return bool(self._deferred_number)

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
          KeyboardInterrupt: the previous handler did not end the process.
        """
        self.restore_handlers()
        signal.raise_signal(self._deferred_number)
        raise KeyboardInterrupt

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._deferred_number:  # this is the second signal
            self._deferred_number = number
            self.deliver()
        self._deferred_number = number


@contextmanager
def deferred_signals() -> Iterator[Interruption]:
    """Defers signals during its block. Has an effect only in the main thread, which receives all signals."""
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
    """The model and data of a training.

    Attributes:
      model: model that `fit` trains; not compiled.
      core: part of the model whose layers may be frozen: the model without its device ops, if it has any.
      loss: loss of the model.
      metrics: creates new metrics for each `compile`, because Keras does not reset the sums of a reused metric.
      train: (position, meter) -> endless batches from the position, the argument `data` of `fit`.
      validate: epoch from 0 -> metrics of the validation split; None for no validation.
      steps: steps per epoch.
      batch_size: images per step, over all hosts.
      epoch_records: images in one pass over the split.
      log_dir: directory of the logs for TensorBoard; empty for none.
      checkpoints: storage of the checkpoints; None for no checkpoints.
      strategy: strategy in whose scope the model was built; None for one device.
      writes: whether this process writes checkpoints and logs; only one of several workers does.
      callbacks: additional Keras callbacks.
      validation_steps: steps of a validation.
      time_smaller: measures steps with smaller images; returns the side of these images, in pixels, and the seconds
        that they save per step, or None if nothing was measured.
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
      end: epoch after the last epoch of the call.
      steps: number of steps of each epoch of the call.
    """

    first_step: int
    epoch: int
    end: int
    steps: int


def fit_steps(records: int, options: TrainOptions, batch_size: int) -> tuple[int, TrainOptions]:
    """Returns the number of steps per epoch, and the options with a `steps_per_execution` that divides it.

    Records beyond the last step of an epoch are the first records of the next epoch.
    """
    steps = max(1, records // batch_size)
    execution_steps = min(options.steps_per_execution, steps)
    return steps - steps % execution_steps, replace(options, steps_per_execution=execution_steps)


def segments(step: int, steps: int, options: TrainOptions) -> Iterator[Segment]:
    """Yields the remaining calls of `fit` after `step` steps.

    The remaining steps of an interrupted epoch are one segment; unfreezing divides the later epochs into two segments.
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
    """Trains a model, from its newest checkpoint if one exists, and assigns the weights for the export to it.

    SIGINT and SIGTERM take effect after the current step and its checkpoint.

    Args:
      task: model and data; `task.steps` is a multiple of `options.steps_per_execution`.
      options: options of the training.

    Returns:
      the final state of the training, with the history and the best epoch.

    Raises:
      OptionError: the monitored metric does not exist, or the checkpoint is of another model.
      TrainingDiverged: the loss is NaN or infinite, and the weights of no best epoch are stored. If they are stored,
        they are assigned, and `diverged` of the result is set.
      DiskError: a local disk cannot store the checkpoints; raised before the first step if the disk is too small.
    """
    with deferred_signals() as interruption, scope(task.strategy):
        return _Training(task, options, interruption).run()


class _Training:
    """One call of `train`: its state, and the steps of its work."""

    def __init__(self, task: Task, options: TrainOptions, interruption: Interruption) -> None:
        self._task = task
        self._options = options
        self._interruption = interruption
        self._meter = WaitMeter()
        checkpoint = task.checkpoints.latest() if task.checkpoints else None
        self._checkpoint: Checkpoint | None = checkpoint
        self._progress = Progress.from_json(checkpoint.state) if checkpoint else Progress()
        best_arrays = _arrays_of(checkpoint, "best") if checkpoint else {}
        self._best_epoch = BestEpoch(self._progress, options, list(best_arrays.values()))
        self._phase = -1  # epoch of the last change of frozen layers: 0 or `unfreeze_epoch`; -1 before `compile`
        epoch_images = task.steps * task.batch_size
        self._clock = Clock(self._progress, self._meter, epoch_images, task.steps, options, self._forecast)

    def run(self) -> Progress:
        task, progress = self._task, self._progress
        if self._checkpoint:
            epoch, step = divmod(progress.step, task.steps)
            start = f"epoch {epoch + 1} of {self._options.epochs}, step {step + 1} of {task.steps}"
            is_finished = progress.stopped or epoch >= self._options.epochs
            start = "the end of the training" if is_finished else start
            _log.warning("continuing at %s, from %s", start, task.checkpoints and task.checkpoints.directory)
            self._restore(self._checkpoint)
        images = max(0, self._options.epochs * task.steps - progress.step) * task.batch_size
        with system.watch.get()("training", system.Progress(images), self._clock.progress):  # shows the progress
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
        """Prints the remaining time of a long training; the first call also prints that with smaller images."""
        task, is_first_call = self._task, validation_seconds is None
        if validation_seconds is None:
            # Validation has no backward pass, which takes about two thirds of a training step.
            validation_seconds = step_seconds * task.validation_steps / 3 if task.validate else 0.0
        seconds = (self._options.epochs * task.steps - self._progress.step) * step_seconds
        seconds += (self._options.epochs - self._progress.step // task.steps) * validation_seconds
        if seconds <= _NO_FORECAST_S:
            return
        text = f"about {clock_time(seconds)} of training left at {task.batch_size / step_seconds:,.1f} images/s"
        # `time_smaller` compiles two models and runs few steps; this takes less time than the steps so far have taken.
        is_cheap = self._progress.train_seconds <= _MAX_TIMING_SHARE * seconds
        side_and_saving = task.time_smaller() if is_first_call and is_cheap else None
        if side_and_saving:
            side, saving = side_and_saving
            if saving > _MIN_SAVED_SHARE * step_seconds:
                reduced_seconds = seconds * max(0.0, 1 - saving / step_seconds)
                text += f"; about {clock_time(reduced_seconds)} with input.image_side_px={side}"
        print_line(text)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Compiles the model for the epoch of the last step and restores all variables."""
        model, progress = self._task.model, self._progress
        self._compile(max(0, progress.step - 1) // self._task.steps)
        assert self._task.checkpoints  # noqa: S101 - the checkpoint was read from them
        directory = self._task.checkpoints.directory
        assign(_stored_variables(model), checkpoint.arrays, "model", directory)
        assign(model.optimizer.variables, checkpoint.arrays, "optimizer", directory)

    def _compile(self, epoch: int) -> None:
        """Freezes or unfreezes layers for the phase of an epoch, and compiles the model with a new optimizer."""
        task, options = self._task, self._options
        phase = options.unfreeze_epoch if epoch >= options.unfreeze_epoch else 0
        if phase == self._phase:
            return
        # The condition depends only on options and epoch, so that a resumed training has the same trainable variables.
        if options.frozen and epoch < (options.unfreeze_epoch or options.epochs):
            transfer.freeze(task.core)
        elif options.frozen:
            transfer.unfreeze(task.core, options.unfreeze_layers)
        task.model.compile(
            optimizer=make_optimizer(options, task.steps, phase * task.steps),
            loss=task.loss,
            # Sample weights are the product of the weight column and `valid`, which is 0 for padding.
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
        start_position = Position.after(segment.first_step * task.batch_size, task.epoch_records)
        batches = task.train(start_position, self._meter)
        if segment.first_step % task.steps and not task.strategy:
            # `_RestoreMetrics` needs the variables of the metrics, which Keras creates when it evaluates a batch.
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
        """Checks that the disk has space for the remaining checkpoints."""
        task, model, options = self._task, self._task.model, self._options
        if not task.checkpoints or not task.writes:
            return
        size = count_bytes(_stored_variables(model)) + count_bytes(model.optimizer.variables)
        size += count_bytes(model.weights) if options.keep == "best" else 0
        remaining_steps = options.epochs * task.steps - self._progress.step
        step_checkpoints = remaining_steps // options.checkpoint_steps if options.checkpoint_steps else 0
        task.checkpoints.check_room(size, math.ceil(remaining_steps / task.steps) + step_checkpoints)

    def _validate(self) -> Mapping[str, float]:
        assert self._task.validate  # noqa: S101 - `_fit` checks it
        return self._task.validate(self._progress.step // self._task.steps - 1)  # number of the epoch that has ended

    def _callbacks(self) -> list[keras.callbacks.Callback]:
        """Returns the callbacks in this order: those that change the logs, those that read them, those that write."""
        task, options, progress = self._task, self._options, self._progress
        checkpoint, self._checkpoint = self._checkpoint, None  # only the first epoch of this process restores metrics
        callbacks: list[keras.callbacks.Callback] = [
            _RestoreMetrics(checkpoint),
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
        best_weights = self._best_epoch.best_weights if self._options.keep == "best" else []
        weights = best_weights or exported_weights(model)
        for variable, value in zip(model.weights, weights, strict=True):
            variable.assign(value)

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether a checkpoint must follow the step that has just ended.

        False after the last step of an epoch, even after a signal: that checkpoint follows the validation.
        """
        interval, step = self._options.checkpoint_steps, self._progress.step
        previous_step = step - self._options.steps_per_execution
        is_due = bool(interval and step // interval > previous_step // interval) or self._interruption.is_requested
        return is_due and step % self._task.steps != 0

    def save(self) -> None:
        task, model, step = self._task, self._task.model, self._progress.step
        if not task.checkpoints or not task.writes:
            return
        arrays = to_arrays(_stored_variables(model), "model") | to_arrays(model.optimizer.variables, "optimizer")
        if step % task.steps and strategy_host(task.strategy).count == 1:
            # With several workers the sums are not stored: reading them needs all workers, but only one writes.
            arrays |= to_arrays(model.metrics_variables, "metrics")
        arrays |= {f"best/{index:05d}": value for index, value in enumerate(self._best_epoch.best_weights)}
        position = Position.after(step * task.batch_size, task.epoch_records)
        task.checkpoints.save(step, Checkpoint(arrays=arrays, state=self._progress.to_json(), position=position))

    def stop_if_requested(self) -> None:
        """Delivers a deferred signal."""
        if self._interruption.is_requested:
            self._interruption.deliver()


class _SaveCheckpoint(keras.callbacks.Callback):
    """Writes checkpoints; it must be the last callback, because the other callbacks change the stored state."""

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
        self._arrays = _arrays_of(checkpoint, "metrics") if checkpoint else {}

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if self._arrays:
            assign(self.model.metrics_variables, self._arrays, "metrics")
        self._arrays = {}


def _arrays_of(checkpoint: Checkpoint, group: str) -> dict[str, np.ndarray]:
    return {name: value for name, value in checkpoint.arrays.items() if name.startswith(f"{group}/")}


def _stored_variables(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables except those of metrics and optimizer: weights, statistics, random generator states."""
    excluded_ids = {id(variable) for variable in [*model.metrics_variables, *model.optimizer.variables]}
    return [variable for variable in model.variables if id(variable) not in excluded_ids]
