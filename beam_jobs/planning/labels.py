"""Class names of images: their indices, and the classes by which splits are stratified."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NO_INDEX = -1  # `label_index` of images that have not exactly one label

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
