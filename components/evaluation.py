"""What Evaluator measured, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from beam_jobs import record
from beam_jobs.errors import CorruptDataset

_ACCURACY = "sparse_categorical_accuracy"
_COUNT = "example_count"
_Z_95 = 1.959964  # 97.5 % quantile of the standard normal distribution


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


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Accuracy over the held-back split.

    Attributes:
      overall: over all its images.
      classes: class name -> accuracy over its images, in order of the names.
    """

    overall: Accuracy
    classes: Mapping[str, Accuracy]


def load_evaluation(path: str) -> Evaluation:
    """Reads a `ModelEvaluation` artifact.

    Args:
      path: its directory.

    Raises:
      CorruptDataset: it is incomplete.
    """
    import tensorflow_model_analysis as tfma

    overall: Accuracy | None = None
    classes: dict[str, Accuracy] = {}
    for slice_key, metrics in tfma.load_eval_result(path).slicing_metrics:
        accuracy = _accuracy(metrics[""][""])
        if not slice_key:
            overall = accuracy
        elif slice_key[0][0] == record.TEXT:
            classes[str(slice_key[0][1])] = accuracy
    if overall is None:
        raise CorruptDataset(f"{path} holds no overall metrics; run the Evaluator again")
    return Evaluation(overall=overall, classes=dict(sorted(classes.items())))


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Returns the 95 % score interval of a share; source: E. B. Wilson (1927).

    It stays inside 0-1, and stays open at a share of 1 where the jackknife of TFMA closes: 26 right answers out of 26
    do not prove that the 27th is right.

    Args:
      share: observed share, 0-1.
      count: number of observations.
    """
    if count == 0:
        return 0.0, 1.0
    spread = _Z_95**2 / count
    centre = (share + spread / 2) / (1 + spread)
    half = _Z_95 * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def _accuracy(metrics: Mapping[str, Mapping[str, float | Mapping[str, float]]]) -> Accuracy:
    value, count = _number(metrics[_ACCURACY]), round(_number(metrics[_COUNT]))
    low, high = wilson_interval(value, count)
    return Accuracy(value=value, low=low, high=high, images=count)


def _number(metric: Mapping) -> float:
    # TFMA wraps a number by how it was computed: with an interval it is bounded.
    bounded = metric.get("boundedValue")
    return float(bounded["value"] if bounded else metric["doubleValue"])
