"""How long a training step waits for its input, measured where it waits: between asking for a batch and getting it.

`fit` asks from inside a compiled loop, often several times without a return to Python, so a clock around `next()` would
see none of it. The clocks are therefore in the dataset: its last stage zips the batches with the time of asking. `zip`
asks its inputs in order, the clock first; the batch comes when it comes, and then the time is taken again. It is the
same whether TensorFlow, JAX or a person asks, one batch at a time or many.

In two cases the figure is an upper bound, because a batch is asked for before the step that takes it could begin: under
a strategy of several devices, and on an accelerator with `steps_per_execution` above 1.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.input.autograph import as_written


class WaitMeter:
    """Adds up seconds; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0

    def add(self, asked: np.ndarray) -> np.int64:
        """Counts a batch that has just come.

        Args:
          asked: when it was asked for, by `time.perf_counter`; float64 scalar.
        """
        with self._lock:
            self._seconds += time.perf_counter() - float(asked)
        return np.int64(0)

    def take(self) -> float:
        """Returns the seconds since it was last asked."""
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
        return seconds


@as_written
def timed(dataset: tf.data.Dataset, meter: WaitMeter) -> tf.data.Dataset:
    """Returns the same dataset, which tells a meter how long each of its elements was waited for.

    It must be the last stage: a prefetch behind it would wait in place of the training.
    """
    # Python's clock, at some 20 us a batch: TensorFlow refuses its own when ops have to be deterministic.
    clock = tf.data.Dataset.counter().map(lambda _: tf.numpy_function(_now, [], tf.float64))

    def stamp(asked: tf.Tensor, element: Any) -> Any:
        recorded = tf.numpy_function(meter.add, [asked], tf.int64)
        with tf.control_dependencies([recorded]):  # or the call is pruned: nothing needs its result
            return tf.nest.map_structure(tf.identity, element, expand_composites=True)

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.zip((clock, dataset)).map(stamp).with_options(options)


def _now() -> np.float64:
    return np.float64(time.perf_counter())
