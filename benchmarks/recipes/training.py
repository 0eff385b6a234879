"""Epochs over batches, with the time that steps wait for them. The same loop for every pipeline."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

FROZEN_BASE = "frozen_base"  # the model of `models` that is no model of `trainer.models`
Train = Callable[[Any, Any], object]
Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """How long one pass took.

    Attributes:
      seconds: all of it.
      wait: seconds of that between asking for a batch and getting it, by `trainer.training.callbacks`.
    """

    seconds: float
    wait: float


def run_epoch(
    batches: Iterator[tuple[Any, Any]], waited: Clock, train: Train, steps: int, clock: Clock = time.perf_counter
) -> Epoch:
    """Takes `steps` batches and trains on each.

    Args:
      batches: (images, labels).
      waited: seconds that batches were waited for since it was last asked.
      train: one step; it returns when the step is done.
      steps: in the epoch.
      clock: seconds.
    """
    waited()
    started = clock()
    for _ in range(steps):
        images, labels = next(batches)
        train(images, labels)
    return Epoch(seconds=clock() - started, wait=waited())


def simulated_step(milliseconds: float) -> Train:
    """Returns a step that takes a fixed time and no core, as one on an accelerator does: a sleep."""
    return lambda *_: time.sleep(milliseconds / 1e3)


def settled(runs: Iterable[Sequence[Epoch]]) -> list[Epoch]:
    """Returns the epochs that count: all but the first of each run, in which things are compiled and buffers fill."""
    return [epoch for run in runs for epoch in (run[1:] or run)]


def median_seconds(epochs: Sequence[Epoch]) -> float:
    """Returns the median time of an epoch."""
    return statistics.median(epoch.seconds for epoch in epochs)


def wait_share(epochs: Sequence[Epoch]) -> float:
    """Returns the share of the time that steps waited for batches."""
    return sum(epoch.wait for epoch in epochs) / sum(epoch.seconds for epoch in epochs)


def interval(values: Sequence[float]) -> dict[str, Any]:
    """Returns the mean of a few runs and its 95 % interval, by Student's t; one run has no interval."""
    from scipy import stats

    mean = statistics.fmean(values)
    found: dict[str, Any] = {"mean": mean, "runs": list(values)}
    if len(values) > 1:
        half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
        found |= {"low": mean - half, "high": mean + half}
    return found
