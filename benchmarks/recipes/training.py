"""Epochs over batches, with the waiting time of the steps. The same loop for all pipelines."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FROZEN_BASE, HALF_RESNET = "frozen_base", "half_resnet"  # models of `models`, not of `trainer.models`
Train = Callable[[Any, Any], float]
Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """Duration and loss of one epoch.

    Attributes:
      seconds: total duration, in seconds.
      wait: duration of waiting for batches, in seconds, measured by `trainer.training.callbacks`.
      loss: mean over the steps; 0 for simulated steps.
    """

    seconds: float
    wait: float
    loss: float = 0.0


class Log:
    """A file with a JSON object for each epoch and for the accuracy of each run, so that a stopped benchmark goes on.

    Args:
      path: the file, which may have runs of earlier calls; None to keep nothing.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lines = [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []

    def add(self, run: str, **figures: object) -> None:
        """Adds a line about a run."""
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps({"run": run, **figures}) + "\n")

    def find(self, run: str) -> tuple[list[Epoch], float] | None:
        """Returns the epochs and the accuracy of a run that an earlier call completed."""
        epochs: list[Epoch] = []
        for line in (line for line in self._lines if line["run"] == run):
            if "accuracy" in line:
                return epochs, line["accuracy"]
            if line["epoch"] == 1:  # the call before was stopped within this run
                epochs.clear()
            epochs.append(Epoch(**{name: line[name] for name in ("seconds", "wait", "loss")}))
        return None


def run_epoch(
    batches: Iterator[tuple[Any, Any]], take_wait: Clock, train: Train, steps: int, clock: Clock = time.perf_counter
) -> Epoch:
    """Trains on `steps` batches.

    Args:
      batches: pairs of images and labels.
      take_wait: returns the seconds of waiting for batches since its last call.
      train: runs one step to its end, and returns the loss.
      steps: number of steps of the epoch.
      clock: returns the time in seconds.
    """
    take_wait()
    started = clock()
    losses = [float(train(*next(batches))) for _ in range(steps)]
    return Epoch(seconds=clock() - started, wait=take_wait(), loss=statistics.fmean(losses))


def simulated_step(milliseconds: float) -> Train:
    """Returns a step that sleeps for a fixed time, like a step on an accelerator, which uses no core."""
    return lambda *_: time.sleep(milliseconds / 1e3) or 0.0


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
    """Returns the mean of several runs and its 95 % confidence interval by Student's t."""
    from scipy import stats

    mean = statistics.fmean(values)
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return {"mean": mean, "runs": list(values), "low": mean - half, "high": mean + half}


def of_images(accuracies: Sequence[float], count: int) -> list[dict[str, Any]]:
    """Returns the accuracies of two runs and their difference, each with its 95 % interval over the test images.

    Those of the accuracies are Wilson's, that of the difference is the hybrid score interval of two shares (Newcombe
    1998, Statistics in Medicine 17, 873-890, method 10), which takes the test images of the runs as independent and is
    therefore too wide for the same images.

    Args:
      accuracies: of the run that is subtracted, and of the other run.
      count: number of test images of each.
    """
    from trainer.evaluation.intervals import wilson

    (base, base_low, base_high), (other, low, high) = ((share, *wilson(share, count)) for share in accuracies)
    difference = other - base
    ends = {
        "low": difference - math.hypot(other - low, base_high - base),
        "high": difference + math.hypot(high - other, base - base_low),
    }
    shares = [{"mean": base, "low": base_low, "high": base_high}, {"mean": other, "low": low, "high": high}]
    return [{**row, "runs": [row["mean"]]} for row in (*shares, {"mean": difference, **ends})]
