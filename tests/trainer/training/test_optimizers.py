from __future__ import annotations

import keras
import numpy as np
import pytest

from beam_jobs.common.settings import fields
from trainer.options import TrainOptions
from trainer.training.optimizers import OPTIMIZERS, average_weights, make_optimizer, make_schedule

STEPS = 4  # of an epoch


def rates(epochs: int = 3, first_step: int = 0, **values) -> list[float]:
    options = TrainOptions(epochs=epochs, learning_rate=0.8, **values)
    schedule = make_schedule(options, STEPS, first_step)
    return [float(schedule(step)) for step in range(STEPS * epochs + 1)]


def weights_after(options: TrainOptions, gradients: list[float]) -> list[float]:
    """A weight, 1 at first, after each of so many updates with the gradients given."""
    weight = keras.Variable([1.0])
    optimizer = make_optimizer(options, STEPS)
    values = []
    for gradient in gradients:
        optimizer.apply([keras.ops.array([gradient])], [weight])
        values.append(float(weight[0]))
    return values


def constant(**values) -> TrainOptions:
    return TrainOptions(
        **{"schedule": "constant", "warmup_epochs": 0, "weight_decay": 0, "learning_rate": 0.1} | values
    )


def test_the_default_is_to_the_bit_the_cosine_of_keras():
    keras_own = keras.optimizers.schedules.CosineDecay(0.0, STEPS * 2, warmup_target=0.8, warmup_steps=STEPS)
    assert rates() == [float(keras_own(step)) for step in range(STEPS * 3 + 1)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"schedule": "linear"}, [0, 0.2, 0.4, 0.6, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0]),
        ({"schedule": "constant", "warmup_epochs": 0.5}, [0, 0.4, *[0.8] * 11]),
        (
            {"schedule": "step", "warmup_epochs": 0, "step_epochs": 1, "step_factor": 0.5},
            [*[0.8] * 4, *[0.4] * 4, *[0.2] * 4, 0.1],
        ),
        ({"schedule": "linear", "first_step": 4, "epochs": 2}, [0.08, 0.06, 0.04, 0.02, 0, 0, 0, 0, 0]),
    ],
)
def test_a_schedule_gives_these_rates(values, expected):
    assert rates(**values) == pytest.approx(expected, abs=1e-6)


def test_every_optimizer_of_the_options_is_in_the_table_and_descends():
    assert set(fields(TrainOptions)["optimizer"].choices) == set(OPTIMIZERS)
    for name in OPTIMIZERS:
        values = weights_after(constant(optimizer=name), [1.0, 1.0, 1.0])
        assert 1 > values[0] > values[1] > values[2], name


def test_sgd_goes_by_gradient_momentum_and_nesterov():
    plain = weights_after(constant(optimizer="sgd", momentum=0.0), [1.0, 1.0])
    heavy = weights_after(constant(optimizer="sgd", momentum=0.5), [1.0, 1.0])
    nesterov = weights_after(constant(optimizer="sgd", momentum=0.5, nesterov=True), [1.0, 1.0])
    assert plain == pytest.approx([0.9, 0.8])
    assert heavy == pytest.approx([0.9, 0.9 - 0.15])
    assert nesterov == pytest.approx([0.85, 0.85 - 0.175])


def test_weight_decay_is_apart_from_the_gradient():
    assert weights_after(constant(optimizer="sgd", weight_decay=0.5, momentum=0.0), [0.0]) == pytest.approx([0.95])


def test_clipping_goes_by_the_norm_of_all_gradients_together():
    weights = [keras.Variable([0.0]), keras.Variable([0.0])]
    optimizer = make_optimizer(constant(optimizer="sgd", momentum=0.0, clip_norm=1.0), STEPS)
    optimizer.apply([keras.ops.array([30.0]), keras.ops.array([40.0])], weights)
    assert [float(weight[0]) for weight in weights] == pytest.approx([-0.06, -0.08])


def test_accumulated_gradients_are_averaged_into_one_update():
    options = constant(optimizer="sgd", momentum=0.0, accumulate_steps=2)
    assert weights_after(options, [1.0, 3.0, 5.0, 1.0]) == pytest.approx([1.0, 0.8, 0.8, 0.5])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_average_keeps_its_share_at_every_update(accumulate):
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    options = constant(optimizer="sgd", momentum=0.0, ema=0.5, accumulate_steps=accumulate)
    model.compile(optimizer=make_optimizer(options, STEPS))
    model.optimizer.build(model.trainable_variables)
    averages = []
    for _ in range(3 * accumulate):
        model.optimizer.apply([keras.ops.array([[1.0]])])
        with average_weights(model):
            averages.append(np.array(model.trainable_variables[0]))
        assert float(model.trainable_variables[0][0, 0]) == pytest.approx(1 - 0.1 * (len(averages) // accumulate))
    weights = [1 - 0.1 * update for update in (1, 2, 3)]
    if accumulate == 1:
        expected = [weights[0], 0.5 * weights[0] + 0.5 * weights[1]]
        assert [float(value[0, 0]) for value in averages[:2]] == pytest.approx(expected)
    # Between two updates the weights stand still, and the average comes nearer by a half in all.
    gap = [abs(float(averages[step][0, 0]) - weights[1]) for step in (2 * accumulate - 1, 3 * accumulate - 2)]
    if accumulate == 3:
        assert gap[1] == pytest.approx(gap[0] * 0.5 ** (2 / 3), rel=1e-4)


def test_a_schedule_survives_being_written_down():
    schedule = make_schedule(TrainOptions(), STEPS)
    config = schedule.get_config()
    assert (config["peak"], config["warmup_steps"]) == (2e-3, STEPS)
    assert np.isfinite(config["after"]["config"]["decay_steps"])
