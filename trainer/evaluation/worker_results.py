"""How the workers of an evaluation tell each other their parts: one small file each, in a directory they share.

A file and no collective operation: it works without a strategy, on any file system TensorFlow writes, can be read by a
person, and ends with an error instead of waiting for ever for a worker that is gone.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import tensorflow as tf

from beam_jobs.errors import FeedlineError
from trainer.evaluation.intervals import Tally
from trainer.input.position import Host

_SAME_WEIGHTS = 1e-5  # relative; workers may differ in the last bit, two trainings do not agree this far
_POLL_S = 0.05


def worker_name(host: Host) -> str:
    """Returns the name of the directory of a worker, such as `worker-0-of-2`."""
    return f"worker-{host.index}-of-{host.count}"


class Exchange:
    """Files through which the workers tell each other their parts."""

    def __init__(self, directory: str, host: Host, step: int) -> None:
        self._directory = os.path.join(directory, "parts", f"step-{step:08d}")
        self._host = host
        self._step = step

    def forget(self) -> None:
        """Removes the result that this worker wrote for an earlier evaluation of the same step."""
        path = self._path(self._host.index)
        if tf.io.gfile.exists(path):
            tf.io.gfile.remove(path)

    def tell(self, part: Mapping[str, Tally], weights: float) -> None:
        """Writes the own part; it appears whole or not at all."""
        path = self._path(self._host.index)
        tf.io.gfile.makedirs(self._directory)
        content = {"weights": weights, "part": {name: asdict(tally) for name, tally in part.items()}}
        with tf.io.gfile.GFile(f"{path}.part", "w") as stream:
            stream.write(json.dumps(content))
        tf.io.gfile.rename(f"{path}.part", path, overwrite=True)

    def all(self, weights: float, wait_s: float) -> list[dict[str, Tally]]:
        """Returns the parts of all workers, in order of the workers, so that all add them up alike.

        Raises:
          FeedlineError: one did not come in time, or is of other weights, as a file of an earlier training is.
        """
        until = time.monotonic() + wait_s
        parts: dict[int, dict[str, Tally]] = {}
        while len(parts) < self._host.count:
            for index in set(range(self._host.count)) - set(parts):
                part = self._read(index, weights)
                if part is not None:
                    parts[index] = part
            if len(parts) < self._host.count:
                if time.monotonic() > until:
                    raise FeedlineError(self._complaint(sorted(set(range(self._host.count)) - set(parts)), wait_s))
                time.sleep(_POLL_S)
        return [parts[index] for index in range(self._host.count)]

    def _read(self, index: int, weights: float) -> dict[str, Tally] | None:
        path = self._path(index)
        if not tf.io.gfile.exists(path):
            return None
        with tf.io.gfile.GFile(path) as stream:
            content = json.loads(stream.read())
        same = math.isclose(content["weights"], weights, rel_tol=_SAME_WEIGHTS)
        if not same and not (math.isnan(content["weights"]) and math.isnan(weights)):
            return None
        return {name: Tally(**tally) for name, tally in content["part"].items()}

    def _complaint(self, missing: Sequence[int], wait_s: float) -> str:
        path = self._path(missing[0])
        reason = "is of other weights" if tf.io.gfile.exists(path) else "is not there"
        return (
            f"worker {', '.join(map(str, missing))} of {self._host.count} wrote no evaluation of step {self._step} "
            f"within {wait_s:g} s: {path} {reason}; all workers must run and share this directory"
        )

    def _path(self, index: int) -> str:
        return os.path.join(self._directory, f"{worker_name(Host(index=index, count=self._host.count))}.json")
