"""An evaluation: its options, what it says as plain values, and how what Evaluator wrote is read.

The names are those of the configuration of Evaluator too.
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
# TFMA compares numbers of single precision: 36 of 40 would miss a least accuracy of 0.9.
ROUNDING = 1e-6


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class EvaluateOptions(Options):
    """When a model is good enough to be pushed, and what is looked at apart.

    Attributes:
      min_accuracy: accuracy on the eval split below which the model is not blessed, 0-1. 0 is no limit.
      above_largest_class: bless no model for which always answering with the largest class is an explanation: the lower
        end of the 95 % interval of the accuracy must lie above the share of that class in the eval split.
      max_drop: how far the accuracy may lie below that of the model blessed before, on the same images, 0-1; None
        compares with none. The first model, and one of other classes than those before it, has none to compare with.
      slice_by: user columns, without `extra/`, whose values are measured one by one: columns of few values.

    Raises:
      OptionError: a value is out of range; the message names it and what is allowed.
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
                plain = name.removeprefix(record.EXTRA_PREFIX)
                raise OptionError(f"slice_by names {name!r}; columns are named as in ingest.columns.extra: {plain}")

    def check(self, known: Collection[str]) -> None:
        """Checks that the columns exist.

        Args:
          known: user columns of the dataset, without `extra/`.

        Raises:
          OptionError: one does not.
        """
        for name in self.slice_by:
            check_column(name, known, "evaluate.slice_by")


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Share of right answers over some images.

    Attributes:
      value: 0-1.
      low: lower end of the 95 % interval.
      high: upper end.
      images: number of images.
    """

    value: float
    low: float
    high: float
    images: int

    @classmethod
    def of(cls, share: float, images: int, effective: float | None = None) -> Accuracy:
        """Returns a share of right answers with its 95 % interval; `effective` images count in it, all by default."""
        low, high = wilson(share, images if effective is None else effective)
        return cls(value=share, low=low, high=high, images=images)


class Confusion(TypedDict):
    """Which class the images of each class were taken for.

    Attributes:
      labels: class names, of rows and columns.
      counts: images of the class of the row whose most likely class is that of the column.
    """

    labels: list[str]
    counts: list[list[int]]


class Bin(TypedDict):
    """Images whose most likely class was given about the same probability.

    Attributes:
      low: least probability, 0-1.
      high: greatest.
      mean_predicted: mean probability that was given; 0 without images.
      share_right: share of right answers among them; of a calibrated model the same number. 0 without images.
      images: number of images.
    """

    low: float
    high: float
    mean_predicted: float
    share_right: float
    images: int


class Calibration(TypedDict):
    """Whether the probabilities of the most likely class are what they say.

    Attributes:
      bins: of equal width, all of them.
      ece: expected calibration error: distance of `mean_predicted` and `share_right`, weighted by images, 0-1.
    """

    bins: list[Bin]
    ece: float


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What was measured on the held-back split.

    Attributes:
      overall: over all its images.
      classes: class name -> accuracy over its images, which is the recall, in order of the names.
      precision: class name -> accuracy over the images taken for it, in order of the names.
      top_k: share of images whose class is among the five most likely; None of five classes and fewer.
      slices: user column -> value -> accuracy over the images that hold it.
      confusion: None when it was not measured.
      calibration: None when it was not measured.
      baseline: accuracy of the model blessed before on the same images; None when it was compared with none.
      refused: a sentence for each limit that the model missed; empty when it is blessed.
    """

    overall: Accuracy
    classes: Mapping[str, Accuracy]
    precision: Mapping[str, Accuracy] = field(default_factory=dict)
    top_k: Accuracy | None = None
    slices: Mapping[str, Mapping[str, Accuracy]] = field(default_factory=dict)
    confusion: Confusion | None = None
    calibration: Calibration | None = None
    baseline: Accuracy | None = None
    refused: tuple[str, ...] = ()


# True class index, predicted class index -> images.
_Counts: TypeAlias = Mapping[tuple[int, int], int]
_CONFUSION_PLOT = "multiClassConfusionMatrixAtThresholds"
_CALIBRATION_PLOT = "calibrationHistogramBuckets"
_TOP_ONE = "topK:1"


def load_evaluation(path: str, labels: Sequence[str] = ()) -> Evaluation:
    """Reads a `ModelEvaluation` artifact.

    Args:
      path: its directory.
      labels: class names by index. Without them a class that no evaluated image has is called by its index.

    Raises:
      CorruptDataset: it is incomplete.
    """
    metrics, plots = _read(path)
    if () not in metrics:
        raise CorruptDataset(f"{path} holds no overall metrics; run the Evaluator again")
    counts = _counts(plots.get((), {}))
    names = list(labels) or _names(plots, counts)
    confusion = _confusion(counts, names) if counts else None
    accuracies = {key: _accuracy(values, ACCURACY) for key, values in metrics.items()}
    return Evaluation(
        overall=accuracies[()],
        classes=_of_column(accuracies, record.TEXT),
        precision=_precision(confusion) if confusion else {},
        top_k=_accuracy(metrics[()], TOP_ACCURACY) if len(names) > TOP_K and TOP_ACCURACY in metrics[()] else None,
        slices=_slices(accuracies),
        confusion=confusion,
        calibration=_calibration(plots.get((), {}).get(_TOP_ONE, {})),
        baseline=_baseline(path),
        refused=_refused(path, accuracies[()], metrics[()]),
    )


def _read(path: str) -> tuple[dict[tuple, Any], dict[tuple, Any]]:
    """Returns slice -> metric -> value, and slice -> kind -> plot, of the model that was evaluated."""
    import tensorflow_model_analysis as tfma

    # Only where there was another model to compare with do models have names.
    for model in (tfma.CANDIDATE_KEY, ""):
        result = tfma.load_eval_result(path, model_name=model)
        if result.slicing_metrics:
            metrics = {_key(key): outputs[""][""] for key, outputs in result.slicing_metrics}
            return metrics, {_key(key): outputs[""] for key, outputs in result.plots}
    return {}, {}


def _baseline(path: str) -> Accuracy | None:
    import tensorflow_model_analysis as tfma

    result = tfma.load_eval_result(path, model_name=tfma.BASELINE_KEY)
    metrics = {_key(key): outputs[""][""] for key, outputs in result.slicing_metrics}
    return _accuracy(metrics[()], ACCURACY) if () in metrics else None


def _refused(path: str, accuracy: Accuracy, metrics: Mapping[str, Mapping]) -> tuple[str, ...]:
    """Returns a sentence for each limit that the model missed."""
    import tensorflow_model_analysis as tfma

    validations = tfma.load_validation_result(path).metric_validations_per_slice
    return tuple(
        _limit_missed(failure, accuracy, metrics) for validation in validations for failure in validation.failures
    )


def _limit_missed(failure: Any, accuracy: Accuracy, metrics: Mapping[str, Mapping]) -> str:
    if failure.metric_key.name == MARGIN:
        return (
            f"the accuracy {accuracy.value:.4f} may be chance: the lower end {accuracy.low:.4f} of its interval is not "
            f"above {_number(metrics[LARGEST]):.4f}, the share of the largest class (evaluate.above_largest_class)"
        )
    limits = failure.metric_threshold
    if failure.metric_key.is_diff:
        return (
            f"the accuracy {accuracy.value:.4f} is more than evaluate.max_drop "
            f"{-limits.change_threshold.absolute.value - ROUNDING:g} below that of the model before"
        )
    least = limits.value_threshold.lower_bound.value + ROUNDING
    return f"the accuracy {accuracy.value:.4f} is under evaluate.min_accuracy {least:g}"


def _key(slice_key: Iterable[tuple[str, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, _text(value)) for name, value in slice_key)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _of_column(accuracies: Mapping[tuple, Accuracy], column: str) -> dict[str, Accuracy]:
    return {key[0][1]: accuracies[key] for key in sorted(accuracies) if key and key[0][0] == column}


def _slices(accuracies: Mapping[tuple, Accuracy]) -> dict[str, dict[str, Accuracy]]:
    columns = sorted({key[0][0] for key in accuracies if key} - {record.TEXT})
    return {name.removeprefix(record.EXTRA_PREFIX): _of_column(accuracies, name) for name in columns}


def _accuracy(metrics: Mapping[str, Mapping], name: str) -> Accuracy:
    images = round(_number(metrics[COUNT]))
    effective = _number(metrics[EFFECTIVE]) if EFFECTIVE in metrics else images
    if not math.isclose(effective, images, rel_tol=1e-9):
        return Accuracy.of(_number(metrics[name]) if effective else 0.0, images, effective)
    # TFMA keeps shares in single precision; that of whole images is known exactly.
    share = round(_number(metrics[name]) * images) / images if images else 0.0
    return Accuracy.of(share, images)


def _number(metric: Mapping) -> float:
    # TFMA wraps a number by how it was computed: with an interval it is bounded.
    bounded = metric.get("boundedValue")
    return float(bounded["value"] if bounded else metric["doubleValue"])


def _counts(plots: Mapping[str, Mapping]) -> _Counts:
    found = plots.get("", {}).get(_CONFUSION_PLOT, {}).get("matrices", [])
    entries = found[0].get("entries", []) if found else []
    # What is 0 is left out.
    return {
        (entry.get("actualClassId", 0), entry.get("predictedClassId", 0)): round(entry.get("numWeightedExamples", 0))
        for entry in entries
    }


def _names(plots: Mapping[tuple, Any], counts: _Counts) -> list[str]:
    """Returns class names by index. All images of the slice of a class have its index."""
    indices = {index for pair in counts for index in pair}
    names = [f"class {index}" for index in range(max(indices, default=-1) + 1)]
    for key, found in plots.items():
        if key and key[0][0] == record.TEXT:
            for index, _ in _counts(found):
                names[index] = key[0][1]
    return names


def _confusion(counts: _Counts, names: Sequence[str]) -> Confusion:
    matrix = [[0] * len(names) for _ in names]
    for (true, predicted), images in counts.items():
        matrix[true][predicted] = images
    return Confusion(labels=list(names), counts=matrix)


def _precision(confusion: Confusion) -> dict[str, Accuracy]:
    found = {}
    for index, name in enumerate(confusion["labels"]):
        taken_for = sum(row[index] for row in confusion["counts"])
        right = confusion["counts"][index][index]
        found[name] = Accuracy.of(right / taken_for if taken_for else 0.0, taken_for)
    return dict(sorted(found.items()))


def _calibration(plots: Mapping[str, Mapping]) -> Calibration | None:
    buckets = plots.get(_CALIBRATION_PLOT, {}).get("buckets", [])
    sums = [[0.0, 0.0, 0.0] for _ in range(CALIBRATION_BINS)]  # images, right answers, probabilities
    for bucket in buckets:
        # TFMA adds a bucket at either end; the upper one takes probabilities of exactly 1.
        low = max(0.0, float(bucket.get("lowerThresholdInclusive", 0.0)))
        place = min(round(low * CALIBRATION_BINS), CALIBRATION_BINS - 1)
        for slot, name in enumerate(("numWeightedExamples", "totalWeightedLabel", "totalWeightedRefinedPrediction")):
            sums[place][slot] += float(bucket.get(name, 0.0))
    images = sum(values[0] for values in sums)
    if not images:
        return None
    bins = [_bin(place, *values) for place, values in enumerate(sums)]
    ece = sum(item["images"] * abs(item["mean_predicted"] - item["share_right"]) for item in bins) / images
    return Calibration(bins=bins, ece=ece)


def _bin(place: int, images: float, right: float, probability: float) -> Bin:
    return Bin(
        low=place / CALIBRATION_BINS,
        high=(place + 1) / CALIBRATION_BINS,
        mean_predicted=probability / images if images else 0.0,
        share_right=right / images if images else 0.0,
        images=round(images),
    )
