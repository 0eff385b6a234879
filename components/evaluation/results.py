"""The options of an evaluation, and the results of Evaluator as plain values.

The configuration of Evaluator uses the constants as names of its metrics.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypedDict

from pydantic.dataclasses import dataclass as checked_dataclass

from beam_jobs.common.settings import STRICT, Options, Share
from beam_jobs.dataset import record
from beam_jobs.dataset.schemas import check_column
from beam_jobs.errors import CorruptDataset, OptionError
from trainer.evaluation.intervals import wilson

ACCURACY = "sparse_categorical_accuracy"
TOP_K = 5
TOP_ACCURACY = f"top_{TOP_K}_accuracy"
COUNT = "example_count"
MARGIN = "accuracy_margin"
LARGEST = "largest_class_share"
EFFECTIVE = "effective_images"
CALIBRATION_BINS = 10
# TFMA compares values in single precision: without this tolerance, 36 of 40 would be below a threshold of 0.9.
ROUNDING = 1e-6


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class EvaluateOptions(Options):
    """The requirements for a model to be blessed, and the columns by whose values the accuracy is measured.

    Attributes:
      min_accuracy: minimum accuracy on the evaluation split, 0-1; 0 is off.
      above_largest_class: whether the lower end of the 95 % confidence interval of the accuracy must be above the share
        of the largest class in the evaluation split, which is the accuracy of always predicting that class.
      max_drop: maximum difference by which the accuracy may be below that of the previous blessed model on the same
        images, 0-1; None is off. The first model, and a model with other classes, is not compared.
      slice_by: user columns with few values, without `extra/`; the accuracy is also measured for each of their values.

    Raises:
      OptionError: a value is out of range; the message gives the value and the allowed values.
    """

    min_accuracy: Share = 0.0
    above_largest_class: bool = True
    max_drop: Share | None = None
    slice_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.slice_by)) < len(self.slice_by):
            raise OptionError(f"slice_by is {list(self.slice_by)!r}; it names a column twice")
        for name in self.slice_by:
            if name.startswith(record.EXTRA_PREFIX):
                column = name.removeprefix(record.EXTRA_PREFIX)
                raise OptionError(f"slice_by names {name!r}; columns are named as in ingest.columns.extra: {column}")

    def check(self, columns: Collection[str]) -> None:
        """Checks that the columns of `slice_by` exist.

        Args:
          columns: user columns of the dataset, without `extra/`.

        Raises:
          OptionError: a column does not exist.
        """
        for name in self.slice_by:
            check_column(name, columns, "evaluate.slice_by")


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """An accuracy with its 95 % confidence interval.

    Attributes:
      value: share of correct predictions, 0-1.
      low: lower end of the interval, 0-1.
      high: upper end of the interval, 0-1.
      images: number of images.
    """

    value: float
    low: float
    high: float
    images: int

    @classmethod
    def from_share(cls, share: float, images: int, effective: float | None = None) -> Accuracy:
        """Returns an accuracy with the interval for the effective number of images, by default `images`."""
        low, high = wilson(share, images if effective is None else effective)
        return cls(value=share, low=low, high=high, images=images)


class Confusion(TypedDict):
    """A confusion matrix.

    Attributes:
      labels: class names of rows and columns.
      counts: number of images by true class (row) and predicted class (column).
    """

    labels: list[str]
    counts: list[list[int]]


class Bin(TypedDict):
    """A calibration bin: images with similar probabilities of their predicted class.

    Attributes:
      low: lowest probability of the bin, 0-1.
      high: highest probability of the bin, 0-1.
      mean_predicted: mean probability, 0-1; 0 without images.
      share_right: share of correct predictions, which equals the mean probability for a calibrated model; 0 without
        images.
      images: number of images.
    """

    low: float
    high: float
    mean_predicted: float
    share_right: float
    images: int


class Calibration(TypedDict):
    """Calibration of the probability of the predicted class.

    Attributes:
      bins: all bins, of equal width.
      ece: expected calibration error, 0-1: mean distance of `mean_predicted` and `share_right`, weighted by images.
    """

    bins: list[Bin]
    ece: float


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The results of Evaluator for a model on the evaluation split.

    Attributes:
      overall: accuracy over all images.
      classes: class name -> recall, sorted by name.
      precision: class name -> precision, sorted by name.
      top_k: share of images whose class is among the five most likely; None for five classes or fewer.
      slices: user column -> value -> accuracy over the images with that value.
      slice_largest: user column -> value -> accuracy of always answering with the largest class of these images, 0-1.
      confusion: confusion matrix; None if not measured.
      calibration: calibration; None if not measured.
      baseline: accuracy of the previous blessed model on the same images; None if there is no baseline.
      refused: a sentence for each threshold that the model missed; empty if it is blessed.
      largest_class_share: accuracy of always answering with the largest class, 0-1; None if not measured.
    """

    overall: Accuracy
    classes: Mapping[str, Accuracy]
    precision: Mapping[str, Accuracy] = field(default_factory=dict)
    top_k: Accuracy | None = None
    slices: Mapping[str, Mapping[str, Accuracy]] = field(default_factory=dict)
    slice_largest: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    confusion: Confusion | None = None
    calibration: Calibration | None = None
    baseline: Accuracy | None = None
    refused: tuple[str, ...] = ()
    largest_class_share: float | None = None


# True class index, predicted class index -> number of images.
_Counts: TypeAlias = Mapping[tuple[int, int], int]


def load_evaluation(path: str, labels: Sequence[str] = ()) -> Evaluation:
    """Reads a `ModelEvaluation` artifact.

    Args:
      path: directory of the artifact.
      labels: class names by index; by default, names from the artifact, or `class INDEX` for a class without images.

    Raises:
      CorruptDataset: the artifact is incomplete.
    """
    metrics, plots = _read_metrics(path)
    if () not in metrics:
        raise CorruptDataset(f"{path} has no overall metrics; run the Evaluator again")
    counts = _confusion_counts(plots.get((), {}))
    names = list(labels) or _class_names(plots, counts)
    confusion = _confusion(counts, names) if counts else None
    accuracies = {key: _accuracy(values, ACCURACY) for key, values in metrics.items()}
    largest = {key: _metric_value(values[LARGEST]) for key, values in metrics.items() if LARGEST in values}
    return Evaluation(
        overall=accuracies[()],
        classes=_by_column_value(accuracies, record.TEXT),
        precision=_precision(confusion) if confusion else {},
        top_k=_accuracy(metrics[()], TOP_ACCURACY) if len(names) > TOP_K and TOP_ACCURACY in metrics[()] else None,
        slices=_slices(accuracies),
        slice_largest=_slices(largest),
        confusion=confusion,
        calibration=_calibration(plots.get((), {}).get("topK:1", {})),
        baseline=_baseline_accuracy(path),
        refused=_missed_thresholds(path, accuracies[()], metrics[()]),
        largest_class_share=largest.get(()),
    )


def _read_metrics(path: str) -> tuple[dict[tuple, Any], dict[tuple, Any]]:
    """Returns slice -> metric -> value, and slice -> aggregation -> plot, of the evaluated model."""
    import tensorflow_model_analysis as tfma

    # TFMA names the models only in an evaluation with a baseline.
    for model in (tfma.CANDIDATE_KEY, ""):
        result = tfma.load_eval_result(path, model_name=model)
        if result.slicing_metrics:
            metrics = {_text_key(key): outputs[""][""] for key, outputs in result.slicing_metrics}
            return metrics, {_text_key(key): outputs[""] for key, outputs in result.plots}
    return {}, {}


def _baseline_accuracy(path: str) -> Accuracy | None:
    import tensorflow_model_analysis as tfma

    result = tfma.load_eval_result(path, model_name=tfma.BASELINE_KEY)
    metrics = {_text_key(key): outputs[""][""] for key, outputs in result.slicing_metrics}
    return _accuracy(metrics[()], ACCURACY) if () in metrics else None


def _missed_thresholds(path: str, accuracy: Accuracy, metrics: Mapping[str, Mapping]) -> tuple[str, ...]:
    import tensorflow_model_analysis as tfma

    validations = tfma.load_validation_result(path).metric_validations_per_slice
    return tuple(
        _failure_text(failure, accuracy, metrics) for validation in validations for failure in validation.failures
    )


def _failure_text(failure: Any, accuracy: Accuracy, metrics: Mapping[str, Mapping]) -> str:
    if failure.metric_key.name == MARGIN:
        return (
            f"the accuracy {accuracy.value:.4f} may be chance: the lower end {accuracy.low:.4f} of its confidence "
            f"interval is not above {_metric_value(metrics[LARGEST]):.4f}, the share of the largest class "
            "(evaluate.above_largest_class)"
        )
    threshold = failure.metric_threshold
    if failure.metric_key.is_diff:
        return (
            f"the accuracy {accuracy.value:.4f} is more than evaluate.max_drop "
            f"{-threshold.change_threshold.absolute.value - ROUNDING:g} below that of the previous model"
        )
    minimum = threshold.value_threshold.lower_bound.value + ROUNDING
    return f"the accuracy {accuracy.value:.4f} is below evaluate.min_accuracy {minimum:g}"


def _text_key(slice_key: Iterable[tuple[str, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, value.decode(errors="replace") if isinstance(value, bytes) else str(value)) for name, value in slice_key
    )


def _by_column_value(results: Mapping[tuple, Any], column: str) -> dict[str, Any]:
    return {key[0][1]: results[key] for key in sorted(results) if key and key[0][0] == column}


def _slices(results: Mapping[tuple, Any]) -> dict[str, dict[str, Any]]:
    columns = sorted({key[0][0] for key in results if key} - {record.TEXT})
    return {name.removeprefix(record.EXTRA_PREFIX): _by_column_value(results, name) for name in columns}


def _accuracy(metrics: Mapping[str, Mapping], name: str) -> Accuracy:
    images = round(_metric_value(metrics[COUNT]))
    effective = _metric_value(metrics[EFFECTIVE]) if EFFECTIVE in metrics else images
    if not math.isclose(effective, images, rel_tol=1e-9):
        return Accuracy.from_share(_metric_value(metrics[name]) if effective else 0.0, images, effective)
    # TFMA stores shares in single precision; without weights, the exact share follows from the number of images.
    share = round(_metric_value(metrics[name]) * images) / images if images else 0.0
    return Accuracy.from_share(share, images)


def _metric_value(metric: Mapping) -> float:
    # TFMA stores a number with an interval as a bounded value.
    bounded = metric.get("boundedValue")
    return float(bounded["value"] if bounded else metric["doubleValue"])


def _confusion_counts(plots: Mapping[str, Mapping]) -> _Counts:
    matrices = plots.get("", {}).get("multiClassConfusionMatrixAtThresholds", {}).get("matrices", [])
    entries = matrices[0].get("entries", []) if matrices else []
    # The JSON values have no fields with the value 0.
    return {
        (entry.get("actualClassId", 0), entry.get("predictedClassId", 0)): round(entry.get("numWeightedExamples", 0))
        for entry in entries
    }


def _class_names(plots: Mapping[tuple, Any], counts: _Counts) -> list[str]:
    """Returns class names by index, from the slices by class: the true class of all images of a slice is its class."""
    indices = {index for pair in counts for index in pair}
    names = [f"class {index}" for index in range(max(indices, default=-1) + 1)]
    for key, slice_plots in plots.items():
        if key and key[0][0] == record.TEXT:
            for index, _ in _confusion_counts(slice_plots):
                names[index] = key[0][1]
    return names


def _confusion(counts: _Counts, names: Sequence[str]) -> Confusion:
    matrix = [[0] * len(names) for _ in names]
    for (true, predicted), images in counts.items():
        matrix[true][predicted] = images
    return Confusion(labels=list(names), counts=matrix)


def _precision(confusion: Confusion) -> dict[str, Accuracy]:
    precision = {}
    for index, name in enumerate(confusion["labels"]):
        predicted = sum(row[index] for row in confusion["counts"])
        correct = confusion["counts"][index][index]
        precision[name] = Accuracy.from_share(correct / predicted if predicted else 0.0, predicted)
    return dict(sorted(precision.items()))


def _calibration(plots: Mapping[str, Mapping]) -> Calibration | None:
    buckets = plots.get("calibrationHistogramBuckets", {}).get("buckets", [])
    sums = [[0.0, 0.0, 0.0] for _ in range(CALIBRATION_BINS)]  # images, correct predictions, probabilities
    for bucket in buckets:
        # TFMA adds a bucket at each end; the upper one contains probabilities of exactly 1.
        low = max(0.0, float(bucket.get("lowerThresholdInclusive", 0.0)))
        index = min(round(low * CALIBRATION_BINS), CALIBRATION_BINS - 1)
        for column, name in enumerate(("numWeightedExamples", "totalWeightedLabel", "totalWeightedRefinedPrediction")):
            sums[index][column] += float(bucket.get(name, 0.0))
    images = sum(bin_sums[0] for bin_sums in sums)
    if not images:
        return None
    bins = [_bin(index, *bin_sums) for index, bin_sums in enumerate(sums)]
    ece = sum(item["images"] * abs(item["mean_predicted"] - item["share_right"]) for item in bins) / images
    return Calibration(bins=bins, ece=ece)


def _bin(index: int, images: float, correct: float, probability_sum: float) -> Bin:
    return Bin(
        low=index / CALIBRATION_BINS,
        high=(index + 1) / CALIBRATION_BINS,
        mean_predicted=probability_sum / images if images else 0.0,
        share_right=correct / images if images else 0.0,
        images=round(images),
    )
