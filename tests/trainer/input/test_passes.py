from __future__ import annotations

import itertools
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from tests.trainer.batches import RANDOM, SMALL, Seen, flat, options, read
from trainer.input.position import Position
from trainer.input_fn import make_dataset
from trainer.ops import IMAGE
from trainer.options import InputOptions

GIVEN = options(train_ops=RANDOM, batch_size=7, **SMALL)  # eight batches of 61 images, and five images are left


def train(directory: Path, given: InputOptions = GIVEN, **more) -> tf.data.Dataset:
    return make_dataset(str(directory), "train", given, training=True, **more)


@pytest.fixture(scope="module")
def epochs(noise) -> list[list[Seen]]:
    """The first three epochs, each by a dataset of its own."""
    return [read(noise, GIVEN, start=Position(epoch=epoch)) for epoch in range(3)]


def test_each_pass_is_the_next_epoch(noise, epochs):
    stream = train(noise)
    assert [list(flat(stream)) for _ in range(3)] == epochs
    assert len({frozenset(seen.key for seen in epoch) for epoch in epochs}) == 3  # others are left over each time
    assert list(flat(train(noise))) == epochs[0]


def test_a_pass_that_is_not_drawn_to_its_end_comes_again(noise, epochs):
    stream = train(noise)
    assert list(flat(stream.take(3))) == epochs[0][:21]
    next(iter(stream))
    assert list(itertools.islice(flat(stream), 49)) == epochs[0][:49]  # seven of eight batches
    assert list(flat(stream)) == epochs[0]
    next(iter(stream))
    assert list(flat(stream)) == epochs[1]


def test_the_last_batch_ends_a_pass_even_if_the_end_is_never_seen(noise, epochs):
    stream = train(noise)
    for epoch in epochs:
        assert list(flat(stream.take(8))) == epoch


def test_iterators_side_by_side_give_the_same_pass(noise, epochs):
    stream = train(noise)
    late, pairs = iter(stream), zip(flat(stream), flat(stream), strict=True)
    assert list(pairs) == list(zip(epochs[0], epochs[0], strict=True))
    assert len(list(late)) == 8  # of the second epoch, for it took its pass when it was first drawn
    assert list(flat(stream)) == epochs[2]


def test_repeated_in_the_graph_it_goes_on_too(noise, epochs):
    assert list(flat(train(noise).repeat(3))) == list(itertools.chain(*epochs))


class _Draws(keras.layers.Layer):
    """Keeps the epoch that the images of every step were drawn for, then gives something to learn from."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = self.add_weight(shape=(), initializer="ones")
        self.epochs: list[list[int]] = []

    def call(self, draw: tf.Tensor) -> tf.Tensor:
        tf.py_function(lambda value: self.epochs.append(value.numpy()[:, 1].tolist()), [draw], [])
        return tf.cast(draw[:, :1], tf.float32) * 0 + self.scale


def test_keras_sees_as_many_epochs_as_it_asks_for(noise):
    layer = _Draws()
    model = keras.Sequential([keras.Input((2,), dtype="int32"), layer])
    model.compile("sgd", "mse", steps_per_execution=4)
    layer.epochs.clear()
    pairs = train(noise).map(lambda features, label: (features["draw"], tf.cast(label, tf.float32)))
    model.fit(pairs, epochs=3, verbose=0)
    assert layer.epochs == [[epoch] * 7 for epoch in range(3) for _ in range(8)]


def test_a_strategy_makes_no_copy_of_the_number_of_the_pass(noise):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        stream = strategy.distribute_datasets_from_function(lambda _: train(noise))
    first, second = ([batch[0][IMAGE].numpy().tobytes() for batch in stream] for _ in range(2))
    assert (len(first), len(second)) == (8, 8)
    assert first != second
