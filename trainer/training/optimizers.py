"""Optimizers and learning rates by name. All of it is Keras 3 alone, so it runs on every backend."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from trainer.training.options import TrainOptions


def _momentum(options: TrainOptions) -> dict[str, Any]:
    return {"momentum": options.momentum}


def _nesterov(options: TrainOptions) -> dict[str, Any]:
    return {"momentum": options.momentum, "nesterov": options.nesterov}


def _nothing(_: TrainOptions) -> dict[str, Any]:
    return {}


# Name -> class, and what it is told beside the rest.
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
