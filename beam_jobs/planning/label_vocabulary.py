"""The classes of a dataset: which there are, and which one stands for an image."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.dataset import schemas

NO_INDEX = -1  # `label_index` of images that have not exactly one label

_CACHED = 4096  # multi-label images share few sets of labels, and polygons of 10 kB must not pile up

Names = tuple[str, ...]


def vocabulary(images: pa.Table, label_kind: str, known: Iterable[str] = ()) -> Names:
    """Returns the class names, of images and of their objects; the place of a name is its index.

    Args:
      images: `EXAMINED` rows.
      label_kind: one of `types.LABEL_KINDS`.
      known: names of the dataset that is added to. They keep their places, and new ones come after them, sorted.
    """
    first = tuple(known)
    names: set[str] = set(pc.unique(images["label"]).to_pylist()) if label_kind == "single" else set()
    for labels, objects in _names_of(images["annotations"]):
        names.update(labels, objects)
    return first + tuple(sorted(names.difference(first)))


def indices(images: pa.Table, label_kind: str, names: Names) -> pa.Array:
    """Returns the class index of each image, int64; `NO_INDEX` unless images have exactly one label."""
    if label_kind != "single":
        return pa.array(np.full(len(images), NO_INDEX))
    labels = images["label"].combine_chunks()
    return pc.cast(pc.index_in(labels, value_set=pa.array(names, pa.string())), pa.int64())


def codes(images: pa.Table, label_kind: str) -> np.ndarray:
    """Returns a number for the label or labels of each image, int64; equal labels have equal numbers."""
    if label_kind == "single":
        return images["label"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    numbers: dict[Names, int] = {}
    return np.array(
        [numbers.setdefault(labels, len(numbers)) for labels, _ in _names_of(images["annotations"])], np.int64
    )


def strata(images: pa.Table, label_kind: str) -> np.ndarray:
    """Returns the class of each image to stratify by, int64: its rarest label, or the first of two that are as rare.

    Rare classes are the ones that a split may miss. Images without a label form a class of their own.
    """
    if label_kind == "single":
        labels = images["label"].combine_chunks().dictionary_encode()
        order = pc.sort_indices(pc.sort_indices(labels.dictionary))  # the place of each name among the sorted ones
        return order.take(labels.indices).to_numpy().astype(np.int64)
    label_sets = [labels for labels, _ in _names_of(images["annotations"])]
    counts = Counter(name for labels in label_sets for name in labels)
    rank = {name: place for place, name in enumerate(sorted(counts), 1)}
    return np.array(
        [rank[min(labels, key=lambda name: (counts[name], name))] if labels else 0 for labels in label_sets], np.int64
    )


def _names_of(annotations: pa.ChunkedArray) -> Iterator[tuple[Names, Names]]:
    """Yields the labels of each image and those of its objects."""
    labels_of = functools.lru_cache(maxsize=_CACHED)(_labels_of)
    for chunk in annotations.chunks:
        yield from map(labels_of, chunk.to_numpy(zero_copy_only=False))


def _labels_of(text: str) -> tuple[Names, Names]:
    annotations = schemas.annotations_of(text)
    if annotations is None:
        return (), ()
    return annotations.labels or (), tuple(item.label for item in annotations.objects or ())
