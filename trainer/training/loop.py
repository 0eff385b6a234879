"""The training loop: `keras.Model.fit` on any backend, in as many pieces as resuming and unfreezing need.

Nothing here is TensorFlow's but the input dataset; the steps, their compilation and the devices are Keras'. A request
to stop is heard at once and obeyed between two steps, when there is something worth keeping.
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

from beam_jobs.errors import TrainingDiverged
from trainer.input.position import Position
from trainer.options import TrainOptions
from trainer.training import transfer
from trainer.training.callbacks import Clock, Finite, History, Profile, WaitMeter
from trainer.training.checkpoint import Checkpoint, Checkpoints, Progress, arrays_of, assign, bytes_of
from trainer.training.fit import fit
from trainer.training.optimizers import Averages, Judge, exported_weights, make_optimizer
from trainer.training.strategy import host_of, scope

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Remembers the first signal. A second one takes effect at once: its sender does not want to wait."""

    def __init__(self) -> None:
        self._number = 0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return bool(self._number)

    def take(self) -> None:
        """Takes over the signals that are not ignored."""
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)

    def release(self) -> None:
        """Gives the signals back to who had them."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def deliver(self) -> None:
        """Lets the signal do what it would have done.

        Raises:
          KeyboardInterrupt: the handler of the signal did not end the process.
        """
        self.release()
        signal.raise_signal(self._number)
        raise KeyboardInterrupt

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._number:
            self._number = number
            self.deliver()
        self._number = number


@contextmanager
def deferred_signals() -> Iterator[Interruption]:
    """Defers signals while its block runs; in a thread other than the main one, which gets none, it does nothing."""
    interruption = Interruption()
    if threading.current_thread() is threading.main_thread():
        interruption.take()
    try:
        yield interruption
    finally:
        interruption.release()


_JIT = {"auto": "auto", "always": True, "never": False}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained on what.

    Attributes:
      model: what `fit` trains; not compiled.
      core: the part of it that has layers, frozen or not; the model itself, unless it is wrapped.
      loss: of the model.
      metrics: makes those of the model. Keras leaves the sums of a metric that it compiles a second time.
      train: (position, meter) -> endless batches from there on, as `fit` takes them.
      validate: epoch -> figures of the held-back split; None for no validation.
      steps: of an epoch.
      batch_size: images a step, over all hosts.
      epoch_records: images in one pass over the split.
      log_dir: for TensorBoard; empty for none.
      checkpoints: where they go; None for none.
      strategy: who shares the steps; None for one device. The model is built in its scope.
      writes: whether this process writes checkpoints and logs; of several workers, one does.
      callbacks: more of Keras' callbacks.
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


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One call of `fit`.

    Attributes:
      first_step: of the training.
      epoch: the first, from 0.
      end: the epoch after the last.
      steps: of each of its epochs.
    """

    first_step: int
    epoch: int
    end: int
    steps: int


def whole_steps(records: int, options: TrainOptions, batch_size: int) -> tuple[int, TrainOptions]:
    """Returns the steps of an epoch, and options that fit it.

    `fit` runs whole executions only, so an epoch is a multiple of them; what is over comes at the begin of the next.
    """
    steps = max(1, records // batch_size)
    at_once = min(options.steps_per_execution, steps)
    return steps - steps % at_once, replace(options, steps_per_execution=at_once)


def segments(step: int, steps: int, options: TrainOptions) -> Iterator[Segment]:
    """Yields the calls of `fit` that are left after `step` steps.

    A training that stopped within an epoch has one for the rest of it; one that unfreezes has one before and one after.
    """
    epoch, done = divmod(step, steps)
    if done:
        yield Segment(first_step=step, epoch=epoch, end=epoch + 1, steps=steps - done)
        epoch += 1
    for end in (options.unfreeze_epoch, options.epochs):
        if epoch < end:
            yield Segment(first_step=epoch * steps, epoch=epoch, end=end, steps=steps)
            epoch = end


def train(task: Task, options: TrainOptions) -> Progress:
    """Trains a model, from its newest checkpoint if there is one, and leaves in it the weights to export.

    SIGINT and SIGTERM are obeyed after the step under way, with a checkpoint of it.

    Args:
      task: what is trained on what; `task.steps` is a multiple of `options.steps_per_execution`.
      options: how.

    Returns:
      the history, and which epoch was the best.

    Raises:
      OptionError: the monitored figure does not exist, or the checkpoint is of another model.
      TrainingDiverged: the loss is not a number any more. Where the best epoch is kept, its weights are left instead,
        and the progress says so.
      DiskError: a local disk does not take the checkpoints; known before the first step where it is too small.
    """
    with deferred_signals() as interruption, scope(task.strategy):
        return _Training(task, options, interruption).run()


def compile_model(task: Task, options: TrainOptions, epoch: int) -> None:
    """Compiles the model for the epochs from one on: what is frozen then, and the optimizer of that phase."""
    phase = options.unfreeze_epoch if options.unfreeze_epoch and epoch >= options.unfreeze_epoch else 0
    if options.frozen:
        unfreeze = options.unfreeze_epoch or options.epochs
        transfer.for_epoch(task.core, epoch, unfreeze, options.unfreeze_layers)
    task.model.compile(
        optimizer=make_optimizer(options, task.steps, phase * task.steps),
        loss=task.loss,
        # Weighted by the weight column, and by `valid`, which nothing but padding sets.
        weighted_metrics=list(task.metrics()),
        jit_compile=_JIT[options.jit],
        steps_per_execution=options.steps_per_execution,
    )
    task.model.optimizer.build(task.model.trainable_variables)


class _Training:
    """A training under way."""

    def __init__(self, task: Task, options: TrainOptions, interruption: Interruption) -> None:
        self._task = task
        self._options = options
        self._interruption = interruption
        self._meter = WaitMeter()
        found = task.checkpoints.latest() if task.checkpoints else None
        self._checkpoint: Checkpoint | None = found
        self._progress = Progress.from_json(found.state) if found else Progress()
        best = _group(found, "best") if found else {}
        self._judge = Judge(self._progress, options, list(best.values()))
        self._phase = -1  # first epoch of what the model is compiled for

    def run(self) -> Progress:
        task, progress = self._task, self._progress
        if self._checkpoint:
            _log.warning("continuing %s after %d steps", task.checkpoints and task.checkpoints.directory, progress.step)
            self._restore(self._checkpoint)
        for segment in segments(progress.step, task.steps, self._options):
            if progress.stopped:
                break
            try:
                self._fit(segment)
            except TrainingDiverged as error:
                if not self._judge.best_weights:
                    raise
                progress.diverged = str(error)
                break
        self._leave_weights()
        return progress

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Makes the model what it was: compiled for the epoch of its last step, with all variables."""
        model, progress = self._task.model, self._progress
        self._compile(max(0, progress.step - 1) // self._task.steps)
        assert self._task.checkpoints  # noqa: S101 - the checkpoint is one of them
        directory = self._task.checkpoints.directory
        assign(_state(model), checkpoint.arrays, "model", directory)
        assign(model.optimizer.variables, checkpoint.arrays, "optimizer", directory)

    def _compile(self, epoch: int) -> None:
        phase = self._options.unfreeze_epoch if epoch >= self._options.unfreeze_epoch else 0
        if phase != self._phase:
            compile_model(self._task, self._options, epoch)
            self._phase = phase

    def _fit(self, segment: Segment) -> None:
        task = self._task
        self._compile(segment.epoch)
        self._check_room()
        start = Position.after(segment.first_step * task.batch_size, task.epoch_records)
        batches = task.train(start, self._meter)
        if segment.first_step % task.steps and not task.strategy:
            # Figures of an epoch are of all its steps. Their sums exist only once Keras has seen a batch.
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
        """Checks that the checkpoints that are still to be written fit, before a step is made."""
        task, model, options = self._task, self._task.model, self._options
        if not task.checkpoints or not task.writes:
            return
        size = bytes_of(_state(model)) + bytes_of(model.optimizer.variables)
        size += bytes_of(model.weights) if options.keep == "best" else 0
        left = options.epochs * task.steps - self._progress.step
        within_epochs = left // options.checkpoint_steps if options.checkpoint_steps else 0
        task.checkpoints.check_room(size, math.ceil(left / task.steps) + within_epochs)

    def _validate(self) -> Mapping[str, float]:
        assert self._task.validate  # noqa: S101 - or it is not asked
        return self._task.validate(self._progress.step // self._task.steps - 1)

    def _callbacks(self) -> list[keras.callbacks.Callback]:
        """In the order in which they need each other: what changes figures, what reads them, what writes them down."""
        task, options, progress = self._task, self._options, self._progress
        unfinished, self._checkpoint = self._checkpoint, None  # only the first epoch continues one
        chosen: list[keras.callbacks.Callback] = [
            _Metrics(unfinished),
            Clock(progress, self._meter, task.steps * task.batch_size, options),
            Finite(progress, options.epochs),
        ]
        if options.ema:
            chosen.append(Averages())
        if options.keep == "best" or options.patience:
            chosen.append(self._judge)
        chosen.append(History(progress))
        if task.log_dir and task.writes:
            chosen.append(keras.callbacks.TensorBoard(task.log_dir, write_graph=False))
            if options.profile_window:
                chosen.append(Profile(progress, options.profile_window, task.log_dir))
        return [*chosen, *task.callbacks, _Saver(self)]

    def _leave_weights(self) -> None:
        model = self._task.model
        best = self._options.keep == "best" and self._judge.best_weights
        weights = self._judge.best_weights if best else exported_weights(model)
        for variable, value in zip(model.weights, weights, strict=True):
            variable.assign(value)

    @property
    def is_due(self) -> bool:
        """Whether the step that has just ended is to be followed by a checkpoint; the last of an epoch never is.

        Its checkpoint comes after the validation, also when someone wants to stop: without, the epoch would be lost.
        """
        every, step = self._options.checkpoint_steps, self._progress.step
        before = step - self._options.steps_per_execution
        wanted = self._interruption.requested or bool(every and step // every > before // every)
        return wanted and step % self._task.steps != 0

    def save(self) -> None:
        task, model, step = self._task, self._task.model, self._progress.step
        if not task.checkpoints or not task.writes:
            return
        arrays = arrays_of(_state(model), "model") | arrays_of(model.optimizer.variables, "optimizer")
        if step % task.steps and host_of(task.strategy).count == 1:
            # The sums of several workers are read by all of them together or not at all, and one worker writes.
            arrays |= arrays_of(model.metrics_variables, "metrics")
        arrays |= {f"best/{index:05d}": value for index, value in enumerate(self._judge.best_weights)}
        position = Position.after(step * task.batch_size, task.epoch_records)
        task.checkpoints.save(step, Checkpoint(arrays=arrays, state=self._progress.to_json(), position=position))

    def obey(self) -> None:
        """Stops if someone asked for it; a checkpoint of this step is written."""
        if self._interruption.requested:
            self._interruption.deliver()


class _Saver(keras.callbacks.Callback):
    """Writes checkpoints; comes last, so that they hold what all the others have done."""

    def __init__(self, training: _Training) -> None:
        super().__init__()
        self._training = training

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if self._training.is_due:
            _ = self.model  # brings the state of the JAX backend into the variables
            self._training.save()
            self._training.obey()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._training.save()
        self._training.obey()


class _Metrics(keras.callbacks.Callback):
    """Continues the sums of the metrics where the checkpoint of an unfinished epoch left them."""

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
    """Returns weights, statistics and the states of random generators; not metrics and not the optimizer."""
    others = {id(variable) for variable in [*model.metrics_variables, *model.optimizer.variables]}
    return [variable for variable in model.variables if id(variable) not in others]
