from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.errors import CorruptDataset, FeedlineError, OptionError
from tests.trainer.evaluation.brightness import batches_of, brightness
from trainer.evaluation.evaluate import (
    MEASURES,
    Evaluation,
    Exchange,
    Measure,
    Plan,
    accuracy,
    cross_entropy,
    evaluate,
    evaluate_part,
    fingerprint,
    spreads,
)
from trainer.evaluation.intervals import Tally
from trainer.input.position import Host

pytestmark = pytest.mark.filterwarnings("ignore")
COUNT = 96


def expected(middle: float = 50.0) -> tuple[float, float]:
    """Accuracy and loss, in Python."""
    losses, right = [], 0
    for grey in range(COUNT):
        light = 1 / (1 + math.exp(-0.3 * (grey - middle) - 0.15))
        likely = light if grey >= 48 else 1 - light
        right += likely > 0.5
        losses.append(-math.log(min(max(likely, 1e-7), 1 - 1e-7)))
    return right / COUNT, sum(losses) / COUNT


def test_one_host_finds_the_figures_of_every_image(shades):
    found = evaluate(brightness(), lambda host: batches_of(shades, host))
    right, loss = expected()
    assert found.figures["accuracy"].value == right == 94 / 96
    assert found.figures["loss"].value == pytest.approx(loss, rel=1e-4)
    assert {figure.count for figure in found.figures.values()} == {COUNT}


def test_a_host_without_a_record_counts_nothing(shades):
    nothing = batches_of(shades).take(0)
    assert evaluate_part(brightness(), nothing, Plan()) == {"accuracy": Tally(), "loss": Tally()}


def test_hosts_exchange_sums_and_all_get_the_metrics_of_the_split(shades, tmp_path):
    plan = Plan(directory=str(tmp_path), wait_s=60)

    def run(index: int) -> Evaluation:
        host = Host(index=index, count=3)
        return evaluate(brightness(), lambda host: batches_of(shades, host, 30), plan, step=4, host=host)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(run, range(3)))
    assert found[0] == found[1] == found[2]
    assert found[0].figures["accuracy"].value == 94 / 96
    assert found[0].figures["loss"].value == pytest.approx(expected()[1], rel=1e-4)
    assert found[0].figures["accuracy"].count == COUNT
    names = {path.parent.name: path.name for path in tmp_path.glob("*/events*")}
    assert names.keys() == {"worker-0-of-3", "worker-1-of-3", "worker-2-of-3", "all"}
    parts = sorted(path.name for path in (tmp_path / "parts" / "step-00000004").iterdir())
    assert parts == ["worker-0-of-3.json", "worker-1-of-3.json", "worker-2-of-3.json"]


def test_a_worker_that_does_not_come_is_named_after_a_bounded_wait(shades, tmp_path):
    plan = Plan(directory=str(tmp_path), wait_s=0.2)
    with pytest.raises(FeedlineError) as caught:
        evaluate(brightness(), lambda host: batches_of(shades, host, 30), plan, step=4, host=Host(index=1, count=3))
    first = tmp_path / "parts" / "step-00000004" / "worker-0-of-3.json"
    message = f"worker 0, 2 of 3 wrote no evaluation of step 4 within 0.2 s: {first} does not exist; "
    assert str(caught.value).startswith(message)


def test_the_part_of_another_training_is_not_taken(tmp_path):
    here, peer = (Exchange(str(tmp_path), Host(index=index, count=2), 1) for index in (0, 1))
    part = {"accuracy": Tally(count=3, total=2.0, squares=0.5)}
    peer.write(part, fingerprint(brightness(20.0)))
    weights = fingerprint(brightness())
    here.write(part, weights)
    with pytest.raises(FeedlineError, match=r"worker 1 of 2 .*worker-1-of-2.json belongs to other weights"):
        here.read_all(weights, 0.1)
    peer.write(part, weights * (1 + 1e-9))  # the last bit may differ
    assert here.read_all(weights, 0.1) == [part, part]


def test_what_was_told_before_is_forgotten_at_the_start(shades, tmp_path):
    plan = Plan(directory=str(tmp_path), wait_s=0.1)
    own = tmp_path / "parts" / "step-00000000" / "worker-1-of-2.json"
    own.parent.mkdir(parents=True)
    own.write_text("{")
    seen = []

    def make(host: Host) -> tf.data.Dataset:
        seen.append(own.exists())
        return batches_of(shades, host, 30)

    with pytest.raises(FeedlineError, match="worker 0 of 2"):
        evaluate(brightness(), make, plan, host=Host(index=1, count=2))
    assert seen == [False]
    assert json.loads(own.read_text())["part"]["accuracy"]["count"] == 48


def test_several_hosts_need_a_directory(shades):
    with pytest.raises(OptionError, match="directory of the plan is empty and 3 hosts evaluate"):
        evaluate(brightness(), lambda host: batches_of(shades, host), host=Host(index=0, count=3))


@pytest.mark.parametrize("confidence", [0, 1])
def test_a_confidence_out_of_range_is_refused(confidence):
    with pytest.raises(OptionError, match=f"confidence is {confidence}; "):
        Plan(confidence=confidence)


def test_images_without_a_label_cannot_be_evaluated(shades):
    unlabelled = batches_of(shades).map(lambda features, label: (features, -tf.ones_like(label)))
    with pytest.raises(CorruptDataset, match="an image of the evaluation has no label"):
        evaluate(brightness(), lambda host: unlabelled)


def test_user_measures_have_intervals_and_a_lower_bound(shades):
    far = Measure(function=lambda labels, outputs: np.abs(outputs[:, 1] - labels), lower_is_better=True)
    plan = Plan(measures={**MEASURES, "far": far}, confidence=0.9)
    found = evaluate(brightness(), lambda host: batches_of(shades, host), plan)
    figures = found.figures
    assert found.value("far") == figures["far"].value
    assert found.value("far", "lower_bound") == figures["far"].high > figures["far"].value
    assert found.value("loss", "lower_bound") == figures["loss"].high
    assert found.value("accuracy", "lower_bound") == figures["accuracy"].low < figures["accuracy"].value
    far_values = [found.logs()[name] for name in ("far", "far_error", "far_low", "far_high")]
    assert far_values == [getattr(figures["far"], name) for name in ("value", "error", "low", "high")]
    with pytest.raises(OptionError, match="there is no metric 'acuracy'; did you mean accuracy"):
        found.value("acuracy")
    with pytest.raises(OptionError, match="there is no way to choose 'upper'"):
        found.value("loss", "upper")


def test_the_last_evaluations_have_a_spread(shades):
    series = [evaluate(brightness(middle), lambda host: batches_of(shades, host)) for middle in (0.0, 50.0, 52.0)]
    found = spreads(series, last=2)["accuracy"]
    assert (found.least, found.most, found.count) == (92 / 96, 94 / 96, 2)
    assert found.mean == pytest.approx(93 / 96)
    assert spreads(series)["loss"].count == 3


def test_the_measures_are_those_of_keras():
    labels, outputs = np.array([0, 2, 1, 1]), np.array([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0, 1, 0], [1, 0, 0.0]])
    wanted = keras.losses.sparse_categorical_crossentropy(labels, outputs.astype(np.float32))
    np.testing.assert_allclose(cross_entropy(labels, outputs), keras.ops.convert_to_numpy(wanted), rtol=1e-4, atol=1e-6)
    assert accuracy(labels, outputs).tolist() == [1, 0, 1, 0]
    many = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0.0]])
    outputs = np.clip(outputs, 0.02, 0.98)
    wanted = keras.losses.binary_crossentropy(many, outputs.astype(np.float32))
    np.testing.assert_allclose(cross_entropy(many, outputs), keras.ops.convert_to_numpy(wanted), rtol=1e-4)
    np.testing.assert_allclose(accuracy(many, outputs), [2 / 3, 1, 1 / 3, 1 / 3])
    wanted = keras.metrics.binary_accuracy(many, outputs)
    np.testing.assert_allclose(accuracy(many, outputs), keras.ops.convert_to_numpy(wanted).mean(-1), rtol=1e-6)


def test_an_output_that_is_not_a_number_is_wrong():
    outputs = np.array([[np.nan, np.nan], [0.2, 0.8]])
    assert accuracy(np.array([0, 1]), outputs).tolist() == [0, 1]
    assert accuracy(np.array([[0.0, 0.0], [0.0, 1.0]]), outputs).tolist() == [0, 1]
