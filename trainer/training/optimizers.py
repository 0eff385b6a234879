"""Optimizers and schedules by name, and running averages of the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from trainer.options import TrainOptions

# Name -> class, and its arguments that not all optimizers have; each is also the name of a training option.
OPTIMIZERS: dict[str, tuple[type[keras.optimizers.Optimizer], tuple[str, ...]]] = {
    "adamw": (keras.optimizers.AdamW, ()),
    "sgd": (keras.optimizers.SGD, ("momentum", "nesterov")),
    "rmsprop": (keras.optimizers.RMSprop, ("momentum",)),
    "lion": (keras.optimizers.Lion, ()),
    "lamb": (keras.optimizers.Lamb, ()),
}


def make_optimizer(options: TrainOptions, steps_per_epoch: int, first_step: int = 0) -> keras.optimizers.Optimizer:
    """Builds the optimizer of a training.

    Args:
      options: options of the training.
      steps_per_epoch: batches per epoch.
      first_step: step of the training that is step 0 of the optimizer. It is above 0 after unfreezing: a new optimizer
        begins with moments of zero, and its step count must begin at 0 for the bias correction.
    """
    optimizer_class, option_names = OPTIMIZERS[options.optimizer]
    arguments: dict[str, Any] = {name: getattr(options, name) for name in option_names}
    if options.ema:
        # Keras averages after every batch, also while gradients accumulate. With this momentum, the decay between two
        # updates of the weights is `ema`.
        arguments |= {"use_ema": True, "ema_momentum": options.ema ** (1 / options.accumulate_steps)}
    return optimizer_class(
        make_schedule(options, steps_per_epoch, first_step),
        weight_decay=options.weight_decay,
        global_clipnorm=options.clip_norm or None,
        gradient_accumulation_steps=options.accumulate_steps if options.accumulate_steps > 1 else None,
        **arguments,
    )


def make_schedule(options: TrainOptions, steps_per_epoch: int, first_step: int = 0) -> WarmUp:
    """Builds the learning rate as a function of the step: a linear warm-up from zero, then `options.schedule`.

    Args:
      options: options of the training.
      steps_per_epoch: batches per epoch.
      first_step: see `make_optimizer`; if it is above 0, the rate is multiplied by `unfreeze_factor`.
    """
    warmup_steps = round(options.warmup_epochs * steps_per_epoch)
    decay_steps = max(1, steps_per_epoch * options.epochs - warmup_steps)
    peak = options.learning_rate * (options.unfreeze_factor if first_step else 1.0)
    schedules = keras.optimizers.schedules
    after_warmup = {
        "cosine": lambda: schedules.CosineDecay(peak, decay_steps),
        "linear": lambda: schedules.PolynomialDecay(peak, decay_steps, end_learning_rate=0.0),
        "step": lambda: schedules.ExponentialDecay(
            peak, options.step_epochs * steps_per_epoch, options.step_factor, staircase=True
        ),
        "constant": lambda: schedules.PolynomialDecay(peak, 1, end_learning_rate=peak),
    }[options.schedule]()
    return WarmUp(after_warmup, peak=peak, warmup_steps=warmup_steps, first_step=first_step)


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up from zero, followed by a schedule whose step 0 is the end of the warm-up."""

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
        step = keras.ops.cast(step, "float32") + float(self.first_step)
        warmup_rate = self.peak * (step / max(1.0, float(self.warmup_steps)))
        rate = self.after(keras.ops.maximum(step - self.warmup_steps, 0.0))
        return keras.ops.where(step < self.warmup_steps, warmup_rate, rate)

    def get_config(self) -> dict[str, Any]:
        """See Keras."""
        return {
            "after": keras.optimizers.schedules.serialize(self.after),
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "first_step": self.first_step,
        }


@contextlib.contextmanager
def average_weights(model: keras.Model) -> Iterator[None]:
    """Assigns the running averages of its weights to a model during a block; does nothing without `ema`."""
    # Under float16, Keras wraps the optimizer to scale the loss.
    if not getattr(model.optimizer, "inner_optimizer", model.optimizer).use_ema:
        yield
        return
    weights = copy_values(model)
    # Keras has no other public access to the averages than this method, which overwrites the weights with them.
    model.optimizer.finalize_variable_values(model.trainable_variables)
    try:
        yield
    finally:
        restore_values(model, weights)


def exported_weights(model: keras.Model) -> list[np.ndarray]:
    """Returns the weights for evaluation and export, in the order of `model.weights`."""
    with average_weights(model):
        return [np.array(keras.ops.convert_to_numpy(weight)) for weight in model.weights]


def copy_values(model: keras.Model) -> list[np.ndarray]:
    """Returns copies of the trainable weights: on a CPU, `convert_to_numpy` may share the memory of a variable."""
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in model.trainable_variables]


def restore_values(model: keras.Model, values: Sequence[np.ndarray]) -> None:
    """Assigns the result of `copy_values` to the trainable weights."""
    for variable, value in zip(model.trainable_variables, values, strict=True):
        variable.assign(value)
