"""Which weights count: their running average, and those of the best epoch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import keras
import numpy as np

from beam_jobs.common.suggest import unknown
from beam_jobs.errors import OptionError
from trainer.training.optimizers import averaged, put_back, trained_values
from trainer.training.options import TrainOptions
from trainer.training.progress import Progress

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
