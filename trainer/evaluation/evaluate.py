"""Evaluation on any number of machines: each evaluates exactly its part, all get the figures of the whole.

Nothing is sent between the machines but one small file each, in the log directory they share. A part holds counts and
sums, so the whole is exact: every record counts once, and padding counts nowhere.

A file and no collective operation: it works without a strategy, on any file system TensorFlow writes, can be read by a
person, and ends with an error instead of waiting for ever for a worker that is gone.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from beam_jobs.common.strings import unknown
from beam_jobs.errors import CorruptDataset, FeedlineError, OptionError
from trainer.evaluation.intervals import Figure, Spread, Tally, figure, spread
from trainer.input.parse import WEIGHT
from trainer.input.position import Host
from trainer.input_fn import VALID
from trainer.ops import IMAGE
from trainer.training.strategy import MakeBatches, strategy_host

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


Features: TypeAlias = Mapping[str, Any]
_EPSILON = 1e-7  # as `keras.losses`: no probability is taken for less


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One value an image.

    Attributes:
      of: (labels[n], outputs[n, classes]) in NumPy -> float[n]. Where all values are 0 or 1, the interval is Wilson's.
      falls: whether less is better.
    """

    of: Callable[[np.ndarray, np.ndarray], np.ndarray]
    falls: bool = False


def accuracy(labels: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Returns 1 where the class is right and 0 elsewhere; of many labels, the share of right yes-or-no answers.

    An output that is not a number is no answer, and wrong.
    """
    if labels.ndim == 1:
        return ((outputs.argmax(-1) == labels) & ~np.isnan(outputs).any(-1)).astype(np.float64)
    return (((outputs > 0.5) == (labels > 0.5)) & ~np.isnan(outputs)).mean(-1)


def cross_entropy(labels: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Returns the cross-entropy of each image in nats, without label smoothing; of many labels, the mean of theirs."""
    likely = np.clip(outputs.astype(np.float64), _EPSILON, 1 - _EPSILON)
    if labels.ndim == 1:
        return -np.log(likely[np.arange(len(labels)), labels])
    return -(labels * np.log(likely) + (1 - labels) * np.log(1 - likely)).mean(-1)


MEASURES: Mapping[str, Measure] = {
    "accuracy": Measure(of=accuracy),
    "loss": Measure(of=cross_entropy, falls=True),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to evaluate.

    Examples:
      >>> from trainer import Plan
      >>> sorted(Plan(confidence=0.99).measures)
      ['accuracy', 'loss']

    Attributes:
      measures: name -> what is measured of every image.
      inputs: features -> what the model takes; the image by default.
      confidence: of the intervals, above 0 and below 1.
      directory: of TensorBoard summaries and of what workers tell each other; one host may leave it empty.
      wait_s: how long to wait for the other workers once the own part is done, seconds.

    Raises:
      OptionError: the confidence is out of range.
    """

    measures: Mapping[str, Measure] = field(default_factory=lambda: MEASURES)
    inputs: Callable[[Features], Any] = lambda features: features[IMAGE]
    confidence: float = 0.95
    directory: str = ""
    wait_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise OptionError(f"confidence is {self.confidence!r}; it must be above 0 and below 1")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The figures of a whole split.

    Examples:
      >>> from trainer import Evaluation
      >>> from trainer.evaluation.intervals import Figure
      >>> accuracy = Figure(value=0.98, error=0.01, low=0.96, high=0.99, count=324, method="wilson")
      >>> evaluation = Evaluation(figures={"accuracy": accuracy})
      >>> evaluation.value("accuracy", choose_by="lower_bound")
      0.96
      >>> evaluation.logs()
      {'accuracy': 0.98, 'accuracy_error': 0.01, 'accuracy_low': 0.96, 'accuracy_high': 0.99}

    Attributes:
      figures: name -> figure.
      falling: names of those that are better when less.
    """

    figures: Mapping[str, Figure]
    falling: tuple[str, ...] = ()

    def value(self, name: str, choose_by: str = "value") -> float:
        """Returns what models are compared by.

        Args:
          name: of the figure.
          choose_by: `value`, or `lower_bound` for the worse end of the interval: the lower one, of a loss the upper.

        Raises:
          OptionError: there is no such figure, or no such way.
        """
        if name not in self.figures:
            raise OptionError(unknown("figure", name, self.figures))
        found = self.figures[name]
        if choose_by == "value":
            return found.value
        if choose_by == "lower_bound":
            return found.high if name in self.falling else found.low
        raise OptionError(unknown("way to choose", choose_by, ("value", "lower_bound")))

    def logs(self) -> dict[str, float]:
        """Returns the figures as Keras logs them, see `log_names`."""
        logs: dict[str, float] = {}
        for name, found in self.figures.items():
            logs |= zip(log_names(name), (found.value, found.error, found.low, found.high), strict=True)
        return logs


def log_names(name: str) -> tuple[str, str, str, str]:
    """Returns what the value of a figure, its error and the ends of its interval are called."""
    return name, f"{name}_error", f"{name}_low", f"{name}_high"


def evaluate(
    model: keras.Model,
    make: MakeBatches,
    plan: Plan = Plan(),
    *,
    step: int = 0,
    strategy: tf.distribute.Strategy | None = None,
    host: Host | None = None,
) -> Evaluation:
    """Evaluates a model; every host calls it and gets the figures of the whole.

    Examples:
      >>> from trainer import InputOptions, ModelSpec, build_model, evaluate_model, make_dataset
      >>> options = InputOptions(image_side_px=32, batch_size=8)
      >>> spec = ModelSpec(side_px=32, classes=2, mean_rgb=(125, 123, 114), std_rgb=(63, 62, 67))
      >>> model = build_model("small_cnn", spec)
      >>> part = lambda host: make_dataset("dataset", "eval", options, training=False, host=host)
      >>> accuracy = evaluate_model(model, part).figures["accuracy"]
      >>> 0 <= accuracy.low <= accuracy.value <= accuracy.high <= 1
      True

    Args:
      model: on any backend; with a strategy, made in its scope.
      make: host -> (features, labels) of its part, such as `make_dataset(..., training=False, host=host)`.
      plan: what is measured and where it goes.
      step: under which summaries are written and the workers meet, such as the epoch; another one for every evaluation.
      strategy: whose local replicas share the batches.
      host: which part this is; the strategy says it by default.

    Returns:
      the figures of all hosts together, each with its interval.

    Raises:
      OptionError: several hosts share no directory.
      CorruptDataset: an image has no single label to compare with.
      FeedlineError: the part of another worker did not come.
    """
    host = host or strategy_host(strategy)
    if host.count > 1 and not plan.directory:
        raise OptionError(f"{host.count} hosts evaluate together; give them a directory that all of them can read")
    exchange = Exchange(plan.directory, host, step)
    if host.count > 1:
        exchange.forget()
    part = evaluate_part(model, make(host), plan, strategy)
    weights = fingerprint(model)
    parts = [part]
    if host.count > 1:
        exchange.tell(part, weights)
        parts = exchange.all(weights, plan.wait_s)
    whole = combine(parts, plan)
    if plan.directory:
        _summarise(os.path.join(plan.directory, worker_name(host)), combine([part], plan), step)
        if host.index == 0:
            _summarise(os.path.join(plan.directory, "all"), whole, step)
    return whole


def evaluate_part(
    model: keras.Model, batches: tf.data.Dataset, plan: Plan, strategy: tf.distribute.Strategy | None = None
) -> dict[str, Tally]:
    """Evaluates the records of one host and returns what adds up with the others'.

    Args:
      model: on any backend.
      batches: (features, labels); a feature `valid` says with 0 what is padding, a feature `weight` float32[batch] how
        much an image counts.
      plan: what is measured.
      strategy: whose local replicas share every batch.

    Raises:
      CorruptDataset: an image has no single label to compare with.
    """
    found: dict[str, list[np.ndarray]] = {name: [] for name in plan.measures}
    weights: list[np.ndarray] = []
    for labels, outputs, weight in _outputs(model, batches, plan, strategy):
        weights.append(weight)
        if labels.ndim == 1 and (labels < 0).any():
            raise CorruptDataset("an image of the evaluation has no label; evaluate a split whose images have one each")
        for name, measure in plan.measures.items():
            found[name].append(measure.of(labels, outputs))
    nothing = [np.zeros(0)]
    heavy = np.concatenate(weights or nothing)
    return {name: Tally.of(np.concatenate(values or nothing), heavy) for name, values in found.items()}


def combine(parts: Sequence[Mapping[str, Tally]], plan: Plan) -> Evaluation:
    """Returns the figures of all parts together."""
    figures = {}
    for name in plan.measures:
        whole = Tally()
        for part in parts:
            whole += part[name]
        figures[name] = figure(whole, plan.confidence)
    falling = tuple(name for name, measure in plan.measures.items() if measure.falls)
    return Evaluation(figures=figures, falling=falling)


def spreads(evaluations: Sequence[Evaluation], last: int = 10) -> dict[str, Spread]:
    """Returns mean and spread of every figure over the last so many evaluations, such as one an epoch."""
    chosen = list(evaluations)[-last:]
    return {name: spread(item.figures[name].value for item in chosen) for name in chosen[0].figures}


def fingerprint(model: keras.Model) -> float:
    """Returns the sum of the squares of the trained weights: one number by which a worker knows its peers' files."""
    arrays = (keras.ops.convert_to_numpy(weight).astype(np.float64) for weight in model.trainable_weights)
    return float(sum(np.vdot(array, array) for array in arrays))


def _outputs(
    model: keras.Model, batches: tf.data.Dataset, plan: Plan, strategy: tf.distribute.Strategy | None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields labels, outputs and weights of the records, a batch at a time, without the padding."""
    run = _local_replicas(strategy, model) if strategy else _alone(model)
    for features, label in batches:
        labels = label.numpy()
        valid = features[VALID].numpy() > 0 if VALID in features else np.ones(len(labels), bool)
        weights = features[WEIGHT].numpy() if WEIGHT in features else np.ones(len(labels))
        if valid.any():
            yield labels[valid], np.asarray(run(plan.inputs(features)))[valid], weights[valid]


def _alone(model: keras.Model) -> Callable[[Any], np.ndarray]:
    """Returns a function of inputs -> outputs on one device, of any backend: only TensorFlow knows its own tensors."""

    def plain(rows: tf.Tensor | tf.RaggedTensor) -> np.ndarray | tf.RaggedTensor:
        return rows if isinstance(rows, tf.RaggedTensor) else rows.numpy()

    return lambda inputs: model.predict_on_batch(tf.nest.map_structure(plain, inputs))


def _local_replicas(strategy: tf.distribute.Strategy, model: keras.Model) -> Callable[[Any], np.ndarray]:
    """Returns a function of inputs -> outputs that shares a batch among the replicas of this machine.

    Nothing in it waits for another machine, so that machines may evaluate any number of batches.
    """
    count = strategy.num_replicas_in_sync // strategy_host(strategy).count

    @tf.function(reduce_retracing=True)
    def forward(inputs: Any) -> Any:
        return strategy.run(lambda given: model(given, training=False), args=(inputs,))

    def run(inputs: Any) -> np.ndarray:
        size = len(tf.nest.flatten(inputs)[0])
        share = -(-size // count)  # of a batch that does not divide, the last replicas get less, perhaps nothing
        bounds = [(min(size, i * share), min(size, (i + 1) * share)) for i in range(count)]
        pieces = [tf.nest.map_structure(lambda rows, a=a, b=b: rows[a:b], inputs) for a, b in bounds]
        if count == 1:
            given = pieces[0]
        else:
            given = strategy.experimental_distribute_values_from_function(
                lambda context: pieces[context.replica_id_in_sync_group % count]
            )
        results = strategy.experimental_local_results(forward(given))
        return np.concatenate([result.numpy() for result in results])

    return run


def _summarise(directory: str, evaluation: Evaluation, step: int) -> None:
    """Writes the figures for TensorBoard; one event file a call, complete when it returns."""
    writer = tf.summary.create_file_writer(directory)
    with writer.as_default(step=step):
        for name, value in evaluation.logs().items():
            tf.summary.scalar(f"evaluation/{name}", value)
    writer.close()
