"""Epochs over batches, with the waiting time of the steps. The same loop for all pipelines."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

FROZEN_BASE = "frozen_base"  # a model of `models`, not of `trainer.models`
Train = Callable[[Any, Any], object]
Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """Duration of one epoch.

    Attributes:
      seconds: total duration, in seconds.
      wait: duration of waiting for batches, in seconds, measured by `trainer.training.callbacks`.
    """

    seconds: float
    wait: float


def run_epoch(
    batches: Iterator[tuple[Any, Any]], take_wait: Clock, train: Train, steps: int, clock: Clock = time.perf_counter
) -> Epoch:
    """Trains on `steps` batches.

    Args:
      batches: pairs of images and labels.
      take_wait: returns the seconds of waiting for batches since its last call.
      train: runs one step to its end.
      steps: number of steps of the epoch.
      clock: returns the time in seconds.
    """
    take_wait()
    started = clock()
    for _ in range(steps):
        images, labels = next(batches)
        train(images, labels)
    return Epoch(seconds=clock() - started, wait=take_wait())


def simulated_step(milliseconds: float) -> Train:
    """Returns a step that sleeps for a fixed time, like a step on an accelerator, which uses no core."""
    return lambda *_: time.sleep(milliseconds / 1e3)


def timed_epochs(runs: Iterable[Sequence[Epoch]]) -> list[Epoch]:
    """Returns all epochs except the first of each run, which includes compilation and the filling of buffers."""
    return [epoch for run in runs for epoch in (run[1:] or run)]


def median_seconds(epochs: Sequence[Epoch]) -> float:
    """Returns the median duration of an epoch, in seconds."""
    return statistics.median(epoch.seconds for epoch in epochs)


def wait_share(epochs: Sequence[Epoch]) -> float:
    """Returns the waiting time as a share of the total time, 0-1."""
    return sum(epoch.wait for epoch in epochs) / sum(epoch.seconds for epoch in epochs)


def interval(values: Sequence[float]) -> dict[str, Any]:
    """Returns the mean of runs and its 95 % confidence interval by Student's t; a single run has no interval."""
    from scipy import stats

    mean = statistics.fmean(values)
    result: dict[str, Any] = {"mean": mean, "runs": list(values)}
    if len(values) > 1:
        half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
        result |= {"low": mean - half, "high": mean + half}
    return result
