"""A tf.data service in this process, reached over the loopback."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import tensorflow as tf

from tests.trainer.batches import RANDOM, SMALL, flat, options, order, read
from tests.trainer.conftest import keys_of
from trainer.input_fn import FOREVER, make_dataset


@pytest.fixture(scope="module")
def service():
    dispatcher = tf.data.experimental.service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    config = tf.data.experimental.service.WorkerConfig
    workers = [tf.data.experimental.service.WorkerServer(config(dispatcher_address=address)) for _ in range(2)]
    yield dispatcher.target
    del workers, dispatcher


def test_workers_of_a_service_evaluate_every_record_exactly_once(noise, service):
    keys = order(noise, options(service=service, batch_size=7, **SMALL), training=False)
    assert sorted(keys) == sorted(keys_of(noise, "train"))


def test_images_come_with_their_own_keys_labels_and_draws(noise, service):
    given = options(train_ops=RANDOM, **SMALL)
    served = read(noise, options(train_ops=RANDOM, service=service, **SMALL))
    assert sorted(served) == sorted(read(noise, given))


def test_training_with_a_service_goes_on_forever(noise, service):
    given = options(batch_size=4, service=service, **SMALL)
    stream = flat(make_dataset(str(noise), "train", given, True, epochs=FOREVER))
    counts = Counter(seen.key for seen in itertools.islice(stream, 61 * 6))
    assert len(counts) > 50
    assert all(key in keys_of(noise, "train") for key in counts)


def test_the_shapes_are_those_without_a_service(noise, service):
    for training in (True, False):
        served = make_dataset(str(noise), "train", options(batch_size=4, service=service), training)
        assert served.element_spec == make_dataset(str(noise), "train", options(batch_size=4), training).element_spec
