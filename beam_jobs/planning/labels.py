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


def vocabulary(names: Iterable[str], existing: Iterable[str] = ()) -> Names:
    """Returns the class names of a dataset; the position of a name is its index.

    Args:
      names: names of the classes of new images and of their objects.
      existing: class names of the dataset that is added to. They keep their indices; new names follow, sorted.
    """
    first = tuple(existing)
    return first + tuple(sorted(set(names).difference(first)))


def label_indices(images: pa.Table, label_kind: str, names: Names) -> pa.Array:
    """Returns the class index of each image, int64; `NO_INDEX` unless images have exactly one label."""
    if label_kind != "single":
        return pa.array(np.full(len(images), NO_INDEX))
    labels = images["label"].combine_chunks()
    return pc.cast(pc.index_in(labels, value_set=pa.array(names, pa.string())), pa.int64())


def label_sets(images: pa.Table, label_kind: str) -> tuple[pa.Array, pa.Array]:
    """Returns the labels of each image, and the class names in its annotations, both list<string>[images].

    Args:
      images: `EXAMINED` or `IMAGES` rows.
      label_kind: one of `types.LABEL_KINDS`; with `none`, no image has labels.
    """
    count = len(images)
    none = pa.ListArray.from_arrays(np.zeros(count + 1, np.int32), pa.array([], pa.string()))
    own, annotated = none, none
    if label_kind == "single":
        own = pa.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32), images["label"].combine_chunks())
    if not pc.all(pc.equal(images["annotations"], "")).as_py():
        pairs = list(_label_pairs(images["annotations"]))
        annotated = pa.array([labels + objects for labels, objects in pairs], pa.list_(pa.string()))
        if label_kind == "multi":
            own = pa.array([labels for labels, _ in pairs], pa.list_(pa.string()))
    return own, annotated


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
