"""Evaluation on any number of machines: each evaluates its part of a split, all return the figures of the split.

Each machine writes one small file into the log directory that all share. The file contains counts and sums, so the
figures are exact: every record counts once, and padding does not count.

Files need no strategy, work on every file system that TensorFlow writes, and are readable. If a worker has ended, the
other workers raise an error after a time limit; a collective operation would wait for ever.
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

_WEIGHTS_TOLERANCE = 1e-5  # relative; workers may differ in the last bit, two trainings differ by more
_POLL_S = 0.05


def worker_name(host: Host) -> str:
    """Returns the name of the directory of a worker, such as `worker-0-of-2`."""
    return f"worker-{host.index}-of-{host.count}"


class Exchange:
    """Files through which the workers exchange their tallies."""

    def __init__(self, directory: str, host: Host, step: int) -> None:
        self._directory = os.path.join(directory, "parts", f"step-{step:08d}")
        self._host = host
        self._step = step

    def remove(self) -> None:
        """Removes the file that this worker wrote for an earlier evaluation of the same step."""
        path = self._path(self._host.index)
        if tf.io.gfile.exists(path):
            tf.io.gfile.remove(path)

    def write(self, tallies: Mapping[str, Tally], fingerprint: float) -> None:
        """Writes the file of this worker atomically."""
        path = self._path(self._host.index)
        tf.io.gfile.makedirs(self._directory)
        content = {"weights": fingerprint, "part": {name: asdict(tally) for name, tally in tallies.items()}}
        with tf.io.gfile.GFile(f"{path}.part", "w") as stream:
            stream.write(json.dumps(content))
        tf.io.gfile.rename(f"{path}.part", path, overwrite=True)

    def read_all(self, fingerprint: float, wait_s: float) -> list[dict[str, Tally]]:
        """Waits for the files of all workers and returns their tallies in the order of the workers.

        Raises:
          FeedlineError: a file does not arrive in time, or belongs to other weights, such as an older model's.
        """
        deadline = time.monotonic() + wait_s
        parts: dict[int, dict[str, Tally]] = {}
        while missing := sorted(set(range(self._host.count)) - set(parts)):
            parts |= {index: part for index in missing if (part := self._read(index, fingerprint)) is not None}
            if len(parts) < self._host.count:
                if time.monotonic() > deadline:
                    raise FeedlineError(self._timeout_message(sorted(set(missing) - set(parts)), wait_s))
                time.sleep(_POLL_S)
        return [parts[index] for index in range(self._host.count)]

    def _read(self, index: int, fingerprint: float) -> dict[str, Tally] | None:
        path = self._path(index)
        if not tf.io.gfile.exists(path):
            return None
        with tf.io.gfile.GFile(path) as stream:
            content = json.loads(stream.read())
        is_equal = math.isclose(content["weights"], fingerprint, rel_tol=_WEIGHTS_TOLERANCE)
        if not is_equal and not (math.isnan(content["weights"]) and math.isnan(fingerprint)):
            return None
        return {name: Tally(**tally) for name, tally in content["part"].items()}

    def _timeout_message(self, missing: Sequence[int], wait_s: float) -> str:
        path = self._path(missing[0])
        reason = "belongs to other weights" if tf.io.gfile.exists(path) else "does not exist"
        return (
            f"worker {', '.join(map(str, missing))} of {self._host.count} wrote no evaluation of step {self._step} "
            f"within {wait_s:g} s: {path} {reason}; all workers must run and share this directory"
        )

    def _path(self, index: int) -> str:
        return os.path.join(self._directory, f"{worker_name(Host(index=index, count=self._host.count))}.json")


Features: TypeAlias = Mapping[str, Any]
_EPSILON = 1e-7  # least probability, as in `keras.losses`


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A function with one value per image.

    Attributes:
      function: (labels[n], outputs[n, classes]) in NumPy -> float[n]. If all values are 0 or 1, the confidence interval
        is Wilson's.
      lower_is_better: whether lower values are better, as for a loss.
    """

    function: Callable[[np.ndarray, np.ndarray], np.ndarray]
    lower_is_better: bool = False


def accuracy(labels: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Returns 1 where the class is correct, 0 elsewhere; with several labels, the share of correct binary predictions.

    An output that is NaN is an incorrect prediction.
    """
    if labels.ndim == 1:
        return ((outputs.argmax(-1) == labels) & ~np.isnan(outputs).any(-1)).astype(np.float64)
    return (((outputs > 0.5) == (labels > 0.5)) & ~np.isnan(outputs)).mean(-1)


def cross_entropy(labels: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Returns the cross-entropy of each image in nats, without label smoothing; with several labels, their mean."""
    clipped_outputs = np.clip(outputs.astype(np.float64), _EPSILON, 1 - _EPSILON)
    if labels.ndim == 1:
        return -np.log(clipped_outputs[np.arange(len(labels)), labels])
    return -(labels * np.log(clipped_outputs) + (1 - labels) * np.log(1 - clipped_outputs)).mean(-1)


MEASURES: Mapping[str, Measure] = {
    "accuracy": Measure(function=accuracy),
    "loss": Measure(function=cross_entropy, lower_is_better=True),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Options of an evaluation.

    Examples:
      >>> from trainer import Plan
      >>> sorted(Plan(confidence=0.99).measures)
      ['accuracy', 'loss']

    Attributes:
      measures: name of a figure -> `Measure`.
      inputs: features -> inputs of the model; the image by default.
      confidence: confidence level of the intervals, above 0 and below 1.
      directory: directory of TensorBoard summaries and of the files that workers exchange; may be empty for one host.
      wait_s: longest wait for the files of the other workers, seconds.

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
    """The figures of a complete split.

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
      falling: names of the figures for which lower values are better.
    """

    figures: Mapping[str, Figure]
    falling: tuple[str, ...] = ()

    def value(self, name: str, choose_by: str = "value") -> float:
        """Returns the value by which models are compared.

        Args:
          name: name of the figure.
          choose_by: `value`, or `lower_bound` for the pessimistic confidence bound: the lower one, upper for a loss.

        Raises:
          OptionError: the figure or the value of `choose_by` is unknown.
        """
        if name not in self.figures:
            raise OptionError(unknown("metric", name, self.figures))
        item = self.figures[name]
        if choose_by == "value":
            return item.value
        if choose_by == "lower_bound":
            return item.high if name in self.falling else item.low
        raise OptionError(unknown("way to choose", choose_by, ("value", "lower_bound")))

    def logs(self) -> dict[str, float]:
        """Returns the figures as Keras logs them, see `log_names`."""
        logs: dict[str, float] = {}
        for name, item in self.figures.items():
            logs |= zip(log_names(name), (item.value, item.error, item.low, item.high), strict=True)
        return logs


def log_names(name: str) -> tuple[str, str, str, str]:
    """Returns the names of the value of a figure, its standard error and the bounds of its confidence interval."""
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
    """Evaluates a model on a split; every host calls this function, which returns the figures of all hosts together.

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
      model: model on any backend; with a strategy, built in its scope.
      make: host -> (features, labels) of its part, such as `make_dataset(..., training=False, host=host)`.
      plan: options of the evaluation.
      step: number of the evaluation, such as the epoch: the step of the summaries and part of the names of the files.
      strategy: strategy whose local replicas share the batches.
      host: index and number of hosts; those of the strategy by default.

    Returns:
      the figures of all hosts together, each with its confidence interval.

    Raises:
      OptionError: there are several hosts, and `plan.directory` is empty.
      CorruptDataset: an image has no single label to compare with.
      FeedlineError: the file of another worker does not arrive within `plan.wait_s`.
    """
    host = host or strategy_host(strategy)
    if host.count > 1 and not plan.directory:
        raise OptionError(
            f"directory of the plan is empty and {host.count} hosts evaluate; set it to one that all of them share"
        )
    exchange = Exchange(plan.directory, host, step)
    if host.count > 1:
        exchange.remove()
    part = evaluate_part(model, make(host), plan, strategy)
    weights_fingerprint = fingerprint(model)
    parts = [part]
    if host.count > 1:
        exchange.write(part, weights_fingerprint)
        parts = exchange.read_all(weights_fingerprint, plan.wait_s)
    evaluation = combine(parts, plan)
    if plan.directory:
        _summarise(os.path.join(plan.directory, worker_name(host)), combine([part], plan), step)
        if host.index == 0:
            _summarise(os.path.join(plan.directory, "all"), evaluation, step)
    return evaluation


def evaluate_part(
    model: keras.Model, batches: tf.data.Dataset, plan: Plan, strategy: tf.distribute.Strategy | None = None
) -> dict[str, Tally]:
    """Evaluates the records of one host and returns tallies, which `combine` adds to those of other hosts.

    Args:
      model: model on any backend.
      batches: (features, labels); the feature `valid` is 0 for padding, `weight` float32[batch] is the weight of each
        image; both are optional.
      plan: options of the evaluation.
      strategy: strategy whose local replicas share every batch.

    Raises:
      CorruptDataset: an image has no single label to compare with.
    """
    values: dict[str, list[np.ndarray]] = {name: [np.zeros(0)] for name in plan.measures}
    weights: list[np.ndarray] = [np.zeros(0)]
    for labels, outputs, weight in _outputs(model, batches, plan, strategy):
        weights.append(weight)
        if labels.ndim == 1 and (labels < 0).any():
            raise CorruptDataset("an image of the evaluation has no label; evaluate a split whose images have one each")
        for name, measure in plan.measures.items():
            values[name].append(measure.function(labels, outputs))
    all_weights = np.concatenate(weights)
    return {name: Tally.from_values(np.concatenate(arrays), all_weights) for name, arrays in values.items()}


def combine(parts: Sequence[Mapping[str, Tally]], plan: Plan) -> Evaluation:
    """Returns the figures of a split from the tallies of its parts."""
    figures = {}
    for name in plan.measures:
        tally = Tally()
        for part in parts:
            tally += part[name]
        figures[name] = figure(tally, plan.confidence)
    falling = tuple(name for name, measure in plan.measures.items() if measure.lower_is_better)
    return Evaluation(figures=figures, falling=falling)


def spreads(evaluations: Sequence[Evaluation], last: int = 10) -> dict[str, Spread]:
    """Returns the variation of every figure over the last `last` evaluations, such as those of epochs."""
    latest = list(evaluations)[-last:]
    return {name: spread(item.figures[name].value for item in latest) for name in latest[0].figures}


def fingerprint(model: keras.Model) -> float:
    """Returns the sum of the squares of the trainable weights, which identifies the model in exchanged files."""
    arrays = (keras.ops.convert_to_numpy(weight).astype(np.float64) for weight in model.trainable_weights)
    return float(sum(np.vdot(array, array) for array in arrays))


def _outputs(
    model: keras.Model, batches: tf.data.Dataset, plan: Plan, strategy: tf.distribute.Strategy | None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields labels, outputs and weights of each batch without its padding.

    The model gets batches of one size, so that it is traced, and compiled by XLA, once: the last batch, if smaller, is
    filled with its first image.
    """
    predict = _replica_function(strategy, model) if strategy else _device_function(model)
    size = 0
    for features, label in batches:
        labels = label.numpy()
        size = max(size, len(labels))
        row_indices = tf.range(size) * tf.cast(tf.range(size) < len(labels), tf.int32)  # 0, 1, ..., last, 0, 0, ...
        valid = features[VALID].numpy() > 0 if VALID in features else np.ones(len(labels), bool)
        weights = features[WEIGHT].numpy() if WEIGHT in features else np.ones(len(labels))
        if valid.any():
            inputs = plan.inputs(features)
            if len(labels) < size:
                inputs = tf.nest.map_structure(lambda values, rows=row_indices: tf.gather(values, rows), inputs)
            yield labels[valid], np.asarray(predict(inputs))[: len(labels)][valid], weights[valid]


def _device_function(model: keras.Model) -> Callable[[Any], np.ndarray]:
    """Returns a function inputs -> outputs on one device, which converts tensors of TensorFlow for other backends."""

    def to_numpy(rows: tf.Tensor | tf.RaggedTensor) -> np.ndarray | tf.RaggedTensor:
        return rows if isinstance(rows, tf.RaggedTensor) else rows.numpy()

    return lambda inputs: model.predict_on_batch(tf.nest.map_structure(to_numpy, inputs))


def _replica_function(strategy: tf.distribute.Strategy, model: keras.Model) -> Callable[[Any], np.ndarray]:
    """Returns a function inputs -> outputs that divides a batch among the replicas of this machine.

    The function does not wait for other machines, so that machines may evaluate different numbers of batches.
    """
    count = strategy.num_replicas_in_sync // strategy_host(strategy).count

    @tf.function(reduce_retracing=True)
    def forward(inputs: Any) -> Any:
        return strategy.run(lambda rows: model(rows, training=False), args=(inputs,))

    def run(inputs: Any) -> np.ndarray:
        size = len(tf.nest.flatten(inputs)[0])
        share = -(-size // count)  # if it does not divide evenly, the last replicas get fewer images or none
        bounds = [(min(size, i * share), min(size, (i + 1) * share)) for i in range(count)]
        pieces = [tf.nest.map_structure(lambda rows, a=a, b=b: rows[a:b], inputs) for a, b in bounds]
        if count == 1:
            replica_inputs = pieces[0]
        else:
            replica_inputs = strategy.experimental_distribute_values_from_function(
                lambda context: pieces[context.replica_id_in_sync_group % count]
            )
        results = strategy.experimental_local_results(forward(replica_inputs))
        return np.concatenate([result.numpy() for result in results])

    return run


def _summarise(directory: str, evaluation: Evaluation, step: int) -> None:
    """Writes the figures for TensorBoard, one complete event file per call."""
    writer = tf.summary.create_file_writer(directory)
    with writer.as_default(step=step):
        for name, value in evaluation.logs().items():
            tf.summary.scalar(f"evaluation/{name}", value)
    writer.close()
