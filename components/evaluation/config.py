"""Configuration of TFMA: the metrics, and the thresholds for a blessing, one of which uses the largest class."""

from __future__ import annotations

import json
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

from beam_jobs.dataset import record
from components.evaluation.results import (
    ACCURACY,
    CALIBRATION_BINS,
    EFFECTIVE,
    LARGEST,
    MARGIN,
    ROUNDING,
    TOP_ACCURACY,
    TOP_K,
    EvaluateOptions,
)
from trainer.evaluation.intervals import wilson


class Margin(tfma.metrics.Metric):
    """Metric with three values for the predictions of a classifier.

    `accuracy_margin`: lower end of the 95 % confidence interval of the accuracy minus the share of the largest class,
    -1 to 1.
    `largest_class_share`: share of the class with the most images, 0-1.
    `effective_images`: effective sample size for weighted images (Kish 1965, Survey Sampling).
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
        combiner = _MarginCombiner(keys, eval_config, model, example_weighted)
        computations.append(tfma.metrics.MetricComputation(keys=keys, preprocessors=None, combiner=combiner))
    return computations


@dataclass
class _Sums:
    correct: float = 0.0  # weight of the images with a correct prediction
    squares: float = 0.0  # sum of the squared weights of all images
    classes: dict[int, float] = field(default_factory=partial(defaultdict, float))  # true class index -> weight


class _MarginCombiner(beam.CombineFn):
    def __init__(self, keys: list[Any], eval_config: Any, model_name: str, example_weighted: bool) -> None:
        self._keys = keys
        self._arguments = {"eval_config": eval_config, "model_name": model_name, "example_weighted": example_weighted}

    def create_accumulator(self) -> _Sums:
        return _Sums()

    def add_input(self, sums: _Sums, element: Any) -> _Sums:
        rows = metric_util.to_label_prediction_example_weight(element, flatten=False, **self._arguments)
        for label, prediction, example_weight in rows:
            weight, true_class = float(np.sum(example_weight)), int(np.ravel(label)[0])
            sums.correct += weight * (int(np.argmax(prediction)) == true_class)
            sums.squares += weight**2
            sums.classes[true_class] += weight
        return sums

    def merge_accumulators(self, accumulators: Iterable[_Sums]) -> _Sums:
        merged = _Sums()
        for sums in accumulators:
            merged.correct += sums.correct
            merged.squares += sums.squares
            for label, weight in sums.classes.items():
                merged.classes[label] += weight
        return merged

    def extract_output(self, sums: _Sums) -> dict[Any, float]:
        weight = sum(sums.classes.values())
        if not weight:  # no images, or only images with the weight 0
            return dict(zip(self._keys, (-1.0, 0.0, 0.0), strict=True))
        effective, largest = weight**2 / sums.squares, max(sums.classes.values()) / weight
        margin = wilson(sums.correct / weight, effective)[0] - largest
        return dict(zip(self._keys, (margin, largest, effective), strict=True))


def evaluation_config(
    options: EvaluateOptions, signature: str, probabilities: str, is_weighted: bool = False
) -> config_pb2.EvalConfig:
    """Returns the configuration of Evaluator for a model of one class per image.

    The metrics are accuracy, top-5 accuracy, the confusion matrix, and the calibration of the most likely class; over
    all images, for each class, and for each value of the columns in `slice_by`. Confidence intervals are computed from
    counts, because TFMA's jackknife takes five times as long. The accuracies use weights; the confusion matrix and the
    calibration count images.

    Args:
      options: thresholds and slices.
      signature: signature of the model whose input is serialised records.
      probabilities: name of the output of the signature, float32[batch, classes].
      is_weighted: whether the records have a weight.
    """
    per_image = config_pb2.ExampleWeightOptions(unweighted=True)
    columns = [record.EXTRA_PREFIX + name for name in options.slice_by]
    return config_pb2.EvalConfig(
        # The specification has no name: TFX adds names and a second specification if there is a baseline.
        model_specs=[
            config_pb2.ModelSpec(
                signature_name=signature,
                label_key=record.LABEL,
                example_weight_key=record.WEIGHT if is_weighted else "",
                prediction_key=probabilities,
                model_type=tfma.constants.TF_GENERIC,
            )
        ],
        slicing_specs=[
            config_pb2.SlicingSpec(),
            *(config_pb2.SlicingSpec(feature_keys=[name]) for name in (record.TEXT, *columns)),
        ],
        metrics_specs=[
            config_pb2.MetricsSpec(
                metrics=[
                    _metric("SparseCategoricalAccuracy", {"name": ACCURACY}, _overall(_accuracy_threshold(options))),
                    _metric("SparseTopKCategoricalAccuracy", {"name": TOP_ACCURACY, "k": TOP_K}),
                    config_pb2.MetricConfig(
                        class_name=Margin.__name__,
                        module=Margin.__module__,
                        config=json.dumps({"name": MARGIN}),
                        per_slice_thresholds=_overall(_at_least(ROUNDING)) if options.above_largest_class else [],
                    ),
                ]
            ),
            config_pb2.MetricsSpec(
                metrics=[_metric("ExampleCount"), _metric("MultiClassConfusionMatrixPlot")], example_weights=per_image
            ),
            # The calibration uses only the most likely class of every image, correct or not, with its probability.
            config_pb2.MetricsSpec(
                metrics=[_metric("CalibrationPlot", {"num_buckets": CALIBRATION_BINS})],
                aggregate=config_pb2.AggregationOptions(micro_average=True, top_k_list={"values": [1]}),
                example_weights=per_image,
            ),
        ],
    )


def _metric(
    name: str,
    config: dict[str, str | int] | None = None,
    thresholds: list[config_pb2.PerSliceMetricThreshold] | None = None,
) -> config_pb2.MetricConfig:
    return config_pb2.MetricConfig(
        class_name=name, config=json.dumps(config or {}), per_slice_thresholds=thresholds or []
    )


def _accuracy_threshold(options: EvaluateOptions) -> config_pb2.MetricThreshold:
    threshold = _at_least(options.min_accuracy - ROUNDING)
    if options.max_drop is not None:
        threshold.change_threshold.direction = config_pb2.MetricDirection.HIGHER_IS_BETTER
        threshold.change_threshold.absolute.value = -(options.max_drop + ROUNDING)
    return threshold


def _at_least(value: float) -> config_pb2.MetricThreshold:
    return config_pb2.MetricThreshold(value_threshold=config_pb2.GenericValueThreshold(lower_bound={"value": value}))


def _overall(threshold: config_pb2.MetricThreshold) -> list[config_pb2.PerSliceMetricThreshold]:
    # A threshold only for the overall slice: a plain threshold applies to every slice, even to a class of 30 images.
    return [config_pb2.PerSliceMetricThreshold(slicing_specs=[config_pb2.SlicingSpec()], threshold=threshold)]
