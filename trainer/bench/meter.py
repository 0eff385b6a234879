"""Measures rates and CPU times of several pipelines alternately, so that other load affects all equally."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow as tf

ROUNDS = 3  # measurements of each subject; the median reduces the noise of shared machines
_START_SECONDS = 0.3  # time to start the threads and allocate the buffers of a pipeline, on a machine with two cores
_WARM_SHARE = 1 / 4  # duration of the warm-up, as a share of the measurement

Counts: TypeAlias = Generator[float, None, None]  # the number of images of each step


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Rate and CPU time of a subject.

    Attributes:
      rate: images per second of wall time.
      cpu_us: user and system CPU time per image over all threads of this process, microseconds.
    """

    rate: float
    cpu_us: float

    @property
    def wall_us(self) -> float:
        """Wall time per image, microseconds."""
        return 1e6 / self.rate

    @property
    def cores(self) -> float:
        """Mean number of busy cores."""
        return self.cpu_us * self.rate / 1e6


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A pipeline or other work to measure.

    Attributes:
      name: name, unique within a run.
      start: starts the work and returns an endless generator of images per step; closing it ends all threads.
      warm_images: minimum number of images in the warm-up, such as the number that fills a cache.
    """

    name: str
    start: Callable[[], Counts]
    warm_images: int = 1


def dataset_subject(name: str, dataset: tf.data.Dataset, warm_images: int = 1, crops: int = 1) -> Subject:
    """Returns the subject that iterates over an endless dataset.

    Args:
      name: name of the subject.
      dataset: dataset of tensors or nests; the first dimension of the last tensor is the number of rows.
      warm_images: as in `Subject`.
      crops: images per row.
    """

    def start() -> Counts:
        for batch in dataset:
            yield float(crops * tf.nest.flatten(batch)[-1].shape[0])

    return Subject(name=name, start=start, warm_images=warm_images)


def sample(subject: Subject, seconds: float) -> Cost:
    """Measures a subject once, after a warm-up of a quarter of `seconds`, and ends its threads.

    Args:
      subject: subject to measure.
      seconds: minimum duration of the measurement, which ends with a complete step.
    """
    counts = subject.start()
    try:
        _run_steps(counts, seconds * _WARM_SHARE, subject.warm_images)
        cpu_start = time.process_time()
        images, elapsed = _run_steps(counts, seconds, 1)
        cpu_seconds = time.process_time() - cpu_start
    finally:
        counts.close()
        gc.collect()  # an iterator in a reference cycle would continue to prefetch
    return Cost(rate=images / elapsed, cpu_us=cpu_seconds / images * 1e6)


def measure_alternately(
    subjects: Sequence[Subject], seconds: float, rounds: int = ROUNDS, on_sample: Callable[[str], None] = lambda _: None
) -> dict[str, Cost]:
    """Measures all subjects once per round and returns name -> medians of rate and CPU time.

    Args:
      subjects: subjects in the order of their measurement.
      seconds: duration of one measurement, seconds.
      rounds: number of measurements of each subject.
      on_sample: callback before each measurement, with the name of the subject.
    """
    samples: dict[str, list[Cost]] = {subject.name: [] for subject in subjects}
    for _ in range(rounds):
        for subject in subjects:
            on_sample(subject.name)
            samples[subject.name].append(sample(subject, seconds))
    return {name: _median_cost(costs) for name, costs in samples.items()}


def duration(subject_count: int, seconds: float) -> float:
    """Returns the estimated duration of `measure_alternately`, seconds."""
    return subject_count * ROUNDS * (seconds * (1 + _WARM_SHARE) + _START_SECONDS)


def _run_steps(counts: Counts, seconds: float, min_images: float) -> tuple[float, float]:
    """Runs steps for at least `seconds` and `min_images`; returns the images and the elapsed seconds."""
    start, images = time.perf_counter(), 0.0
    while True:
        images += next(counts)
        elapsed = time.perf_counter() - start
        if elapsed >= seconds and images >= min_images:
            return images, elapsed


def _median_cost(costs: Sequence[Cost]) -> Cost:
    return Cost(
        rate=statistics.median(cost.rate for cost in costs), cpu_us=statistics.median(cost.cpu_us for cost in costs)
    )
