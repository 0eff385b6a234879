"""Measures rates and CPU time of things that run in turn, so that a noisy minute hits all of them alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow as tf

ROUNDS = 3  # in turn, and the median of each counts: these are shared machines
_START_SECONDS = 0.3  # threads and buffers of a pipeline, on a machine of two cores
_WARM_SHARE = 1 / 4  # of a measurement; before it, threads start and buffers fill

Counts: TypeAlias = Generator[float, None, None]
Clock: TypeAlias = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What an image costs.

    Attributes:
      rate: images/s of wall time.
      cpu_us: microseconds of CPU an image, user and system, over all threads of this process.
    """

    rate: float
    cpu_us: float

    @property
    def wall_us(self) -> float:
        """Microseconds between two images."""
        return 1e6 / self.rate

    @property
    def cores(self) -> float:
        """Cores kept busy."""
        return self.cpu_us * self.rate / 1e6


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Something to measure.

    Attributes:
      name: unique among those measured together.
      start: begins anew and yields how many images came with each turn, for ever. Closing it ends all its threads.
      warm_images: images that must have passed before the measurement, such as those a cache keeps.
    """

    name: str
    start: Callable[[], Counts]
    warm_images: int = 1


def of_dataset(name: str, dataset: tf.data.Dataset, warm_images: int = 1, images: int = 1) -> Subject:
    """Returns the subject that takes batches out of an endless dataset as fast as it gives them.

    Args:
      name: of the subject.
      dataset: of tensors, or of nests of them; the first dimension of the last tensor counts what came.
      warm_images: as in `Subject`.
      images: that each of those becomes; above 1 for records of which several crops are taken.
    """

    def start() -> Counts:
        for batch in dataset:
            yield float(images * tf.nest.flatten(batch)[-1].shape[0])

    return Subject(name=name, start=start, warm_images=warm_images)


def sample(
    subject: Subject, seconds: float, clock: Clock = time.perf_counter, cpu_clock: Clock = time.process_time
) -> Cost:
    """Measures once, after a warm-up of a quarter of the time.

    Everything the subject started is gone when this returns: what it had prefetched costs no one else.

    Args:
      subject: what to measure.
      seconds: length of the measurement; it ends with the first turn after that.
      clock: seconds of wall time.
      cpu_clock: seconds of CPU of this process.
    """
    counts = subject.start()
    try:
        _run(counts, seconds * _WARM_SHARE, subject.warm_images, clock)
        busy = cpu_clock()
        images, elapsed = _run(counts, seconds, 1, clock)
        busy = cpu_clock() - busy
    finally:
        counts.close()
        gc.collect()  # an iterator in a reference cycle would go on prefetching
    return Cost(rate=images / elapsed, cpu_us=busy / images * 1e6)


def in_turn(
    subjects: Sequence[Subject],
    seconds: float,
    rounds: int = ROUNDS,
    on_sample: Callable[[str], None] = lambda _: None,
) -> dict[str, Cost]:
    """Measures all subjects once a round and returns name -> medians.

    Args:
      subjects: in the order they take turns.
      seconds: of one measurement.
      rounds: how often each is measured.
      on_sample: called with the name of each subject before it is measured.
    """
    samples: dict[str, list[Cost]] = {subject.name: [] for subject in subjects}
    for _ in range(rounds):
        for subject in subjects:
            on_sample(subject.name)
            samples[subject.name].append(sample(subject, seconds))
    return {name: _median(costs) for name, costs in samples.items()}


def duration(subjects: int, seconds: float, rounds: int = ROUNDS) -> float:
    """Returns about how many seconds `in_turn` takes."""
    return subjects * rounds * (seconds * (1 + _WARM_SHARE) + _START_SECONDS)


def _run(counts: Counts, seconds: float, least: float, clock: Clock) -> tuple[float, float]:
    """Takes turns until both the time and the images are reached; returns images and seconds."""
    started, images = clock(), 0.0
    while True:
        images += next(counts)
        elapsed = clock() - started
        if elapsed >= seconds and images >= least:
            return images, elapsed


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(
        rate=statistics.median(cost.rate for cost in costs), cpu_us=statistics.median(cost.cpu_us for cost in costs)
    )
