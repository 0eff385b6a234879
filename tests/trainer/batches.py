"""Takes what `make_dataset` delivers apart, image by image, so that tests can compare it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from beam_jobs.dataset import manifest
from trainer.input.batches import VALID
from trainer.input.index import RecordIndex, load_index
from trainer.input.order import Order, make_order
from trainer.input.parse import IMAGE_SEED, KEY
from trainer.input.position import Host
from trainer.input_fn import make_dataset
from trainer.options import InputOptions

RANDOM = "decode|resize(8)|pad_reflect(2)|random_crop(8)|flip"  # of 12 x 12 pixels; the first two are never random

SMALL = {"shuffle_mb": 0.03, "lanes": 4}  # several windows an epoch

# Two crops and their mirror images of each record; eight records are spread among each other.
CROPS = {"train_ops": "decode|multi_crop(2, 8)|flip", "shuffle_mb": 0.0065, "lanes": 4}


class Seen(NamedTuple):
    """One image as it was delivered."""

    key: str
    pixels: bytes
    draw: tuple[int, ...]
    label: Any


def options(**values: Any) -> InputOptions:
    """Small images, one a batch, no cache."""
    return InputOptions(**{"image_side_px": 8, "batch_size": 1, "threads": 2, "cache": "none", **values})


def index_of(directory: Path | str, split: str = "train") -> RecordIndex:
    return load_index(str(directory), manifest.load(str(directory)), split)


def order_of(directory: Path, given: InputOptions) -> Order:
    """The order of training of a dataset."""
    return make_order(index_of(directory), manifest.load(str(directory)).labels, given, True)


def flat(dataset: tf.data.Dataset) -> Iterator[Seen]:
    """Every image of all batches, in order; padding is left out."""
    for features, labels in dataset.as_numpy_iterator():
        valid = features.get(VALID, np.ones(len(labels)))
        rows = zip(features[KEY], features["image"], features[IMAGE_SEED], labels, valid, strict=True)
        for key, image, draw, label, is_valid in rows:
            if is_valid:
                yield Seen(key.decode(), image.tobytes(), tuple(draw.tolist()), label.tolist())


def batches(dataset: tf.data.Dataset) -> list[list[Seen]]:
    """The images of each batch."""
    return [list(flat(tf.data.Dataset.from_tensors(batch))) for batch in dataset]


def read(directory: Path, given: InputOptions, training: bool = True, split: str = "train", **more: Any) -> list[Seen]:
    """Every image of a split, in order."""
    return list(flat(make_dataset(str(directory), split, given, training, **more)))


def order(directory: Path, given: InputOptions, training: bool = True, **more: Any) -> list[str]:
    """The keys of a split, in order."""
    return [seen.key for seen in read(directory, given, training, **more)]


def together(directory: Path, given: InputOptions, hosts: int, training: bool = True, **more: Any) -> list[list[Seen]]:
    """The global batches of several hosts: the union of their k-th ones, sorted."""
    parts = [
        batches(make_dataset(str(directory), "train", given, training, host=Host(index=host, count=hosts), **more))
        for host in range(hosts)
    ]
    assert len({len(part) for part in parts}) == 1, "every host must have the same number of batches"
    return [merged(batch) for batch in zip(*parts, strict=True)]


def merged(parts: Iterable[list[Seen]]) -> list[Seen]:
    """All images of several batches, sorted."""
    return sorted(itertools.chain.from_iterable(parts))


def graph(dataset: tf.data.Dataset) -> tf.compat.v1.GraphDef:
    """The graph that a dataset is run as."""
    text = tf.raw_ops.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(dataset)).numpy()
    return tf.compat.v1.GraphDef.FromString(text)


def arguments(dataset: tf.data.Dataset, op: str, place: int) -> Counter[int]:
    """How often the argument of an op has which value, wherever it is a constant."""
    found: Counter[int] = Counter()
    definition = graph(dataset)
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        constants = {node.name: node.attr["value"].tensor for node in nodes if node.op == "Const"}
        for node in nodes:
            name = node.input[place].split(":")[0] if node.op == op else ""
            if name in constants:
                found[int(tf.make_ndarray(constants[name]))] += 1
    return found


def ops_of(graph: tf.compat.v1.GraphDef) -> set[str]:
    """The names of all ops of a graph and of its functions."""
    return {node.op for nodes in (graph.node, *(item.node_def for item in graph.library.function)) for node in nodes}
