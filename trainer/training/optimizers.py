"""Optimizers and schedules by name, and which weights count: the running average, those of the best epoch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from beam_jobs.common.strings import unknown
from beam_jobs.errors import OptionError
from trainer.options import TrainOptions
from trainer.training.checkpoint import Progress

Logs = dict[str, float]


class Averages(keras.callbacks.Callback):
    """Validates with the running average of the weights, and trains on with the weights themselves.

    Keras ends every `fit` by overwriting the weights with their average. A training here may take several: this puts
    the weights back.
    """

    def __init__(self) -> None:
        super().__init__()
        self._weights: list[np.ndarray] = []

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """See Keras."""
        self._weights = trained_values(self.model)
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)

    def on_test_end(self, logs: Logs | None = None) -> None:
        """See Keras."""
        put_back(self.model, self._weights)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras."""
        self._weights = trained_values(self.model)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """See Keras."""
        put_back(self.model, self._weights)


def exported_weights(model: keras.Model) -> list[np.ndarray]:
    """Returns the weights a model is evaluated and exported with, in the order of `model.weights`."""
    with averaged(model):
        return [np.array(keras.ops.convert_to_numpy(weight)) for weight in model.weights]


class Judge(keras.callbacks.Callback):
    """Compares epochs by the monitored figure: keeps the weights of the best, and stops when none is better any more.

    Attributes:
      best_weights: of the best epoch, see `exported_weights`; empty when they are not asked for.
    """

    def __init__(self, progress: Progress, options: TrainOptions, best_weights: list[np.ndarray]) -> None:
        super().__init__()
        self._progress = progress
        self._options = options
        self.best_weights = best_weights

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """See Keras.

        Raises:
          OptionError: there is no such figure.
        """
        progress, options = self._progress, self._options
        value = monitored(options, logs or {})
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
    """Raises `OptionError` when epochs are to be judged by a figure that is not among those of an epoch."""
    if options.keep == "best" or options.patience:
        monitored(options, dict.fromkeys(figures, 0.0))


def monitored(options: TrainOptions, logs: Mapping[str, float]) -> float:
    """Returns the value by which an epoch is judged.

    Raises:
      OptionError: there is no such figure.
    """
    worse_end = "_high" if "loss" in options.monitor else "_low"
    name = options.monitor + (worse_end if options.choose_by == "lower_bound" else "")
    if name not in logs:
        raise OptionError(unknown("figure", name, sorted(logs), "monitor="))
    return float(logs[name])


def is_better(value: float, best: float | None, options: TrainOptions) -> bool:
    """Returns whether a value beats the best so far by more than `min_delta`; NaN never does."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    gain = best - value if "loss" in options.monitor else value - best
    return gain > options.min_delta


def _momentum(options: TrainOptions) -> dict[str, Any]:
    return {"momentum": options.momentum}


def _nesterov(options: TrainOptions) -> dict[str, Any]:
    return {"momentum": options.momentum, "nesterov": options.nesterov}


def _nothing(_: TrainOptions) -> dict[str, Any]:
    return {}


# Name -> class, and its arguments beside the common ones.
OPTIMIZERS: dict[str, tuple[type[keras.optimizers.Optimizer], Callable[[TrainOptions], dict[str, Any]]]] = {
    "adamw": (keras.optimizers.AdamW, _nothing),
    "sgd": (keras.optimizers.SGD, _nesterov),
    "rmsprop": (keras.optimizers.RMSprop, _momentum),
    "lion": (keras.optimizers.Lion, _nothing),
    "lamb": (keras.optimizers.Lamb, _nothing),
}


def make_optimizer(options: TrainOptions, steps_per_epoch: int, first_step: int = 0) -> keras.optimizers.Optimizer:
    """Builds the optimizer of a training.

    Args:
      options: of training.
      steps_per_epoch: batches in one pass.
      first_step: what its step 0 is in the whole training; above 0 for the optimizer that takes over when a base is
        unfrozen. Its moments begin at zero, and only its own count of steps corrects them for that.
    """
    kind, special = OPTIMIZERS[options.optimizer]
    more: dict[str, Any] = special(options)
    if options.ema:
        # Keras averages after every batch, also where a batch only adds to a gradient; so the average decays a little
        # after every batch to have decayed by `ema` after every update.
        more |= {"use_ema": True, "ema_momentum": options.ema ** (1 / options.accumulate_steps)}
    return kind(
        make_schedule(options, steps_per_epoch, first_step),
        weight_decay=options.weight_decay,
        global_clipnorm=options.clip_norm or None,
        gradient_accumulation_steps=options.accumulate_steps if options.accumulate_steps > 1 else None,
        **more,
    )


def make_schedule(options: TrainOptions, steps_per_epoch: int, first_step: int = 0) -> Warmed:
    """Builds the learning rate as a function of the step: a linear warm-up from zero, then `options.schedule`.

    Args:
      options: of training.
      steps_per_epoch: batches in one pass.
      first_step: see `make_optimizer`; above 0, the rate is `unfreeze_factor` times what it would be.
    """
    warm = round(options.warmup_epochs * steps_per_epoch)
    left = max(1, steps_per_epoch * options.epochs - warm)
    peak = options.learning_rate * (options.unfreeze_factor if first_step else 1.0)
    schedules = keras.optimizers.schedules
    after = {
        "cosine": lambda: schedules.CosineDecay(peak, left),
        "linear": lambda: schedules.PolynomialDecay(peak, left, end_learning_rate=0.0),
        "step": lambda: schedules.ExponentialDecay(
            peak, options.step_epochs * steps_per_epoch, options.step_factor, staircase=True
        ),
        "constant": lambda: schedules.PolynomialDecay(peak, 1, end_learning_rate=peak),
    }[options.schedule]()
    return Warmed(after, peak=peak, warmup_steps=warm, first_step=first_step)


class Warmed(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule behind a linear warm-up from zero.

    Drops of the schedule `step` count from the end of the warm-up.
    """

    def __init__(
        self,
        after: keras.optimizers.schedules.LearningRateSchedule,
        peak: float,
        warmup_steps: int,
        first_step: int = 0,
    ) -> None:
        self.after = after
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.first_step = first_step

    def __call__(self, step: Any) -> Any:
        """Returns the rate of a step, a float32 scalar."""
        now = keras.ops.cast(step, "float32") + float(self.first_step)
        warm = self.peak * (now / max(1.0, float(self.warmup_steps)))
        return keras.ops.where(
            now < self.warmup_steps, warm, self.after(keras.ops.maximum(now - self.warmup_steps, 0.0))
        )

    def get_config(self) -> dict[str, Any]:
        """See Keras."""
        after = keras.optimizers.schedules.serialize(self.after)
        return {
            "after": after,
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "first_step": self.first_step,
        }


@contextlib.contextmanager
def averaged(model: keras.Model) -> Iterator[None]:
    """Gives a model the running averages of its weights for the length of a block; without `ema` they are its own."""
    # Under float16, Keras wraps the optimizer that updates the weights, to scale the loss.
    if not getattr(model.optimizer, "inner_optimizer", model.optimizer).use_ema:
        yield
        return
    weights = trained_values(model)
    # The only public way to an average overwrites the weights with it.
    model.optimizer.finalize_variable_values(model.trainable_variables)
    try:
        yield
    finally:
        put_back(model, weights)


def trained_values(model: keras.Model) -> list[np.ndarray]:
    """Returns copies of the trainable weights; on a CPU an array of Keras may share the memory of the variable."""
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in model.trainable_variables]


def put_back(model: keras.Model, values: Sequence[np.ndarray]) -> None:
    """Sets the trainable weights to what `trained_values` returned."""
    for variable, value in zip(model.trainable_variables, values, strict=True):
        variable.assign(value)
