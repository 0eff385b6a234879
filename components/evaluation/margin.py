"""A metric of TFMA: how far the accuracy lies above that of always answering with the largest class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.metrics import metric_util
from tensorflow_model_analysis.proto import config_pb2

from components.evaluation.names import EFFECTIVE, LARGEST, MARGIN
from components.evaluation.values import wilson_interval


class Margin(tfma.metrics.Metric):
    """Three figures of the answers of a classifier.

    `accuracy_margin`: lower end of the 95 % interval of the accuracy less the share of the largest class, -1 to 1.
    `largest_class_share`: share of the class that has the most images, 0-1.
    `effective_images`: images of equal weight that would say as much (Kish 1965, Survey Sampling).
    """

    def __init__(self, name: str = MARGIN) -> None:
        super().__init__(_computations, name=name)


def _computations(
    name: str,
    eval_config: config_pb2.EvalConfig | None = None,
    model_names: list[str] | None = None,
    example_weighted: bool = False,
) -> list[Any]:
    computations = []
    for model in model_names or [""]:
        keys = [
            tfma.metrics.MetricKey(name=key, model_name=model, example_weighted=example_weighted)
            for key in (name, LARGEST, EFFECTIVE)
        ]
        combiner = _Combiner(keys, eval_config, model, example_weighted)
        computations.append(tfma.metrics.MetricComputation(keys=keys, preprocessors=None, combiner=combiner))
    return computations


@dataclass
class _Sums:
    right: float = 0.0
    squares: float = 0.0
    classes: dict[int, float] = field(default_factory=partial(defaultdict, float))


class _Combiner(beam.CombineFn):
    def __init__(self, keys: list[Any], eval_config: Any, model_name: str, example_weighted: bool) -> None:
        self._keys = keys
        self._arguments = {"eval_config": eval_config, "model_name": model_name, "example_weighted": example_weighted}

    def create_accumulator(self) -> _Sums:
        return _Sums()

    def add_input(self, sums: _Sums, element: Any) -> _Sums:
        rows = metric_util.to_label_prediction_example_weight(element, flatten=False, **self._arguments)
        for label, prediction, example_weight in rows:
            weight, true = float(np.sum(example_weight)), int(np.ravel(label)[0])
            sums.right += weight * (int(np.argmax(prediction)) == true)
            sums.squares += weight**2
            sums.classes[true] += weight
        return sums

    def merge_accumulators(self, accumulators: Iterable[_Sums]) -> _Sums:
        merged = _Sums()
        for sums in accumulators:
            merged.right += sums.right
            merged.squares += sums.squares
            for label, weight in sums.classes.items():
                merged.classes[label] += weight
        return merged

    def extract_output(self, sums: _Sums) -> dict[Any, float]:
        weight = sum(sums.classes.values())
        if not weight:
            return dict(zip(self._keys, (-1.0, 0.0, 0.0), strict=True))
        effective, largest = weight**2 / sums.squares, max(sums.classes.values()) / weight
        margin = wilson_interval(sums.right / weight, effective)[0] - largest
        return dict(zip(self._keys, (margin, largest, effective), strict=True))
