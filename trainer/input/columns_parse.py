"""User columns, boxes and masks beside the image: how they are parsed, taken apart, batched and delivered.

No stage holds a sparse tensor. `tf.data` serialises one for every element and the step parses it again, which with 17
columns costs several times the forward pass; ragged tensors are cut and joined where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from beam_jobs import storage
from beam_jobs.dataset import record, schemas
from beam_jobs.dataset.manifest import IMAGES_NAME, Manifest
from beam_jobs.dataset.user_columns import check_column
from beam_jobs.errors import OptionError
from beam_jobs.types import EXTRA_TYPES
from trainer.options import InputOptions

BOXES = "boxes"
BOX_LABELS = "box_labels"
MASK = "mask"
Features: TypeAlias = dict[str, tf.Tensor]

_DTYPES = {int: tf.int64, float: tf.float32, str: tf.string}
_SIDES = tuple(f"{record.OBJECT_PREFIX}bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
_OBJECT_LABEL = record.OBJECT_PREFIX + "class/label"


@dataclass(frozen=True, kw_only=True)
class Column:
    """What the cells of one user column hold.

    Attributes:
      kind: int, float or str.
      scalar: whether every record has exactly one value; otherwise any number of them, and an empty cell has none.
    """

    kind: type
    scalar: bool


def columns_spec(dataset: Manifest, path: str, options: InputOptions) -> dict[str, Any]:
    """Returns what `tf.io.parse_example` has to know of the user columns and targets that the options name.

    A scalar column is a `FixedLenFeature`; every other feature is a `RaggedFeature`. What a column holds is looked up
    in `images.parquet`, in all records of the dataset, so that all splits and hosts agree.

    Args:
      dataset: the dataset.
      path: directory it lies in.
      options: `columns` and `targets` of them.

    Raises:
      OptionError: the dataset has no such column, no boxes or no masks, or a column holds different types.
      CorruptDataset: `images.parquet` cannot be read.
    """
    spec: dict[str, Any] = {}
    known = dataset.options["columns"]["extra"]
    for name in options.columns:
        check_column(name, known, "columns")
    for name, column in (_columns(path, options.columns) if options.columns else {}).items():
        dtype = _DTYPES[column.kind]
        spec[record.EXTRA_PREFIX + name] = tf.io.FixedLenFeature([], dtype) if column.scalar else _ragged(dtype)
    for target in options.targets:
        _check_target(path, target)
        if target == BOXES:
            spec |= {**dict.fromkeys(_SIDES, _ragged(tf.float32)), _OBJECT_LABEL: _ragged(tf.int64)}
        else:
            spec[record.MASK] = tf.io.FixedLenFeature([], tf.string)
    return spec


def join_targets(parsed: Mapping[str, Any]) -> Features:
    """Gives the parsed targets of a batch the names and shapes of the contract; before it is taken apart.

    Returns:
      the features, with the sides of the boxes joined to `boxes` float32[batch, None, 4], ragged: ymin, xmin, ymax,
      xmax as shares of the image, 0-1; with `box_labels` int64[batch, None], ragged; with `mask` string[batch], PNG.
    """
    features = dict(parsed)
    if _OBJECT_LABEL in features:
        sides = [features.pop(name) for name in _SIDES]
        joined = tf.stack([side.flat_values for side in sides], axis=-1)
        features[BOXES] = sides[0].with_flat_values(joined)
        features[BOX_LABELS] = features.pop(_OBJECT_LABEL)
    if record.MASK in features:
        features[MASK] = features.pop(record.MASK)
    return features


def decode_mask(features: Mapping[str, Any]) -> Features:
    """Decodes the mask of one image, if it has one: string scalar -> uint8[height, width, 1], class indices."""
    if MASK not in features:
        return dict(features)
    return {**features, MASK: tf.ensure_shape(tf.io.decode_png(features[MASK], channels=1), [None, None, 1])}


def batch_ragged(stream: tf.data.Dataset, size: int, drop_remainder: bool) -> tf.data.Dataset:
    """Batches images one by one with what lies beside them; features whose length differs become ragged.

    Args:
      stream: dataset of nested features of one image each.
      size: images a batch.
      drop_remainder: whether to leave out the ragged last batch.
    """
    specs = tf.nest.flatten(stream.element_spec)
    if all(spec.shape.is_fully_defined() for spec in specs):
        return stream.batch(size, drop_remainder=drop_remainder)  # `ragged_batch` adds a stage of its own
    return stream.ragged_batch(size, drop_remainder=drop_remainder, row_splits_dtype=tf.int64)


def deliver_columns(features: Mapping[str, Any], options: InputOptions) -> Features:
    """Gives the user columns of a finished batch the form that is asked for.

    Returns:
      the features; with `columns_form` of `dense`, ragged columns are padded with 0, 0.0 or "" to the longest of the
      batch. Boxes stay ragged: a padded one would lie in the corner of the image.
    """
    if options.columns_form == "ragged":
        return dict(features)
    names = {record.EXTRA_PREFIX + name for name in options.columns}
    return {
        name: value.to_tensor() if name in names and isinstance(value, tf.RaggedTensor) else value
        for name, value in features.items()
    }


def _ragged(dtype: tf.DType) -> tf.io.RaggedFeature:
    return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)  # as `ragged_batch` makes them


def _columns(path: str, names: tuple[str, ...]) -> dict[str, Column]:
    kinds: dict[str, set[type]] = {name: set() for name in names}
    scalar = dict.fromkeys(names, True)
    for cells in _cells(path, "extra"):
        for name in names:
            value = cells.get(name)
            scalar[name] &= value is not None and not isinstance(value, list)
            if value is not None:
                kinds[name].add(_kind(value))
    return {name: Column(kind=_only(name, kinds[name]), scalar=scalar[name]) for name in names}


def _kind(value: Any) -> type:
    """Returns the type that `beam_jobs.dataset.record` gives a cell."""
    values = value if isinstance(value, list) else [value]
    return max((next(kind for kind in EXTRA_TYPES if isinstance(item, kind)) for item in values), key=EXTRA_TYPES.index)


def _only(name: str, kinds: set[type]) -> type:
    if len(kinds) > 1:
        found = " and ".join(kind.__name__ for kind in sorted(kinds, key=EXTRA_TYPES.index))
        raise OptionError(
            f"columns: user column {name!r} holds {found}, as parts that were added later may; ingest all in one go"
        )
    return next(iter(kinds), int)  # a column of empty cells alone


def _cells(path: str, column: str) -> Iterator[Mapping[str, Any]]:
    """Yields the different cells of JSON in a column of `images.parquet`, of the records that are in a shard."""
    table = schemas.read_published(storage.join(path, IMAGES_NAME), [column, "shard"])
    texts = zip(table[column].to_pylist(), table["shard"].to_pylist(), strict=True)
    yield from (schemas.cell(text) for text in {text for text, shard in texts if shard >= 0} if text)


def _check_target(path: str, target: str) -> None:
    part, called = {BOXES: ("objects", "boxes"), MASK: ("mask", "masks")}[target]
    if not any(cells[part] is not None for cells in _cells(path, "annotations")):
        raise OptionError(f"targets names {target!r}, and the images of {path} have no {called}")
