"""Class names of images: their indices, and the classes by which splits are stratified."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.dataset import schemas

NO_INDEX = -1  # `label_index` of images that have not exactly one label

_CACHED_LABELS = 4096  # multi-label images share few sets of labels; annotations have up to 10 kB

Names = tuple[str, ...]


def vocabulary(images: pa.Table, label_kind: str, existing: Iterable[str] = ()) -> Names:
    """Returns the class names of images and of their objects; the position of a name is its index.

    Args:
      images: `EXAMINED` rows.
      label_kind: one of `types.LABEL_KINDS`.
      existing: class names of the dataset that is added to. They keep their indices; new names follow, sorted.
    """
    first = tuple(existing)
    names: set[str] = set(pc.unique(images["label"]).to_pylist()) if label_kind == "single" else set()
    for labels, objects in _label_pairs(images["annotations"]):
        names.update(labels, objects)
    return first + tuple(sorted(names.difference(first)))


def label_indices(images: pa.Table, label_kind: str, names: Names) -> pa.Array:
    """Returns the class index of each image, int64; `NO_INDEX` unless images have exactly one label."""
    if label_kind != "single":
        return pa.array(np.full(len(images), NO_INDEX))
    labels = images["label"].combine_chunks()
    return pc.cast(pc.index_in(labels, value_set=pa.array(names, pa.string())), pa.int64())


def label_sets(images: pa.Table, label_kind: str) -> pa.Array:
    """Returns the labels of each image, list<string>[images]; an empty list for none."""
    if label_kind == "single":
        return pa.ListArray.from_arrays(np.arange(len(images) + 1, dtype=np.int32), images["label"].combine_chunks())
    if label_kind == "none":
        return pa.ListArray.from_arrays(np.zeros(len(images) + 1, np.int32), pa.array([], pa.string()))
    return pa.array([labels for labels, _ in _label_pairs(images["annotations"])], pa.list_(pa.string()))


def _label_pairs(annotations: pa.ChunkedArray) -> Iterator[tuple[Names, Names]]:
    """Yields the labels of each image and the labels of its objects."""
    parse = functools.lru_cache(maxsize=_CACHED_LABELS)(_parse_labels)
    for chunk in annotations.chunks:
        yield from map(parse, chunk.to_numpy(zero_copy_only=False))


def _parse_labels(text: str) -> tuple[Names, Names]:
    annotations = schemas.parse_annotations(text)
    if annotations is None:
        return (), ()
    return annotations.labels or (), tuple(item.label for item in annotations.objects or ())
