"""The whole input beside a second one in plain Python: lists and NumPy, nothing read ahead, no graph.

Only what is random by nature, the generators and hashes, comes from the product; everything that is done with their
numbers is written here a second time, for one image after the other.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from beam_jobs.dataset import record
from tests.trainer.batches import flat, options, order_of
from tests.trainer.conftest import records_of
from trainer.input.mixture import _choose_first_parts, make_mixture
from trainer.input.order import Order
from trainer.input.position import Host, Position
from trainer.input_fn import make_dataset
from trainer.ops import rng, tf_ops
from trainer.ops.mixing import beta
from trainer.options import InputOptions

pytestmark = pytest.mark.slow

SIDE, RECORDS, CLASSES = 8, 61, 3
COPY_STRIDE = 1_000_003
CHAINS = {
    "plain": "decode|random_crop(8)|flip",
    "crops": "decode|multi_crop(2, 8)|flip",
    "one crop": "decode|multi_crop(1, 8, mirror=False)|flip",
    "mixup": "decode|random_crop(8)|flip|mixup(0.4)",
}


class One(NamedTuple):
    """One image of the endless sequence, and which of the crops of its record it is."""

    number: int
    turn: int
    crop: int


class Made(NamedTuple):
    """One image as it should be delivered."""

    key: str
    draw: tuple[int, ...]
    pixels: np.ndarray
    label: Any


class Split(NamedTuple):
    """The stored images of a split, in the order of the shards."""

    keys: list[str]
    pixels: list[np.ndarray]
    labels: list[int]


def split_of(directory: Path) -> Split:
    rows = [record.decode(serialized) for serialized in records_of(directory, "train")]
    pixels = [np.array(Image.open(io.BytesIO(row[record.ENCODED][0]))) for row in rows]
    return Split([row[record.FILENAME][0].decode() for row in rows], pixels, [row[record.LABEL][0] for row in rows])


# --- the order


def shuffled(values: list[int], seed: int, purpose: int, epoch: int) -> list[int]:
    key = tf.constant([seed + (purpose << 32), epoch], tf.int64)
    return tf.random.experimental.stateless_shuffle(tf.constant(values, tf.int64), key, alg="philox").numpy().tolist()


def epoch_of(order: Order, epoch: int) -> list[tuple[int, int]]:
    """(record number, turn) at each position: a turn is the epoch, and more for a record that comes again in it."""
    everything = list(range(order.records))
    if order.quota:
        drawn = []
        for label, quota in order.quota.items():
            members = shuffled(order.members[label].tolist(), order.seed, 3 + label, epoch)
            copies = [(number, epoch + copy * COPY_STRIDE) for copy in range(quota) for number in members]
            drawn += copies[:quota]
        return [drawn[place] for place in shuffled(everything, order.seed, 1, epoch)]
    if order.kind == "none":
        return [(number, epoch) for number in everything]
    if order.kind == "global":
        return [(number, epoch) for number in shuffled(everything, order.seed, 1, epoch)]
    runs = [everything[start : start + order.run] for start in everything[:: order.run]]
    mixed = [runs[start // order.run] for start in shuffled(everything[:: order.run], order.seed, 1, epoch)]
    sequence = list(itertools.chain(*mixed))
    lengths = [len(everything[lane :: order.lanes]) for lane in range(order.lanes)]
    rows = -(-max(1, *lengths) // order.window) * order.window
    key = tf.constant([order.seed + (2 << 32), epoch], tf.int64)
    keys = tf.random.stateless_uniform([order.lanes, rows], key, alg="philox").numpy()
    lanes: list[list[int]] = []
    for lane, length in enumerate(lengths):
        mine, sequence = sequence[:length], sequence[length:]
        lanes.append([])
        for begin in range(0, length, order.window):
            window = range(begin, min(begin + order.window, length))
            lanes[-1] += [mine[place] for place in sorted(window, key=lambda place: keys[lane, place])]
    turns = itertools.zip_longest(*lanes)
    return [(number, epoch) for turn in turns for number in turn if number is not None]


def endless(order: Order, crops: int, group: int) -> Iterator[One]:
    """The images of all epochs: of every group of records the first crops, then the second ones, and so on."""
    records = (pair for epoch in itertools.count() for pair in epoch_of(order, epoch))
    while True:
        together = list(itertools.islice(records, group))
        for crop in range(crops):
            yield from (One(number, turn, crop) for number, turn in together)


# --- one image


def make(split: Split, one: One, chain: str, seed: int) -> Made:
    key = split.keys[one.number]
    hashed = int(tf.strings.to_hash_bucket_fast(key, 1 << 32))
    draw = tf.constant([(hashed + seed) % (1 << 32) - (1 << 31), one.turn % (1 << 31)], tf.int32)
    crops = 2 if chain == "crops" else 1
    corners = rng.uniform_for_chain(draw, [2 * crops], 1)[0].numpy()
    top, left = np.floor(corners[one.crop // 2 * 2 :][:2] * np.float32(5)).astype(int)
    pixels = split.pixels[one.number][top : top + SIDE, left : left + SIDE]
    if chain == "crops":
        pixels = pixels[:, ::-1] if one.crop % 2 else pixels
        draw = rng.split(draw, 4)[one.crop]
    pixels = pixels[:, ::-1] if rng.uniform_for_chain(draw, [1], 2)[0].numpy()[0] < 0.5 else pixels
    return Made(key, tuple(draw.numpy().tolist()), pixels, split.labels[one.number])


def mix(made: list[Made], places: list[int], lanes: int) -> list[Made]:
    """Mixes the images of a global batch, each with the one of its lane that is so many places further."""
    numbers = [rng.uniform_for_chain(tf.constant(one.draw), [3], 3)[0].numpy() for one in made]
    mixed = list(made)
    for lane in range(lanes):
        members = [index for index, place in enumerate(places) if place % lanes == lane]
        further = 1 + int(np.float32(len(members) - 1) * numbers[members[0]][2])
        for at, index in enumerate(members):
            one, other = made[index], made[members[(at + further) % len(members)]]
            share = beta(tf_ops, 0.4, tf.constant(numbers[index][:1])).numpy()[0]
            pixels = one.pixels * share + other.pixels * (1 - share) + np.float32(tf_ops.HALF)
            labels = np.eye(CLASSES)[one.label] * share + np.eye(CLASSES)[other.label] * (1 - share)
            mixed[index] = one._replace(pixels=pixels.astype(np.uint8), label=labels.tolist())
    return mixed


def batch_of(split: Split, ones: list[tuple[int, One]], chain: str, given: InputOptions, host: Host) -> list[Made]:
    """What one host delivers of a global batch, of images with their places in the endless sequence."""
    places = [place for place, _ in ones]
    mine = [place % given.lanes % host.count == host.index for place in places]
    if chain != "mixup":
        return [make(split, one, chain, given.seed) for _, one in itertools.compress(ones, mine)]
    made = [make(split, one, chain, given.seed) for _, one in ones]
    each, over = divmod(len(made), given.lanes)
    return list(itertools.compress(mix(made, places, given.lanes if each > 1 and not over else 1), mine))


def assert_same(stream: tf.data.Dataset, expected: list[Made]) -> None:
    found = list(flat(stream))
    assert [seen.key for seen in found] == [one.key for one in expected]
    assert [seen.draw for seen in found] == [one.draw for one in expected]
    np.testing.assert_allclose([seen.label for seen in found], [one.label for one in expected], atol=1e-6)
    pixels = [np.frombuffer(seen.pixels, np.uint8).astype(int) for seen in found]
    np.testing.assert_allclose(pixels, [one.pixels.ravel().astype(int) for one in expected], atol=0)


# --- settings


class Case(NamedTuple):
    """A chain with its options, where it starts, which host reads and how many epochs."""

    chain: str
    options: dict[str, Any]
    host: tuple[int, int]  # index, count
    start: tuple[int, int]  # epoch, records
    epochs: int


ALONE = (0, 1)
# In windows of 12 and of 2 records and of all; over a seam of epochs, at and inside of windows, batches and groups.
CASES = [
    Case("plain", {"shuffle_mb": 0.03, "lanes": 4, "batch_size": 8, "parse_batch": 7, "seed": 5}, (1, 2), (0, 12), 2),
    Case("plain", {"shuffle_mb": 0.005, "lanes": 2, "batch_size": 5, "cache": "memory"}, ALONE, (1, 33), 1),
    Case("plain", {"lanes": 4, "batch_size": 8, "parse_batch": 1}, (3, 4), (0, 5), 2),
    Case("plain", {"shuffle": "global", "lanes": 4, "batch_size": 4, "seed": (1 << 32) - 1}, (1, 2), (0, 40), 2),
    Case("plain", {"shuffle": "none", "lanes": 1, "batch_size": 2}, ALONE, (2, 57), 1),
    Case("plain", {"balance": "uniform", "lanes": 2, "batch_size": 6, "cache": "memory"}, (0, 2), (0, 60), 2),
    Case("crops", {"shuffle_mb": 0.0065, "lanes": 4, "batch_size": 8}, (1, 2), (1, 7), 1),
    Case("crops", {"shuffle": "global", "lanes": 2, "batch_size": 7}, ALONE, (0, 200), 1),
    Case("crops", {"shuffle_mb": 0.03, "balance": "uniform", "lanes": 4, "batch_size": 4}, (3, 4), (0, 0), 2),
    Case("one crop", {"shuffle_mb": 0.03, "lanes": 2, "batch_size": 4}, (1, 2), (1, 30), 1),
    Case("mixup", {"shuffle_mb": 0.03, "lanes": 4, "batch_size": 16}, (1, 2), (0, 5), 1),
    Case("mixup", {"balance": "uniform", "lanes": 4, "batch_size": 10}, ALONE, (0, 30), 1),
    Case("mixup", {"shuffle": "global", "lanes": 4, "batch_size": 8, "cache": "memory"}, (2, 4), (1, 0), 1),
]


def sequence_of(order: Order, given: InputOptions, chain: str) -> Iterator[tuple[int, One]]:
    crops = 4 if chain == "crops" else 1
    fit = int(given.shuffle_mb * 1e6) // (crops * SIDE * SIDE * 3)
    group = max(1, min(64, fit) // given.lanes) * given.lanes if crops > 1 else 1
    return enumerate(endless(order, crops, group))


def batches_of(
    split: Split, sequence: list[tuple[int, One]], chain: str, given: InputOptions, host: Host
) -> list[Made]:
    """What one host delivers of the whole batches of a part of the sequence."""
    size = given.batch_size
    whole = [sequence[at : at + size] for at in range(0, len(sequence) - size + 1, size)]
    return [one for ones in whole for one in batch_of(split, ones, chain, given, host)]


@pytest.fixture(scope="module")
def split(noise) -> Split:
    return split_of(noise)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_order_and_pixels_equal_an_independent_computation(noise, split, case):
    chain, epochs = case.chain, case.epochs
    given = options(train_ops=CHAINS[chain], **case.options)
    host, start = Host(index=case.host[0], count=case.host[1]), Position(epoch=case.start[0], records=case.start[1])
    length = RECORDS * (4 if chain == "crops" else 1)
    begin, span = start.epoch * length + start.records, epochs * length - start.records
    sequence = list(itertools.islice(sequence_of(order_of(noise, given), given, chain), begin + 2 * span))
    stream = make_dataset(str(noise), "train", given, True, epochs=epochs, start=start, host=host)
    for first in (begin, begin + span):  # and what comes when the dataset is read again
        assert_same(stream, batches_of(split, sequence[first : first + span], chain, given, host))


@pytest.mark.parametrize(
    ("host", "start", "epochs"), [(Host(), Position(epoch=1, records=40), 2), (Host(index=1, count=3), Position(), 2)]
)
def test_evaluation_is_the_records_of_each_host_in_the_order_of_the_shards(noise, split, host, start, epochs):
    given = options(batch_size=8, eval_ops="decode|center_crop(8)", pad_batches=host.count > 1)
    stream = make_dataset(str(noise), "train", given, False, epochs=epochs, start=start, host=host)
    bounds = [round(RECORDS * place / host.count) for place in range(host.count + 1)]
    mine = range(bounds[host.index], bounds[host.index + 1])
    places = [number for _ in range(epochs) for number in mine][start.records :]
    found = list(flat(stream))
    assert [seen.key for seen in found] == [split.keys[number] for number in places]
    assert [seen.label for seen in found] == [split.labels[number] for number in places]
    assert [seen.pixels for seen in found] == [split.pixels[number][2:10, 2:10].tobytes() for number in places]


@pytest.mark.parametrize(
    ("lanes", "host", "start", "seed"),
    # Between two groups of lanes, and inside of one.
    [(1, Host(), 7, 0), (2, Host(index=0, count=2), 140, 3), (4, Host(index=1, count=2), 43, 5)],
)
def test_a_mixture_is_drawn_lane_by_lane_as_in_the_oracle(noise, shades, split, lanes, host, start, seed):
    given = options(train_ops=CHAINS["plain"], lanes=lanes, batch_size=2 * lanes, seed=seed, shuffle_mb=0.06)
    weights = np.array([1.5, 0.8])
    stream = make_mixture(dict(zip((str(noise), str(shades)), weights, strict=True)), "train", given, start, host)
    share = dataclasses.replace(given, shuffle_mb=0.03)
    splits = [split, split_of(shades)]
    parts = [sequence_of(order_of(directory, share), share, "plain") for directory in (noise, shades)]
    turns = _choose_first_parts(weights, seed, 200).tolist()
    sequence = [(part, next(parts[part])[1]) for part in turns for _ in range(lanes)]
    names = ["cat", "dog", "owl", "dark", "light"]
    expected = []
    for place, (part, one) in list(enumerate(sequence))[start : start + 20 * lanes]:
        if place % lanes % host.count == host.index:
            made = make(splits[part], one, "plain", seed)
            expected.append(made._replace(label=names.index(Path(made.key).parent.name)))
    assert_same(stream.take(10), expected)
