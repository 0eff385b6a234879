from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.dataset import manifest
from beam_jobs.errors import OptionError
from tests.trainer.batches import CROPS, RANDOM, SMALL, Seen, batches, flat, merged, options, order, read, together
from tests.trainer.conftest import keys_of
from trainer.input.index import load_index
from trainer.input.position import Host, Position
from trainer.input_fn import FOREVER, KEY, VALID, epoch_records, make_dataset
from trainer.ops import IMAGE

# --- resuming


def test_forever_can_be_continued(noise):
    given = options(train_ops=RANDOM, **SMALL)
    stream = make_dataset(str(noise), "train", given, True, epochs=FOREVER, start=Position(epoch=1, records=20))
    assert list(itertools.islice(flat(stream), 100)) == read(noise, given, epochs=3)[81:181]


# --- several hosts


def test_hosts_mix_the_same_images_and_labels_as_one(noise):
    given = options(train_ops=f"{RANDOM}|mixup(1.0)|cutmix(1.0)", batch_size=16, lanes=4)
    start = Position(records=5)  # a global batch need not begin with the first lane
    alone = batches(make_dataset(str(noise), "train", given, True, start=start))
    mixed = [seen for batch in alone for seen in sorted(batch)]
    shared = [seen for batch in together(noise, given, 2, start=start) for seen in batch]
    assert [(seen.key, seen.pixels) for seen in shared] == [(seen.key, seen.pixels) for seen in mixed]
    # The last digit of a power depends on its place in the vector that a processor works on.
    np.testing.assert_allclose([seen.label for seen in shared], [seen.label for seen in mixed], atol=1e-6)
    plain = {seen.key: seen.pixels for seen in read(noise, options(train_ops=RANDOM, lanes=4), start=start)}
    assert sum(seen.pixels != plain[seen.key] for seen in mixed) > 40
    assert sum(max(seen.label) < 0.99 for seen in mixed) > 5


def test_hosts_that_cannot_mix_the_same_images_are_refused(noise):
    given = options(train_ops="decode|resize(8)|mixup(0.4)", batch_size=8, lanes=8)
    assert len(read(noise, given)) == 56
    with pytest.raises(
        OptionError, match="^batch_size and lanes are 8; .* batch_size must be 16 or more, or lanes must be smaller"
    ):
        make_dataset(str(noise), "train", given, True, host=Host(index=1, count=2))


@pytest.mark.parametrize(
    ("given", "hosts", "message"),
    [
        ({"batch_size": 9}, 2, "batch_size is 9; the number of hosts, 2, must divide it"),
        ({"batch_size": 12, "lanes": 8}, 3, "lanes is 8; the number of hosts, 3, must divide it"),
        ({"batch_size": 6, "lanes": 4}, 2, "batch_size is 6; .* must be a multiple of lanes, 4"),
    ],
)
def test_what_hosts_cannot_share_equally_is_refused(noise, given, hosts, message):
    with pytest.raises(OptionError, match=f"^{message}"):
        make_dataset(str(noise), "train", options(**given), True, host=Host(index=0, count=hosts))


# --- evaluation


def test_hosts_together_evaluate_every_record_once_in_the_order_of_the_table(noise):
    parts = []
    for host in range(3):
        stream = make_dataset(str(noise), "train", options(batch_size=8), False, host=Host(index=host, count=3))
        assert {features[IMAGE].shape for features, _ in stream} == {(3, 8, 8, 3)}
        parts.append(batches(stream))
    assert len({len(part) for part in parts}) == 1
    keys = [seen.key for part in parts for batch in part for seen in batch]
    assert keys == keys_of(noise, "train")


def test_a_start_inside_of_an_evaluation_is_exact_on_one_host_and_refused_on_several(noise):
    start = Position(epoch=2, records=40)
    assert order(noise, options(batch_size=8), training=False, start=start) == keys_of(noise, "train")[40:]
    padded = make_dataset(str(noise), "train", options(batch_size=8, pad_batches=True), False, start=start)
    assert (len(padded), len(list(flat(padded)))) == (3, 21)
    with pytest.raises(
        OptionError, match="^start is 40 records into the split, and each of 3 hosts evaluates its own part"
    ):
        make_dataset(str(noise), "train", options(batch_size=8), False, start=start, host=Host(index=2, count=3))
    whole = together(noise, options(batch_size=8), 3, training=False, start=Position(epoch=2))
    assert merged(whole) == sorted(read(noise, options(), training=False, start=Position(epoch=2)))


def test_a_host_without_a_record_pads_all_of_its_batches(noise):
    sizes = [
        len(load_index(str(noise), manifest.load(str(noise)), "train").host_part(Host(index=host, count=64)))
        for host in range(64)
    ]
    stream = make_dataset(str(noise), "train", options(batch_size=64), False, host=Host(index=sizes.index(0), count=64))
    assert [features[VALID].numpy().tolist() for features, _ in stream] == [[0.0]]


def test_padding_is_marked_and_empty(noise):
    stream = make_dataset(str(noise), "train", options(batch_size=8, pad_batches=True), False)
    assert stream.element_spec[0][IMAGE].shape == (8, 8, 8, 3)
    *_, (features, label) = stream
    assert features[VALID].numpy().tolist() == [1.0] * 5 + [0.0] * 3
    assert features[VALID].dtype == tf.float32
    assert not features[IMAGE].numpy()[5:].any()
    assert features[KEY].numpy()[5:].tolist() == [b""] * 3
    assert [seen.key for seen in flat(stream)] == keys_of(noise, "train")
    assert label.shape == (8,)


def test_evaluation_between_the_steps_never_changes_the_training(noise):
    given = options(train_ops=RANDOM, batch_size=4, **SMALL)
    expected, train = (make_dataset(str(noise), "train", given, True, epochs=2) for _ in range(2))
    evaluation = make_dataset(str(noise), "train", given, False)
    found = []
    for step, batch in enumerate(train):
        found.append(list(flat(tf.data.Dataset.from_tensors(batch))))
        if step % 15 == 0:
            assert [seen.key for seen in flat(evaluation)] == keys_of(noise, "train")
    assert found == batches(expected)


# --- several images of one


def crops(noise: Path, start: int, count: int) -> list[Seen]:
    length = epoch_records(str(noise), "train", options(**CROPS), training=True)
    assert length == 4 * 61
    start = Position.after(start, length)
    stream = make_dataset(str(noise), "train", options(**CROPS), True, epochs=FOREVER, start=start)
    return list(itertools.islice(flat(stream), count))


def test_images_made_of_one_are_delivered_far_apart_each_once_and_with_a_draw_of_its_own(noise):
    seen = crops(noise, 0, 4 * 56)  # seven groups
    places: dict[str, list[int]] = {}
    for place, image in enumerate(seen):
        places.setdefault(image.key, []).append(place)
    assert len(places) == 56
    for found in places.values():
        assert np.diff(found).tolist() == [8, 8, 8]
    assert len({image.draw for image in seen}) == len(seen)
    assert len({image.pixels for image in seen}) > 150  # flipping what is mirrored gives some twice
