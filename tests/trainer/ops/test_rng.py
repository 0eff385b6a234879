from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.ops import rng, tf_ops

pytestmark = pytest.mark.filterwarnings("ignore")

EXTREMES = [-(2**31), -1, 0, 1, 2**31 - 1]
DRAWS = np.array([(key, epoch) for key in [*EXTREMES, *range(2, 60)] for epoch in EXTREMES], np.int32)
MANY = np.stack([np.arange(20_000) * 7919 - 50_000, np.full(20_000, 3)], axis=1).astype(np.int32)


def numbers(draws, salt=0, count=1) -> np.ndarray:
    return rng.uniform_with(tf_ops, tf.constant(draws), [(salt, count)]).numpy()


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    return abs(float(np.corrcoef(one.ravel(), other.ravel())[0, 1]))


def test_numbers_do_not_change_between_versions():
    # A training that is resumed by a newer version must draw what the older one would have drawn.
    assert (numbers([[1, 2]], 3, 3) * 2**24).tolist() == [[2015277.0, 6344555.0, 4506360.0]]


@pytest.mark.parametrize("salt", [0, 65534])
def test_eager_graph_tf_data_xla_and_keras_give_the_same_bits(salt):
    expected = numbers(DRAWS, salt, 5)
    plan = [(salt, 5)]
    graph = tf.function(lambda draw: rng.uniform_with(tf_ops, draw, plan))
    compiled = tf.function(lambda draw: rng.uniform_with(tf_ops, draw, plan), jit_compile=True)
    on_device = tf.function(lambda draw: rng.uniform_with(keras.ops, draw, plan), jit_compile=True)
    rows = tf.data.Dataset.from_tensor_slices(DRAWS).map(lambda draw: rng.uniform_with(tf_ops, draw, plan))
    for found in (graph(DRAWS), compiled(DRAWS), on_device(DRAWS), rng.uniform_with(keras.ops, DRAWS, plan)):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(found), expected)
    np.testing.assert_array_equal(list(rows.as_numpy_iterator()), expected)


def test_wider_integers_count_by_their_low_bits():
    wide = np.array([[(7 << 32) + 5, 9]], np.int64)
    np.testing.assert_array_equal(numbers(wide, 1, 4), numbers(np.array([[5, 9]], np.int32), 1, 4))


def test_split_gives_draws_that_differ_and_are_independent():
    parts = rng.split(tf.constant(MANY), 3)
    assert (parts.shape, parts.dtype) == ((20_000, 3, 2), tf.int32)
    # Of 60000 random pairs of 62 bits none should be there twice.
    assert len(np.unique(parts.numpy().reshape(-1, 2), axis=0)) == 60_000
    one, other = numbers(parts[:, 0]), numbers(parts[:, 1])
    assert correlation(one, other) < 0.03
    assert correlation(one, numbers(MANY)) < 0.03
