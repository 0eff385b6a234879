from __future__ import annotations

import math
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.errors import OptionError
from trainer.options import TrainOptions
from trainer.training.losses import PerClass, class_weights, for_keras, make_loss, make_metrics

LABELS = ("cat", "dog", "fox")


def dataset(**counts: int) -> SimpleNamespace:
    return SimpleNamespace(labels=LABELS, split=lambda name: SimpleNamespace(classes=counts))


def features(**more) -> dict:
    return {"image": tf.zeros([2, 4, 4, 3], tf.uint8), "draw": tf.ones([2, 2], tf.int32), "key": ["a", "b"], **more}


def test_single_labels_become_one_hot_and_several_stay_what_they_are():
    images, targets = for_keras(3, multi=False)(features(), tf.constant([2, 0], tf.int64))
    assert images.shape == (2, 4, 4, 3)
    np.testing.assert_array_equal(targets, [[0, 0, 1], [1, 0, 0]])
    _, targets = for_keras(3, multi=True)(features(), tf.constant([[1, 0, 1], [0, 0, 0]], tf.float32))
    np.testing.assert_array_equal(targets, [[1, 0, 1], [0, 0, 0]])


def test_draws_come_along_where_they_are_wanted_and_padding_weighs_nothing():
    weight, valid = tf.constant([3.0, 5.0]), tf.constant([1.0, 0.0])
    convert, label = for_keras(3, multi=False, draws=True), tf.constant([2, 0], tf.int64)
    images, _, weights = convert(features(valid=valid), label)
    assert set(images) == {"image", "draw"}
    np.testing.assert_array_equal(weights, valid)
    np.testing.assert_array_equal(convert(features(weight=weight), label)[2], [3, 5])
    np.testing.assert_array_equal(convert(features(weight=weight, valid=valid), label)[2], [3, 0])


def test_balanced_weights_are_one_on_average_and_zero_without_images():
    weights = class_weights(TrainOptions(class_weights="balanced"), dataset(cat=30, dog=10), "train")
    assert weights == pytest.approx((40 / 90, 40 / 30, 0))
    assert 30 * weights[0] + 10 * weights[1] == pytest.approx(40 * 2 / 3)  # of three classes two have images


def test_weights_by_name_leave_the_other_classes_at_one():
    assert class_weights(TrainOptions(class_weights={"fox": 5}), dataset(), "train") == (1.0, 1.0, 5.0)
    assert class_weights(TrainOptions(), dataset(), "train") is None


def test_weights_of_an_unknown_class_are_refused():
    with pytest.raises(OptionError, match=r"there is no class 'class_weights.dgo'; did you mean dog\?"):
        class_weights(TrainOptions(class_weights={"dgo": 2}), dataset(), "train")


def value_of(loss: keras.losses.Loss, true: list, predicted: list) -> float:
    return float(loss(tf.constant(true), tf.constant(predicted)))


def test_the_loss_of_one_label_is_cross_entropy_with_smoothing():
    loss = make_loss(TrainOptions(label_smoothing=0.5), False, None)
    expected = -0.75 * math.log(0.8) - 0.25 * math.log(0.2)
    assert value_of(loss, [[1.0, 0.0]], [[0.8, 0.2]]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("multi", [False, True])
def test_weights_of_one_change_nothing(multi):
    options = TrainOptions(label_smoothing=0.2)
    true, predicted = [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], [[0.2, 0.7, 0.1], [0.3, 0.3, 0.4]]
    plain, weighted = (make_loss(options, multi, weights) for weights in (None, (1, 1, 1)))
    assert value_of(weighted, true, predicted) == pytest.approx(value_of(plain, true, predicted), rel=1e-5)


def test_the_weight_of_an_image_is_that_of_its_class_also_when_classes_are_mixed():
    loss = make_loss(TrainOptions(), False, (2, 4, 1))
    assert value_of(loss, [[0.0, 1.0, 0.0]], [[0.2, 0.5, 0.3]]) == pytest.approx(4 * -math.log(0.5), rel=1e-5)
    mixed = -0.5 * math.log(0.2) - 0.5 * math.log(0.5)
    assert value_of(loss, [[0.5, 0.5, 0.0]], [[0.2, 0.5, 0.3]]) == pytest.approx(3 * mixed, rel=1e-5)


def test_of_several_labels_each_class_weighs_its_own_answer():
    loss = make_loss(TrainOptions(), True, (3, 0, 1))
    expected = (3 * -math.log(0.9) + 0 + -math.log(1 - 0.2)) / 3
    assert value_of(loss, [[1.0, 1.0, 0.0]], [[0.9, 0.1, 0.2]]) == pytest.approx(expected, rel=1e-5)


def test_padding_counts_in_no_metric():
    for multi in (False, True):
        metrics = make_metrics(TrainOptions(per_class=True), multi, LABELS)
        for metric in metrics:
            true = tf.constant([[1.0, 0, 0], [0, 1.0, 0]])
            metric.update_state(true, true * 0.9 + 0.01, sample_weight=tf.constant([1.0, 1.0]))
            metric.update_state(true, 1 - true, sample_weight=tf.constant([0.0, 0.0]))
        found = dict(zip([metric.name for metric in metrics], [metric.result() for metric in metrics], strict=True))
        assert float(found["accuracy"]) == 1
        assert float(found["per_class"]["recall/cat"]) == 1
        if multi:
            assert float(found["auc"]) == pytest.approx(1, abs=1e-3)  # of the third class there is no image


def test_recall_and_precision_of_a_class_are_those_of_the_whole_epoch():
    metric = PerClass(LABELS)
    one_hot, answers = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)
    metric.update_state(one_hot[[0, 0, 1]], answers[[0, 1, 1]])
    metric.update_state(one_hot[[0, 1, 1]], answers[[0, 1, 0]])
    found = {name: float(value) for name, value in metric.result().items()}
    assert found == pytest.approx(
        {
            "recall/cat": 2 / 3,
            "recall/dog": 2 / 3,
            "recall/fox": 0,
            "precision/cat": 2 / 3,
            "precision/dog": 2 / 3,
            "precision/fox": 0,
        }
    )


def test_of_several_labels_an_answer_is_yes_above_one_half():
    metric = PerClass(LABELS, multi_label=True)
    metric.update_state([[1.0, 1.0, 0.0]], [[0.6, 0.4, 0.7]])
    found = {name: float(value) for name, value in metric.result().items()}
    assert (found["recall/cat"], found["recall/dog"], found["precision/fox"]) == (1, 0, 0)
