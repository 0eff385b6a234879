from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.dataset import manifest
from beam_jobs.errors import OptionError
from tests.trainer.batches import (
    RANDOM,
    SMALL,
    Seen,
    batches,
    flat,
    merged,
    options,
    order,
    order_of,
    read,
    together,
)
from tests.trainer.conftest import keys_of
from trainer.input import index as record_index
from trainer.input.position import Host, Position
from trainer.input_fn import FOREVER, KEY, VALID, epoch_records, make_dataset
from trainer.ops import IMAGE

# --- resuming


# The beginning, inside of a window, at its edge, inside of a batch, in the second epoch and in the last batch.
STARTS = [(0, 0), (0, 5), (0, 12), (0, 13), (0, 60), (1, 0), (1, 33), (2, 59)]


@pytest.fixture(scope="module")
def three_epochs(noise):
    return read(noise, options(train_ops=RANDOM, **SMALL), epochs=3)


def test_the_starts_lie_in_different_windows(noise):
    assert order_of(noise, options(**SMALL)).window_positions == 12


@pytest.mark.parametrize(("epoch", "records"), STARTS)
def test_continuing_anywhere_gives_exactly_the_rest(noise, three_epochs, epoch, records):
    given = options(train_ops=RANDOM, batch_size=4, **SMALL)
    rest = three_epochs[61 * epoch + records :]
    start = Position(epoch=epoch, records=records)
    assert read(noise, given, epochs=3 - epoch, start=start) == rest[: len(rest) // 4 * 4]


@pytest.mark.parametrize("change", [{"shuffle": "global"}, {"shuffle": "none"}, {"balance": "uniform"}], ids=str)
def test_every_kind_of_order_can_be_continued(noise, change):
    given = options(train_ops=RANDOM, **SMALL, **change)
    expected = read(noise, given, epochs=2)[40:]
    assert read(noise, given, epochs=2, start=Position(records=40)) == expected


def test_forever_can_be_continued(noise, three_epochs):
    given = options(train_ops=RANDOM, **SMALL)
    stream = make_dataset(str(noise), "train", given, True, epochs=FOREVER, start=Position(epoch=1, records=20))
    assert list(itertools.islice(flat(stream), 100)) == three_epochs[81:181]


def test_the_length_of_an_epoch_turns_steps_into_a_position(noise, three_epochs):
    given = options(train_ops=RANDOM, batch_size=4, **SMALL)
    length = epoch_records(str(noise), "train", given, training=True)
    assert length == 61
    assert read(noise, given, epochs=2, start=Position.after(17 * 4, length)) == three_epochs[68:180]
    assert epoch_records(str(noise), "train", options(balance="uniform"), training=True) == 61


# --- several hosts


@pytest.mark.parametrize("hosts", [2, 8])
def test_hosts_together_deliver_the_same_global_batches_over_the_seams_of_epochs(noise, hosts):
    given = options(train_ops=RANDOM, batch_size=8, shuffle_mb=0.03)
    expected = [sorted(batch) for batch in batches(make_dataset(str(noise), "train", given, True, epochs=3))]
    assert len(expected) == 22  # 3 x 61 records, which neither 8 lanes nor batches of 8 divide
    assert together(noise, given, hosts, epochs=3) == expected


@pytest.mark.parametrize("change", [{"shuffle": "global"}, {"balance": "uniform"}, {"cache": "memory"}], ids=str)
def test_hosts_share_every_kind_of_order(noise, change):
    given = options(train_ops=RANDOM, batch_size=8, **change)
    expected = [sorted(batch) for batch in batches(make_dataset(str(noise), "train", given, True, epochs=2))]
    assert together(noise, given, 4, epochs=2) == expected


@pytest.mark.parametrize("spec", ["mixup(0.4)", "cutmix(1.0)", "mixup(1.0)|cutmix(1.0)"])
def test_hosts_mix_the_same_images_and_labels_as_one(noise, spec):
    given = options(train_ops=f"{RANDOM}|{spec}", batch_size=16, lanes=4)
    start = Position(records=5)  # a global batch need not begin with the first lane
    alone = batches(make_dataset(str(noise), "train", given, True, start=start))
    mixed = [seen for batch in alone for seen in sorted(batch)]
    for hosts in (2, 4):
        shared = [seen for batch in together(noise, given, hosts, start=start) for seen in batch]
        assert [(seen.key, seen.pixels) for seen in shared] == [(seen.key, seen.pixels) for seen in mixed]
        # The last digit of a power depends on its place in the vector that a processor works on.
        np.testing.assert_allclose([seen.label for seen in shared], [seen.label for seen in mixed], atol=1e-6)
    plain = {seen.key: seen.pixels for seen in read(noise, options(train_ops=RANDOM, lanes=4), start=start)}
    assert sum(seen.pixels != plain[seen.key] for seen in mixed) > 40
    assert sum(max(seen.label) < 0.99 for seen in mixed) > 5


def test_hosts_that_cannot_mix_the_same_images_are_refused(noise):
    given = options(train_ops="decode|resize(8)|mixup(0.4)", batch_size=8, lanes=8)
    assert len(read(noise, given)) == 56
    message = "batch_size and lanes are 8; to mix images on several hosts batch_size must be 16 or more, or lanes less"
    with pytest.raises(OptionError, match=f"^{message}$"):
        make_dataset(str(noise), "train", given, True, host=Host(index=1, count=2))


@pytest.fixture(scope="module")
def two_hosts(noise):
    """Two epochs on two hosts, which `test_two_hosts_can_be_continued_by_four` goes on with."""
    return together(noise, options(train_ops=RANDOM, batch_size=8, **SMALL), 2, epochs=2)


@pytest.mark.parametrize("steps", [5, 8])  # in the first epoch, and in the second, which batches of 8 do not meet
def test_two_hosts_can_be_continued_by_four(noise, two_hosts, steps):
    start = Position.after(steps * 8, 61)
    given = options(train_ops=RANDOM, batch_size=8, **SMALL)
    assert together(noise, given, 4, epochs=2 - start.epoch, start=start) == two_hosts[steps:]


@pytest.mark.parametrize("start", [Position(epoch=1), Position(records=5)], ids=str)
def test_hosts_can_start_between_two_batches(noise, three_epochs, start):
    given = options(train_ops=RANDOM, batch_size=8, **SMALL)
    rest = three_epochs[start.epoch * 61 + start.records : (start.epoch + 1) * 61]
    expected = [sorted(rest[at : at + 8]) for at in range(0, len(rest) // 8 * 8, 8)]
    assert together(noise, given, 2, start=start) == expected


@pytest.mark.parametrize(
    ("given", "hosts", "message"),
    [
        ({"batch_size": 9}, 2, "batch_size is 9; 2 hosts must be able to share it equally"),
        ({"batch_size": 12, "lanes": 8}, 3, "lanes is 8; 3 hosts must be able to share them equally"),
        ({"batch_size": 6, "lanes": 4}, 2, "batch_size is 6; with several hosts lanes, 4, must divide it"),
    ],
)
def test_what_hosts_cannot_share_equally_is_refused(noise, given, hosts, message):
    with pytest.raises(OptionError, match=f"^{message}$"):
        make_dataset(str(noise), "train", options(**given), True, host=Host(index=0, count=hosts))


# --- evaluation


@pytest.mark.parametrize("hosts", [2, 3, 5])
def test_hosts_together_evaluate_every_record_once_in_the_order_of_the_table(noise, hosts):
    parts = []
    for host in range(hosts):
        stream = make_dataset(str(noise), "train", options(batch_size=8), False, host=Host(index=host, count=hosts))
        images = -(-8 // hosts)
        assert {features[IMAGE].shape for features, _ in stream} == {(images, 8, 8, 3)}
        parts.append(batches(stream))
    assert len({len(part) for part in parts}) == 1
    keys = [seen.key for part in parts for batch in part for seen in batch]
    assert keys == keys_of(noise, "train")


def test_a_start_inside_of_an_evaluation_is_exact_on_one_host_and_refused_on_several(noise):
    start = Position(epoch=2, records=40)
    assert order(noise, options(batch_size=8), training=False, start=start) == keys_of(noise, "train")[40:]
    padded = make_dataset(str(noise), "train", options(batch_size=8, pad_batches=True), False, start=start)
    assert (len(padded), len(list(flat(padded)))) == (3, 21)
    message = "start is 40 records into the split, and 3 hosts evaluate a part of it each; start at 0 records, or "
    with pytest.raises(OptionError, match=f"^{message}"):
        make_dataset(str(noise), "train", options(batch_size=8), False, start=start, host=Host(index=2, count=3))
    whole = together(noise, options(batch_size=8), 3, training=False, start=Position(epoch=2))
    assert merged(whole) == sorted(read(noise, options(), training=False, start=Position(epoch=2)))


def test_hosts_evaluate_the_same_pixels_and_draws_as_one(noise):
    shared = together(noise, options(batch_size=8), 3, training=False)
    assert merged(shared) == sorted(read(noise, options(), training=False))


def test_a_host_without_a_record_pads_all_of_its_batches(noise):
    sizes = [
        len(record_index.load(str(noise), manifest.load(str(noise)), "train").part(Host(index=host, count=64)))
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


def test_batches_that_fill_up_are_not_padded(shades):
    stream = make_dataset(str(shades), "train", options(batch_size=8, pad_batches=True), False)
    assert [float(tf.reduce_sum(features[VALID])) for features, _ in stream] == [8.0] * 12


def test_training_and_unpadded_evaluation_have_no_mask(noise):
    for training in (True, False):
        spec = make_dataset(str(noise), "train", options(batch_size=8), training).element_spec
        assert VALID not in spec[0]


def test_evaluation_between_the_steps_never_changes_the_training(noise):
    given = options(train_ops=RANDOM, batch_size=4, **SMALL)
    expected, train = (make_dataset(str(noise), "train", given, True, epochs=2) for _ in range(2))
    evaluation = make_dataset(str(noise), "train", given, False)
    found = []
    for step, batch in enumerate(train):
        found.append(list(flat(tf.data.Dataset.from_tensors(batch))))
        if step % 7 == 0:
            assert [seen.key for seen in flat(evaluation)] == keys_of(noise, "train")
    assert found == batches(expected)


# --- several images of one


# Two crops and their mirror images of each record; eight records are spread among each other.
CROPS = {"train_ops": "decode|multi_crop(2, 8)|flip", "shuffle_mb": 0.0065, "lanes": 4}


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


@pytest.mark.parametrize("start", [1, 47, 4 * 61, 4 * 61 + 30])
def test_images_made_of_one_can_be_continued_anywhere(noise, start):
    assert crops(noise, start, 100) == crops(noise, 0, start + 100)[start:]


@pytest.mark.parametrize("start", [Position(epoch=1), Position(epoch=1, records=7), Position(records=50)], ids=str)
def test_a_number_of_epochs_of_images_made_of_one_can_be_continued(noise, start):
    whole = read(noise, options(**CROPS), epochs=2)
    assert len(whole) == 2 * 244
    rest = whole[start.epoch * 244 + start.records :]
    assert read(noise, options(**CROPS), epochs=2 - start.epoch, start=start) == rest


@pytest.mark.parametrize(("epochs", "start", "hosts"), [(2, Position(), 2), (1, Position(epoch=1, records=7), 4)])
def test_hosts_share_images_made_of_one_to_the_last_batch(noise, epochs, start, hosts):
    given = options(batch_size=8, **CROPS)
    more = {"epochs": epochs, "start": start}
    expected = [sorted(batch) for batch in batches(make_dataset(str(noise), "train", given, True, **more))]
    assert len(expected) == (epochs * 244 - start.records) // 8
    assert together(noise, given, hosts, **more) == expected
