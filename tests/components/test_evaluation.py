from __future__ import annotations

import math
import re

import pytest
import tensorflow_model_analysis as tfma

from beam_jobs import manifest
from beam_jobs.errors import CorruptDataset
from components.evaluation import load_evaluation, wilson_interval
from tests.components.conftest import analyse


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [
        # Published examples of the score interval, to four places.
        (26, 26, 0.8713, 1.0),
        (0, 10, 0.0, 0.2775),
        (50, 100, 0.4038, 0.5962),
        (15, 148, 0.0624, 0.1605),
        (1, 1, 0.2065, 1.0),
        (1, 2, 0.0945, 0.9055),
        (9500, 10000, 0.9456, 0.9541),
    ],
)
def test_the_interval_is_that_of_wilson(right, count, low, high):
    assert wilson_interval(right / count, count) == pytest.approx((low, high), abs=5e-5)


def test_nothing_seen_is_nothing_known():
    assert wilson_interval(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("count", [1, 3, 10, 1000])
def test_the_interval_stays_inside_zero_to_one_around_the_share(count):
    for right in range(count + 1):
        low, high = wilson_interval(right / count, count)
        assert 0 <= low <= right / count + 1e-12
        assert right / count - 1e-12 <= high <= 1


def test_an_evaluation_is_read_over_all_and_by_class(evaluation_dir, dataset):
    classes = manifest.load(str(dataset)).split("eval").classes
    found = load_evaluation(str(evaluation_dir))
    share = classes["china"] / sum(classes.values())
    assert found.overall.images == sum(classes.values())
    assert math.isclose(found.overall.value, share, rel_tol=1e-6)
    assert (found.overall.low, found.overall.high) == pytest.approx(wilson_interval(share, sum(classes.values())))
    assert list(found.classes) == ["china", "flower"]
    assert {name: (accuracy.value, accuracy.images) for name, accuracy in found.classes.items()} == {
        "china": (1.0, classes["china"]),
        "flower": (0.0, classes["flower"]),
    }
    assert found.classes["china"].low < found.classes["china"].high == 1.0


def test_without_intervals_of_tfma_the_numbers_are_the_same(
    always_first_class, dataset, evaluation_config, evaluation_dir, tmp_path
):
    config = tfma.EvalConfig()
    config.CopyFrom(evaluation_config)
    config.options.compute_confidence_intervals.value = False
    plain = load_evaluation(str(analyse(always_first_class, dataset, config, tmp_path / "plain")))
    expected = load_evaluation(str(evaluation_dir))
    assert plain.overall.value == pytest.approx(expected.overall.value)
    assert (plain.overall.images, plain.classes) == (expected.overall.images, expected.classes)


def test_an_evaluation_without_overall_metrics_is_refused(always_first_class, dataset, evaluation_config, tmp_path):
    config = tfma.EvalConfig()
    config.CopyFrom(evaluation_config)
    config.options.compute_confidence_intervals.value = False
    del config.slicing_specs[0]
    path = analyse(always_first_class, dataset, config, tmp_path / "sliced")
    with pytest.raises(CorruptDataset, match=f"^{re.escape(str(path))} holds no overall metrics; run the Evaluator"):
        load_evaluation(str(path))


@pytest.mark.parametrize("name", ["", "absent"])
def test_a_directory_without_an_evaluation_is_refused(tmp_path, name):
    with pytest.raises(CorruptDataset, match=re.escape(str(tmp_path / name))):
        load_evaluation(str(tmp_path / name))
