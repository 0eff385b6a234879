"""Parses batches of serialised records into features: image, label, user columns, boxes and masks.

No stage uses sparse tensors: `tf.data` serialises them for every element and the training step parses them again. With
17 columns that takes several times as long as the forward pass. Ragged tensors need no such copies.

The input of a chain of ops is an encoded file, stored pixels, or a cached image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow.compute as pc
import tensorflow as tf

from beam_jobs.dataset import record, schemas
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.dataset.schemas import check_column
from beam_jobs.errors import OptionError
from beam_jobs.types import EXTRA_TYPES
from trainer.ops import BOX_LABELS, BOXES, IMAGE, MASK, Decode, DecodeRandomCrop, ImageOp, Op
from trainer.ops.base import IMAGE_SEED, Size
from trainer.options import InputOptions

Features: TypeAlias = dict[str, tf.Tensor]

_DTYPES = {int: tf.int64, float: tf.float32, str: tf.string}


def columns_spec(dataset: Manifest, path: str, options: InputOptions) -> dict[str, Any]:
    """Returns the argument of `tf.io.parse_example` for the user columns and targets of the options.

    A scalar column is a `FixedLenFeature`; every other feature is a `RaggedFeature`. The type of a column is inferred
    from all its cells in the image table, so that all splits and hosts agree.

    Args:
      dataset: manifest of the dataset.
      path: directory of the dataset.
      options: options of the pipeline: `columns` and `targets` are used.

    Raises:
      OptionError: the dataset has no such column, no boxes or no masks, or a column has values of different types.
      CorruptDataset: the image table cannot be read.
    """
    for name in options.columns:
        check_column(name, dataset.options["columns"]["extra"], "columns")
    spec = _infer_column_specs(dataset, path, options.columns) if options.columns else {}
    for target in options.targets:
        _check_target(dataset, path, target)
        if target == BOXES:
            spec |= {**dict.fromkeys(record.OBJECT_SIDES, _ragged(tf.float32)), record.OBJECT_LABEL: _ragged(tf.int64)}
        else:
            spec[record.MASK] = tf.io.FixedLenFeature([], tf.string)
    return spec


def join_targets(parsed: Mapping[str, Any]) -> Features:
    """Converts the parsed targets of a batch to their public names and shapes.

    Returns:
      the features with the sides of the boxes joined to `boxes` float32[batch, None, 4], ragged: ymin, xmin, ymax,
      xmax as fractions of the image, 0-1; `box_labels` int64[batch, None], ragged; `mask` string[batch], PNG.
    """
    features = dict(parsed)
    if record.OBJECT_LABEL in features:
        sides = [features.pop(name) for name in record.OBJECT_SIDES]
        joined = tf.stack([side.flat_values for side in sides], axis=-1)
        features[BOXES] = sides[0].with_flat_values(joined)
        features[BOX_LABELS] = features.pop(record.OBJECT_LABEL)
    if record.MASK in features:
        features[MASK] = features.pop(record.MASK)
    return features


def decode_mask(features: Mapping[str, Any]) -> Features:
    """Decodes the mask of one image, if it has one: string scalar -> uint8[height, width, 1], class indices."""
    if MASK not in features:
        return dict(features)
    return {**features, MASK: tf.ensure_shape(tf.io.decode_png(features[MASK], channels=1), [None, None, 1])}


def batch_ragged(stream: tf.data.Dataset, size: int, drop_remainder: bool) -> tf.data.Dataset:
    """Batches images and their other features; features whose lengths differ become ragged.

    Args:
      stream: dataset of nested features of one image each.
      size: images per batch.
      drop_remainder: whether to drop an incomplete last batch.
    """
    specs = tf.nest.flatten(stream.element_spec)
    if all(spec.shape.is_fully_defined() for spec in specs):
        return stream.batch(size, drop_remainder=drop_remainder)  # `ragged_batch` would add another stage
    return stream.ragged_batch(size, drop_remainder=drop_remainder, row_splits_dtype=tf.int64)


def deliver_columns(features: Mapping[str, Any], options: InputOptions) -> Features:
    """Converts the user columns of a finished batch to the form of `columns_form`.

    Returns:
      the features; with `dense`, ragged columns are padded with 0, 0.0 or "" to the longest row of the batch. Boxes
      remain ragged: padding would add a box in the corner of the image.
    """
    if options.columns_form == "ragged":
        return dict(features)
    names = {record.EXTRA_PREFIX + name for name in options.columns}
    return {
        name: value.to_tensor() if name in names and isinstance(value, tf.RaggedTensor) else value
        for name, value in features.items()
    }


def _ragged(dtype: tf.DType) -> tf.io.RaggedFeature:
    return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)  # as `ragged_batch` has


def _infer_column_specs(dataset: Manifest, path: str, names: tuple[str, ...]) -> dict[str, Any]:
    kinds: dict[str, set[type]] = {name: set() for name in names}
    is_scalar = dict.fromkeys(names, True)  # whether every image has exactly one value
    for cells in _read_cells(dataset, path, "extra"):
        for name in names:
            value = cells.get(name)
            is_scalar[name] &= value is not None and not isinstance(value, list)
            if value is not None:
                kinds[name].add(_detect_kind(value))
    spec: dict[str, Any] = {}
    for name in names:
        dtype = _DTYPES[_require_one_kind(name, kinds[name])]
        spec[record.EXTRA_PREFIX + name] = tf.io.FixedLenFeature([], dtype) if is_scalar[name] else _ragged(dtype)
    return spec


def _detect_kind(value: Any) -> type:
    """Returns the type in which `record` stores a cell: the last in `EXTRA_TYPES` of the types of its values."""
    values = value if isinstance(value, list) else [value]
    return max((next(kind for kind in EXTRA_TYPES if isinstance(item, kind)) for item in values), key=EXTRA_TYPES.index)


def _require_one_kind(name: str, kinds: set[type]) -> type:
    if len(kinds) > 1:
        names = " and ".join(kind.__name__ for kind in sorted(kinds, key=EXTRA_TYPES.index))
        raise OptionError(
            f"columns: user column {name!r} has the types {names}, which --append allows; ingest all parts together"
        )
    return next(iter(kinds), int)  # all cells of the column are empty


def _read_cells(dataset: Manifest, path: str, column: str) -> Iterator[Mapping[str, Any]]:
    """Yields the parsed JSON cells of a column of the image table for images in shards, most duplicate cells once."""
    for rows in schemas.read_images(dataset.image_paths(path), [column, "shard"]):
        texts = rows.filter(pc.greater_equal(rows["shard"], 0))[column].unique().to_pylist()
        yield from (schemas.parse_cell(text) for text in texts if text)


def _check_target(dataset: Manifest, path: str, target: str) -> None:
    annotation, noun = {BOXES: ("objects", "boxes"), MASK: ("mask", "masks")}[target]
    if not any(cells[annotation] is not None for cells in _read_cells(dataset, path, "annotations")):
        raise OptionError(f"targets contains {target!r}, but the images of {path} have no {noun}")


KEY = "key"
LABEL = "label"
WEIGHT = "weight"
NO_LABEL = -1


# A record without a weight, as in a mixture with an unweighted dataset, has weight 1.
WEIGHT_SPEC = {record.WEIGHT: tf.io.FixedLenFeature([], tf.float32, default_value=1.0)}
_BASE_FEATURES = (record.ENCODED, record.HEIGHT, record.WIDTH, record.FILENAME)


def base_spec(dataset: Manifest) -> dict[str, Any]:
    """Returns the argument of `tf.io.parse_example` for the features that every dataset has."""
    spec: dict[str, Any] = record.feature_spec(_BASE_FEATURES)
    if dataset.label_kind == "single":
        spec |= record.feature_spec((record.LABEL,))
    elif dataset.label_kind == "multi":
        # Ragged, not sparse: sparse tensors would be serialised and parsed again between the stages.
        spec[record.LABEL] = tf.io.RaggedFeature(tf.int64)
    return spec | WEIGHT_SPEC if dataset.options["columns"]["weight"] else spec


def parse(
    serialized: tf.Tensor, seed_epochs: tf.Tensor, spec: Mapping[str, Any], dataset: Manifest, seed: int
) -> Features:
    """Parses a batch of records.

    Args:
      serialized: string[batch].
      seed_epochs: int64[batch], see `Order.compute_epoch`.
      spec: argument of `tf.io.parse_example`.
      dataset: manifest of the dataset.
      seed: seed of the input pipeline.

    Returns:
      `image` string[batch], as stored; `image/height` and `image/width` int64[batch]; `key` string[batch]; `draw`
      int32[batch, 2]; `label` int64[batch] or float32[batch, classes]; `weight` float32[batch] if `spec` has
      it; every other feature of `spec` under its own name.
    """
    parsed = join_targets(tf.io.parse_example(serialized, dict(spec)))
    parsed[IMAGE] = parsed.pop(record.ENCODED)
    parsed[KEY] = parsed.pop(record.FILENAME)
    parsed[IMAGE_SEED] = derive_image_seeds(parsed[KEY], seed_epochs, seed)
    parsed[LABEL] = _make_label(parsed, dataset)
    if record.WEIGHT in parsed:
        parsed[WEIGHT] = parsed.pop(record.WEIGHT)
    return parsed


def derive_image_seeds(key: tf.Tensor, seed_epochs: tf.Tensor, seed: int) -> tf.Tensor:
    """Returns the seeds of the random numbers of images: int32[batch, 2].

    The seeds depend on the key, not on the position: a record has the same seed in every order, batch and host.
    """
    hashed = (tf.strings.to_hash_bucket_fast(key, 1 << 32) + seed) % (1 << 32) - (1 << 31)
    return tf.cast(tf.stack([hashed, seed_epochs % (1 << 31)], axis=-1), tf.int32)


def _make_label(parsed: Features, dataset: Manifest) -> tf.Tensor:
    if dataset.label_kind == "single":
        return parsed.pop(record.LABEL)
    if dataset.label_kind == "none":
        return tf.fill(tf.shape(parsed[KEY]), tf.constant(NO_LABEL, tf.int64))
    one_hot = tf.one_hot(parsed.pop(record.LABEL).to_tensor(default_value=NO_LABEL), len(dataset.labels))
    one_hot = tf.pad(one_hot, [[0, 0], [0, 1], [0, 0]])  # zeros, so that an image without labels has a maximum
    return tf.ensure_shape(tf.reduce_max(one_hot, 1), [None, len(dataset.labels)])


@dataclass(frozen=True)
class DecodeRaw(ImageOp):
    """Reads stored pixels: string[...] -> uint8[..., height, width, 3]; one image or a batch."""

    height: int
    width: int

    def size(self, input_size: Size) -> Size:
        """Returns the stored size."""
        return self.height, self.width

    def __call__(self, features: Mapping[str, Any], uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        stored = features[IMAGE]
        shape = tf.concat([tf.shape(stored), [self.height, self.width, 3]], 0)
        pixels = tf.reshape(tf.io.decode_raw(stored, tf.uint8), shape)
        return {**features, IMAGE: tf.ensure_shape(pixels, [*stored.shape, self.height, self.width, 3])}


@dataclass(frozen=True)
class DecodeSized(Decode):
    """Decodes images that all have one size: string scalar -> uint8[height, width, 3]."""

    height: int
    width: int

    def size(self, input_size: Size) -> Size:
        """Returns the stored size, so that the ops after this one may run on batches."""
        return self.height, self.width

    def __call__(self, features: Mapping[str, Any], uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        decoded = super().__call__(features, uniforms)
        return {**decoded, IMAGE: tf.ensure_shape(decoded[IMAGE], [self.height, self.width, 3])}


def adapt_ops_to_records(ops: Sequence[Op], dataset: Manifest, size: tuple[int, int] | None = None) -> tuple[Op, ...]:
    """Returns the ops for the records of a dataset; each keeps its index in the chain, and so its random numbers.

    Records of the policy `raw` contain pixels, so `decode_random_crop` becomes a crop.

    Args:
      ops: a chain that begins with a decode.
      dataset: manifest of the dataset.
      size: height and width of all its images; None if the images differ in size.
    """
    pixel_options = dataset.options["pixels"]
    if pixel_options["policy"] == "raw":
        return adapt_ops_to_pixels(ops, pixel_options["side_px"])
    if size and isinstance(ops[0], Decode):
        return (DecodeSized(*size), *ops[1:])
    return tuple(ops)


def adapt_ops_to_pixels(ops: Sequence[Op], side: int) -> tuple[Op, ...]:
    """Returns the ops for stored images of side x side pixels."""
    return (DecodeRaw(side, side), *([ops[0].on_pixels()] if isinstance(ops[0], DecodeRandomCrop) else []), *ops[1:])
