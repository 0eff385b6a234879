from __future__ import annotations

import keras
import numpy as np
import pytest

from beam_jobs.errors import OptionError
from trainer.job import _mixed_precision as mixed_precision
from trainer.models import ModelSpec, build_model
from trainer.options import TrainOptions
from trainer.training.device_memory import device_bytes, memory_table
from trainer.training.transfer import freeze, unfreeze

pytestmark = pytest.mark.filterwarnings("ignore")

layers = keras.layers


def small() -> keras.Model:
    """8x8x3 bytes -> convolution to 4 channels, batch normalisation, ReLU, 2x2 maximum, mean, 5 classes."""
    inputs = keras.Input([8, 8, 3], dtype="uint8")
    features = layers.Rescaling(1 / 255)(inputs)  # 8x8x3 numbers, which the convolution needs again: 192
    features = layers.Conv2D(4, 3, padding="same")(features)  # 8x8x4, which the normalisation needs again: 256
    features = layers.BatchNormalization()(features)  # the ReLU needs only its own output
    features = layers.ReLU()(features)  # 256, which the maximum needs too, but once is enough
    features = layers.MaxPooling2D()(features)  # 4x4x4, with which the maximum finds its place again: 64
    features = layers.GlobalAveragePooling2D()(features)  # 4, which the dense layer needs again
    return keras.Model(inputs, layers.Dense(5)(features))


KEPT = 192 + 256 + 256 + 64 + 4
TRAINED = (3 * 3 * 3 * 4 + 4) + 2 * 4 + (4 * 5 + 5)


def test_bytes_are_those_counted_by_hand():
    batch_size = 7
    found = device_bytes(small(), batch_size)
    assert found.parameters == 4 * (TRAINED + 2 * 4)  # the moving mean and variance are not trained
    assert found.gradients == 4 * TRAINED
    assert found.slots == 2 * 4 * TRAINED
    assert found.activations == batch_size * 4 * KEPT
    assert found.input == batch_size * 8 * 8 * 3
    assert found.total == 4 * (TRAINED * 4 + 8) + batch_size * (4 * KEPT + 192)


def test_the_optimizer_keeps_as_many_numbers_a_weight_as_it_is_said_to():
    assert device_bytes(small(), 1, 4).slots == 4 * 4 * TRAINED


def test_a_built_optimizer_of_keras_has_the_slots_that_are_counted_for_it():
    model = small()
    model.compile(keras.optimizers.AdamW())
    model.optimizer.build(model.trainable_variables)
    moments = [v for v in model.optimizer.variables if len(v.shape)]  # the rest are the step and the rate
    assert sum(4 * int(np.prod(v.shape)) for v in moments) == device_bytes(model, 1).slots


def test_what_is_frozen_has_no_gradient_and_keeps_nothing_for_one():
    model = small()
    freeze(model)
    found = device_bytes(model, 1)
    assert (found.gradients, found.slots) == (4 * 25, 8 * 25)
    assert found.activations == 4 * 4
    unfreeze(model)  # the convolution, but not the normalisation, which then needs nothing of its input
    assert device_bytes(model, 1).activations == 4 * (KEPT - 256)


def test_a_model_within_a_model_counts_as_its_layers_would():
    inner = small()
    inputs = keras.Input([8, 8, 3], dtype="uint8")
    nested = keras.Model(inputs, layers.Dense(2)(layers.Activation("relu")(inner(inputs))))
    # What the ReLU gives to the dense layer; the linear layer before it keeps only what it takes.
    assert device_bytes(nested, 1).activations == 4 * (KEPT + 5)
    sequential = keras.Sequential([keras.Input([8, 8, 3], dtype="uint8"), *small().layers[1:]])
    assert device_bytes(sequential, 3).activations == device_bytes(small(), 3).activations


@pytest.mark.parametrize(
    ("layer", "numbers"),
    [
        (layers.Activation("relu"), 6 + 6),  # its output; the first dense layer its input
        (layers.Activation("gelu"), 6 + 6 + 6),  # its input; the last dense layer keeps its output
        (layers.Dense(6, activation="relu"), 6 + 6 + 6),
        (layers.Dropout(0.5), 6 + 6),
        (layers.Reshape([6]), 6 + 6),  # moves nothing, but the last dense layer still needs what it takes
    ],
)
def test_an_op_keeps_what_its_derivative_is_made_of(layer, numbers):
    model = keras.Sequential([keras.Input([6]), layers.Dense(6), layer, layers.Dense(1)])
    assert device_bytes(model, 1).activations == 4 * numbers


def test_a_gradient_reaches_through_the_beginning_of_a_model_within_a_model():
    inner_inputs = keras.Input([4])
    inner = keras.Model(inner_inputs, layers.ReLU()(inner_inputs))
    inputs = keras.Input([6])
    model = keras.Model(inputs, inner(layers.Dense(4)(inputs)))
    assert device_bytes(model, 1).activations == 4 * (6 + 4)


def test_both_ends_of_a_sum_share_what_they_keep():
    inputs = keras.Input([6])
    first = layers.Dense(6)(inputs)
    model = keras.Model(inputs, layers.Add()([first, layers.Dense(6)(first)]))
    assert device_bytes(model, 1).activations == 4 * (6 + 6)


def test_mixed_precision_halves_activations_but_not_weights():
    with mixed_precision(TrainOptions(mixed_precision="bfloat16")):
        mixed = small()
    assert device_bytes(mixed, 1).activations == 2 * KEPT
    assert device_bytes(mixed, 1).parameters == device_bytes(small(), 1).parameters


def test_every_kind_of_network_can_be_counted():
    model = build_model("EfficientNetB0", ModelSpec(side_px=32, classes=10, mean_rgb=(1, 1, 1), std_rgb=(9, 9, 9)))
    one, two = device_bytes(model, 1), device_bytes(model, 2)
    assert two.activations == 2 * one.activations > 1e5
    assert one.parameters == pytest.approx(4 * model.count_params(), rel=1e-4)


def test_the_table_has_a_line_for_each_batch_size():
    lines = memory_table(small(), [1, 100_000]).splitlines()
    assert lines[0].split() == [
        "batch", "size", "parameters", "gradients", "slots", "activations", "input", "total", "(MB)"
    ]  # fmt: skip
    assert len(lines) == 3
    assert lines[2].split()[0] == "100000"
    assert lines[2].split()[4:] == ["308.8", "19.2", "328.0"]


def test_what_cannot_be_counted_is_refused():
    class Own(keras.Model):
        def call(self, inputs):
            return inputs

    with pytest.raises(OptionError, match="memory of own cannot be counted"):
        device_bytes(Own(name="own"), 1)
    with pytest.raises(OptionError, match="batch_size is 0; it must be a whole number of at least 1"):
        device_bytes(small(), 0)
