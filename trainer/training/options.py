"""Options of training, checked when they are made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic.dataclasses import dataclass

from beam_jobs.common.settings import STRICT, AboveZero, BelowOne, Count, NotNegative, OneOf, Options, Positive
from beam_jobs.errors import OptionError

BALANCED = "balanced"
_WITH_MOMENTUM = ("sgd", "rmsprop")
_PROFILED_STEPS = 200  # what the profiler records stays in memory until the window ends


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainOptions(Options):
    """How a model is trained.

    Examples:
      >>> from trainer import TrainOptions
      >>> TrainOptions(model="resnet20", epochs=60, optimizer="sgd", learning_rate=0.1, nesterov=True).schedule
      'cosine'
      >>> TrainOptions(label_smoothing=1.5)
      Traceback (most recent call last):
      beam_jobs.errors.OptionError: label_smoothing is 1.5; it must be from 0 to below 1

    Attributes:
      model: name in `models.MODELS`, or the dotted path of a function of yours.
      weights: where a model of the table starts: empty for random, a file, or what that model knows by name.
      frozen: leave the pretrained base as it is and train the classifier alone.
      unfreeze_epoch: first epoch that trains a frozen base too; 0 for never.
      unfreeze_layers: how many layers of the base that is, from its end; 0 for all.
      unfreeze_factor: what the learning rate is multiplied by from then on.
      epochs: passes over the training split.
      optimizer: `adamw` (which without weight decay is Adam), `sgd`, `rmsprop`, `lion` or `lamb`.
      learning_rate: peak, reached at the end of the warm-up.
      momentum: of `sgd` and `rmsprop`, 0 to below 1.
      nesterov: whether the momentum of `sgd` is Nesterov's.
      schedule: what follows the warm-up: `cosine` or `linear` to zero, `step` by `step_factor` every `step_epochs`, or
        `constant`.
      warmup_epochs: length of the linear warm-up from zero; 0 for none.
      step_epochs: epochs between two drops of the schedule `step`.
      step_factor: what each drop multiplies the rate by.
      weight_decay: decoupled from the gradient, for every optimizer.
      clip_norm: largest norm of the whole gradient; 0 does not clip.
      label_smoothing: share of the target spread over all classes, 0 to below 1.
      class_weights: class -> weight of its images in the loss, `balanced` for the inverse of its frequency, or empty.
      accumulate_steps: batches whose gradients are averaged into one update.
      ema: share of the running average of the weights that every update keeps, such as 0.999; 0 for no average. The
        average is what is evaluated and exported.
      monitor: figure of the history that early stopping and `keep` look at; one with `loss` in its name is to fall.
      patience: epochs without an improvement after which training stops; 0 never stops early.
      min_delta: what counts as an improvement.
      keep: export the weights of the `last` epoch or of the `best` one by `monitor`. The best of many epochs looks
        better on the split that chose it than it is.
      choose_by: compare `value`s, or the `lower_bound` of the interval of the evaluation.
      per_class: also record recall and precision of every class.
      mixed_precision: compute in `float16` or `bfloat16`, with float32 weights; `none` stays with float32.
      jit: compile the step with XLA: `always`, `never`, or `auto`, which does where the model supports it.
      steps_per_execution: steps run at a time without a return to Python; worth it where a step takes under 10 ms.
      deterministic: only ops with reproducible results, so that the same training gives the same weights to the bit;
        slower on a GPU.
      strategy: `default` for one device, `mirrored` for all devices here, `multi_worker` for several machines, `tpu`.
      checkpoint_steps: steps between checkpoints within an epoch; 0 writes them at the end of epochs alone.
      profile_steps: window of steps to profile, such as `10-20`, counted from 0 at the start of the training; empty for
        none.

    Raises:
      OptionError: a value is out of range; the message names it and what is allowed.
    """

    model: str = "small_cnn"
    weights: str = ""
    frozen: bool = False
    unfreeze_epoch: Count = 0
    unfreeze_layers: Count = 0
    unfreeze_factor: AboveZero = 0.1
    epochs: Positive = 10
    optimizer: Annotated[str, OneOf(("adamw", "sgd", "rmsprop", "lion", "lamb"))] = "adamw"
    learning_rate: AboveZero = 2e-3
    momentum: BelowOne = 0.9
    nesterov: bool = False
    schedule: Annotated[str, OneOf(("cosine", "linear", "step", "constant"))] = "cosine"
    warmup_epochs: NotNegative = 1.0
    step_epochs: Positive = 30
    step_factor: AboveZero = 0.1
    weight_decay: NotNegative = 1e-4
    clip_norm: NotNegative = 0.0
    label_smoothing: BelowOne = 0.0
    class_weights: Annotated[str, OneOf(("", BALANCED))] | Mapping[str, NotNegative] = ""
    accumulate_steps: Positive = 1
    ema: BelowOne = 0.0
    monitor: str = "val_accuracy"
    patience: Count = 0
    min_delta: NotNegative = 0.0
    keep: Annotated[str, OneOf(("last", "best"))] = "last"
    choose_by: Annotated[str, OneOf(("value", "lower_bound"))] = "value"
    per_class: bool = False
    mixed_precision: Annotated[str, OneOf(("none", "float16", "bfloat16"))] = "none"
    jit: Annotated[str, OneOf(("auto", "always", "never"))] = "auto"
    steps_per_execution: Positive = 1
    deterministic: bool = False
    strategy: Annotated[str, OneOf(("default", "mirrored", "multi_worker", "tpu"))] = "default"
    checkpoint_steps: Count = 0
    profile_steps: str = ""

    def __post_init__(self) -> None:
        if not self.class_weights and self.class_weights != "":
            raise OptionError("class_weights is {}; it must be balanced, or class: weight")
        _ = self.profile_window
        self._check_together()

    @property
    def profile_window(self) -> tuple[int, int] | None:
        """First step of the profile and the one after its last; None without a profile."""
        if not self.profile_steps:
            return None
        match = re.fullmatch(r"(\d+)-(\d+)", str(self.profile_steps))
        if not match or not 0 < int(match[2]) - int(match[1]) <= _PROFILED_STEPS:
            raise OptionError(
                f"profile_steps is {self.profile_steps!r}; it must be FIRST-END, such as 10-20, "
                f"of at most {_PROFILED_STEPS} steps"
            )
        return int(match[1]), int(match[2])

    def _check_together(self) -> None:
        if self.unfreeze_epoch and not self.frozen:
            raise OptionError(
                f"unfreeze_epoch is {self.unfreeze_epoch} and frozen is off; there is nothing to unfreeze"
            )
        if self.unfreeze_epoch >= self.epochs:
            raise OptionError(f"unfreeze_epoch is {self.unfreeze_epoch}; of {self.epochs} epochs it must be below that")
        if self.accumulate_steps > 1 and self.strategy != "default":
            raise OptionError(
                f"accumulate_steps is {self.accumulate_steps} and strategy is {self.strategy}; Keras cannot do both: "
                "take more replicas, or the default strategy"
            )
        if self.choose_by == "lower_bound" and not self.monitor.startswith("val_"):
            raise OptionError(
                f"choose_by is lower_bound and monitor is {self.monitor}; only figures of val_ have bounds"
            )
        if self.nesterov and self.optimizer != "sgd":
            raise OptionError(f"nesterov is for the optimizer sgd; it is {self.optimizer}")
        if self.nesterov and not self.momentum:
            raise OptionError("nesterov is on and momentum is 0; give a momentum such as 0.9")
        if self.optimizer not in _WITH_MOMENTUM and self.momentum != TrainOptions.momentum:
            raise OptionError(f"momentum is for the optimizers {' and '.join(_WITH_MOMENTUM)}; it is {self.optimizer}")
