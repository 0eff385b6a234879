"""The number of batches that an input pipeline says is the one it gives."""

from __future__ import annotations

import itertools

import pytest
import tensorflow as tf

from tests.trainer.batches import CROPS, RANDOM, options
from trainer.input.position import Host, Position
from trainer.input_fn import FOREVER, make_dataset

UNKNOWN = tf.data.UNKNOWN_CARDINALITY


def given(stream: tf.data.Dataset) -> int:
    """Reads to the end, where a number that was said wrongly is an error."""
    return sum(1 for _ in stream)


@pytest.mark.parametrize(
    ("values", "more", "expected"),
    [
        ({"batch_size": 7}, {"epochs": 3}, 3 * 61 // 7),  # no record is dropped at the seams
        ({"batch_size": 7}, {"epochs": 0}, 0),
        ({"batch_size": 7, **CROPS}, {"epochs": 2}, 2 * 244 // 7),
        ({"batch_size": 7, "pad_batches": True}, {}, 8),  # of evaluation alone
        ({"batch_size": 4, **CROPS}, {"start": Position(epoch=1, records=33)}, (4 * 61 - 33) // 4),  # what is left
        ({"batch_size": 7}, {"training": False, "start": Position(records=50)}, 2),  # with the ragged one
    ],
    ids=str,
)
def test_a_split_says_its_batches(noise, values, more, expected):
    given_options = options(**{"train_ops": RANDOM, **values})
    stream = make_dataset(str(noise), "train", given_options, **{"training": True, **more})
    assert (len(stream), given(stream), given(stream)) == (expected,) * 3


def test_every_host_says_the_same_number_and_keeps_to_it(noise):
    given_options, more = options(batch_size=8, **CROPS), {"epochs": 2, "start": Position(records=5)}
    streams = [
        make_dataset(str(noise), "train", given_options, True, **more, host=Host(index=host, count=4))
        for host in range(4)
    ]
    said = {len(stream) for stream in streams}
    assert said == {given(stream) for stream in streams}
    assert len(said) == 1


def test_what_never_ends_says_no_number(noise):
    stream = make_dataset(str(noise), "train", options(batch_size=4), True, epochs=FOREVER)
    assert int(stream.cardinality()) == UNKNOWN
    assert given(itertools.islice(stream, 40)) == 40
