from __future__ import annotations

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from tensorflow_model_analysis.proto import config_pb2

from beam_jobs.dataset import manifest
from beam_jobs.errors import CorruptDataset
from components.evaluation import load_evaluation
from components.evaluation.config import evaluation_config
from components.evaluation.results import EvaluateOptions
from tests.components.conftest import analyse
from tests.components.evaluation.answers import PROBABILITIES, SIGNATURE, name_of, softmax, write_answers, write_parrot

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
CLASSES = 100
ABSENT = {7, 99}  # from the images that are evaluated


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """600 images of 100 classes and two columns, evaluated."""
    root = tmp_path_factory.mktemp("hundred")
    random = np.random.default_rng(4)
    labels = random.choice([label for label in range(CLASSES) if label not in ABSENT], 600)
    scores = random.normal(size=(600, CLASSES)) * 2
    scores[np.arange(600), labels] += random.uniform(0, 8, 600)
    scores[:5] = -1000.0  # so sure that the probability is exactly 1, and wrong
    scores[:5, 7] = 1000.0
    answers = softmax(scores)
    extra = [
        {"camera": [b"north" if place % 3 else b"s\xc3\xbcd"], "tags": [b"day", b"rain"][: place % 3]}
        for place in range(600)
    ]
    config = evaluation_config(EvaluateOptions(slice_by=("camera", "tags")), SIGNATURE, PROBABILITIES)
    dataset = write_answers(root / "dataset", labels, answers, extra)
    path = analyse(write_parrot(root / "model", CLASSES), dataset, config, root / "out")
    right = answers.argmax(1) == labels
    return SimpleNamespace(path=str(path), labels=labels, answers=answers, right=right)


def test_of_two_classes_the_five_most_likely_say_nothing(evaluation_dir, dataset):
    classes = manifest.load(str(dataset)).split("eval").classes
    found = load_evaluation(str(evaluation_dir))
    assert (found.top_k, found.baseline, found.slices) == (None, None, {})
    assert found.confusion == {"labels": ["china", "flower"], "counts": [[classes["china"], 0], [classes["flower"], 0]]}
    assert found.precision["china"] == found.overall
    flower = found.precision["flower"]
    assert (flower.images, flower.low, flower.high) == (0, 0, 1)
    sure = math.e / (1 + math.e)
    assert found.calibration["ece"] == pytest.approx(abs(sure - found.overall.value), abs=1e-6)
    [filled] = [item for item in found.calibration["bins"] if item["images"]]
    assert (filled["low"], filled["high"], filled["images"]) == (0.7, 0.8, found.overall.images)
    assert filled["mean_predicted"] == pytest.approx(sure, abs=1e-6)


def test_shares_are_those_of_the_answers(hundred):
    found = load_evaluation(hundred.path)
    assert (found.overall.value, found.overall.images) == (hundred.right.mean(), 600)
    ranks = (hundred.answers > hundred.answers[np.arange(600), hundred.labels][:, None]).sum(1)
    assert found.top_k.value == (ranks < 5).mean()
    assert found.overall.value < found.top_k.value < 1
    assert {name: accuracy.value for name, accuracy in found.classes.items()} == {
        name_of(label): hundred.right[hundred.labels == label].mean() for label in np.unique(hundred.labels)
    }


def test_the_confusion_matrix_counts_every_image_once(hundred):
    labels = [name_of(label) for label in range(CLASSES)]
    expected = np.zeros((CLASSES, CLASSES), int)
    np.add.at(expected, (hundred.labels, hundred.answers.argmax(1)), 1)
    found = load_evaluation(hundred.path, labels)
    assert found.confusion["labels"] == labels
    np.testing.assert_array_equal(found.confusion["counts"], expected)
    taken_for = expected.sum(0)
    assert {name: found.precision[name].images for name in labels} == dict(zip(labels, taken_for, strict=True))
    likely = int(taken_for.argmax())
    assert found.precision[name_of(likely)].value == expected[likely, likely] / taken_for[likely]


def test_a_class_that_no_image_has_is_called_by_its_index(hundred):
    names = load_evaluation(hundred.path).confusion["labels"]
    assert names[7] == "class 7"
    assert [name for index, name in enumerate(names) if index not in ABSENT] == [
        name_of(label) for label in range(len(names)) if label not in ABSENT
    ]
    assert name_of(7) not in load_evaluation(hundred.path).classes


def test_the_calibration_is_that_of_the_most_likely_class(hundred):
    sure = hundred.answers.max(1)
    places = np.minimum((sure * 10).astype(int), 9)
    found = load_evaluation(hundred.path).calibration
    assert [item["images"] for item in found["bins"]] == np.bincount(places, minlength=10).tolist()
    assert [item["low"] for item in found["bins"]] == pytest.approx(np.arange(10) / 10)
    ece = 0.0
    for place, item in enumerate(found["bins"]):
        inside = places == place
        if inside.any():
            assert item["mean_predicted"] == pytest.approx(sure[inside].mean(), abs=1e-5)
            assert item["share_right"] == pytest.approx(hundred.right[inside].mean(), abs=1e-9)
            ece += inside.mean() * abs(sure[inside].mean() - hundred.right[inside].mean())
    assert found["ece"] == pytest.approx(ece, abs=1e-5)
    assert ece > 0.01


def test_every_value_of_a_column_is_measured_apart(hundred):
    place = np.arange(600)
    evaluation = load_evaluation(hundred.path)
    found = evaluation.slices
    assert {name: list(values) for name, values in found.items()} == {
        "camera": ["north", "süd"],
        "tags": ["day", "rain"],
    }
    for column, value, inside in (
        ("camera", "north", place % 3 > 0),
        ("camera", "süd", place % 3 == 0),
        ("tags", "day", place % 3 > 0),  # of several values an image counts for each, without any for none
        ("tags", "rain", place % 3 == 2),
    ):
        accuracy = found[column][value]
        assert (accuracy.images, accuracy.value) == (inside.sum(), hundred.right[inside].mean())
        largest = np.bincount(hundred.labels[inside]).max() / inside.sum()
        assert evaluation.slice_largest[column][value] == pytest.approx(largest)


def test_with_intervals_of_tfma_the_numbers_are_the_same(
    always_first_class, dataset, evaluation_config, evaluation_dir, tmp_path
):
    config = config_pb2.EvalConfig()
    config.CopyFrom(evaluation_config)
    config.options.compute_confidence_intervals.value = True
    del config.metrics_specs[-1]
    bounded = load_evaluation(str(analyse(always_first_class, dataset, config, tmp_path / "bounded")))
    expected = load_evaluation(str(evaluation_dir))
    assert (bounded.overall, bounded.classes) == (expected.overall, expected.classes)
    assert bounded.calibration is None


def test_an_evaluation_without_overall_metrics_is_refused(always_first_class, dataset, evaluation_config, tmp_path):
    config = config_pb2.EvalConfig()
    config.CopyFrom(evaluation_config)
    del config.slicing_specs[0]
    path = analyse(always_first_class, dataset, config, tmp_path / "sliced")
    with pytest.raises(CorruptDataset, match=f"^{re.escape(str(path))} has no overall metrics; run the Evaluator"):
        load_evaluation(str(path))
    with pytest.raises(CorruptDataset, match="absent"):
        load_evaluation(str(tmp_path / "absent"))
