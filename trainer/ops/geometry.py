"""Ops that move pixels, on the host together with boxes and masks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf

from beam_jobs.errors import OptionError
from trainer.ops import base, tf_ops
from trainer.ops.base import IMAGE, MASK, TARGETS, BatchOp, Features, IndexOp, Size, SquareOp
from trainer.ops.resize import KEEP, pick_corner


@dataclass(frozen=True)
class CenterCrop(SquareOp, IndexOp):
    """Crops the centre to side x side pixels; the image must be at least that large."""

    side: int
    keep: float = KEEP

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        corner = (tf.shape(features[IMAGE])[:2] - self.side) // 2
        return _crop(features, corner, self.side, self.keep)

    def index(self, xp: Any, rows: Any, columns: Any, uniforms: Any) -> tuple[Any, Any]:
        """See `IndexOp`."""
        height, width = _check_sides(rows, columns, self.side, f"center_crop({self.side})")
        top, left = (height - self.side) // 2, (width - self.side) // 2
        return rows[:, top : top + self.side], columns[:, left : left + self.side]


@dataclass(frozen=True)
class PadReflect(IndexOp):
    """Adds `margin` pixels on each side, mirrored at the edge; mirrored objects get no box."""

    margin: int

    def size(self, input_size: Size) -> Size:
        """Returns the size with the margins."""
        return None if input_size is None else (input_size[0] + 2 * self.margin, input_size[1] + 2 * self.margin)

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        image = features[IMAGE]
        sides = tf.shape(image)[:2]
        moved = base.cut_boxes(features, tf.fill([2], -self.margin), sides + 2 * self.margin, sides, keep=0.0)
        margins = [[self.margin, self.margin], [self.margin, self.margin], [0, 0]]
        for name in _list_pixel_names(features):
            moved[name] = tf.pad(features[name], margins, mode="REFLECT")
        return moved

    def index(self, xp: Any, rows: Any, columns: Any, uniforms: Any) -> tuple[Any, Any]:
        """See `IndexOp`."""
        _check_sides(rows, columns, self.margin + 1, f"pad_reflect({self.margin})")
        return self._pad_index(xp, rows), self._pad_index(xp, columns)

    def _pad_index(self, xp: Any, index: Any) -> Any:
        size = index.shape[1]
        source = base.reflect(xp, xp.arange(-self.margin, size + self.margin, dtype="int32"), size)
        return xp.take(index, source, axis=1)


@dataclass(frozen=True)
class RandomCrop(SquareOp, IndexOp):
    """Crops side x side pixels at a random position; the image must be at least that large."""

    side: int
    keep: float = KEEP
    random_count: ClassVar[int] = 2

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        corner = pick_corner(tf.shape(features[IMAGE])[:2] - self.side, uniforms)
        return _crop(features, corner, self.side, self.keep)

    def index(self, xp: Any, rows: Any, columns: Any, uniforms: Any) -> tuple[Any, Any]:
        """See `IndexOp`."""
        _check_sides(rows, columns, self.side, f"random_crop({self.side})")
        return self._crop_index(xp, rows, uniforms[:, 0:1]), self._crop_index(xp, columns, uniforms[:, 1:2])

    def _crop_index(self, xp: Any, index: Any, uniforms: Any) -> Any:
        batch, size = xp.shape(index)
        starts = base.pick(xp, uniforms, size - self.side + 1)
        source = starts + xp.arange(self.side, dtype="int32") + xp.arange(batch, dtype="int32")[:, None] * size
        return xp.take(xp.reshape(index, (-1,)), source, axis=0)


@dataclass(frozen=True)
class Flip(IndexOp):
    """Mirrors left and right with a probability."""

    probability: float = 0.5
    random_count: ClassVar[int] = 1
    moves_window = False
    axis: ClassVar[int] = 1

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        names = moving_names(features)

        def mirror() -> list[tf.Tensor]:
            values = base.mirror_boxes(features, self.axis)
            return [tf.reverse(values[name], [self.axis]) if name in _PIXEL_NAMES else values[name] for name in names]

        values = tf.cond(uniforms[0] < self.probability, mirror, lambda: [features[name] for name in names])
        return {**features, **dict(zip(names, values, strict=True))}

    def index(self, xp: Any, rows: Any, columns: Any, uniforms: Any) -> tuple[Any, Any]:
        """See `IndexOp`."""
        is_mirrored = uniforms < self.probability
        indices = [rows, columns]
        indices[self.axis] = xp.where(is_mirrored, xp.flip(indices[self.axis], axis=1), indices[self.axis])
        return indices[0], indices[1]

    def batch(self, xp: Any, images: Any, uniforms: Any) -> Any:
        """See `BatchOp`."""
        is_mirrored = (uniforms < self.probability)[:, :, None, None]
        return xp.where(is_mirrored, xp.flip(images, axis=self.axis + 1), images)


@dataclass(frozen=True)
class FlipVertical(Flip):
    """Mirrors top and bottom with a probability."""

    axis: ClassVar[int] = 0


@dataclass(frozen=True)
class Rotate(BatchOp):
    """Rotates about the centre by -max_degrees to max_degrees, bilinear, with `fill` outside the image.

    A mask takes the nearest pixel, and 0 outside. A box becomes the axis-aligned bounds of its rotated corners.
    """

    max_degrees: float
    fill: int = 0
    keep: float = KEEP
    random_count: ClassVar[int] = 1
    batch_px = 0  # the kernel for one image rounds differently, and a batch must give the same pixels

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        maps = base.rotation(tf_ops, self._radians(uniforms))
        return warp_features(features, maps, self.fill, self.keep)

    def batch(self, xp: Any, images: Any, uniforms: Any) -> Any:
        """See `BatchOp`."""
        _, height, width, _ = xp.shape(images)
        maps = base.rotation(xp, self._radians(uniforms[:, 0]))
        pixel_maps = base.centre_maps(xp, maps, height, width)
        return base.warp(xp, xp.cast(images, "float32"), pixel_maps, self.fill)

    def _radians(self, uniforms: Any) -> Any:
        return (uniforms * 2.0 - 1.0) * math.radians(self.max_degrees)


@dataclass(frozen=True)
class MultiCrop(SquareOp):
    """Makes `count` random crops of side x side from one image, each followed by its mirror image if `mirror`.

    Later ops run on each of these images with separate random numbers.
    """

    count: int
    side: int
    mirror: bool = True
    keep: float = KEEP

    @property
    def random_count(self) -> int:
        """Two numbers per crop."""
        return 2 * self.count

    @property
    def outputs(self) -> int:
        """Number of images that are made of one image."""
        return self.count * (2 if self.mirror else 1)

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        parts = self.parts(features, uniforms)
        return stack_features(parts) if len(parts) > 1 else parts[0]

    def parts(self, features: Features, uniforms: tf.Tensor) -> list[dict[str, tf.Tensor]]:
        """Returns the features of each crop."""
        crop, flip = RandomCrop(self.side, self.keep), Flip(probability=1.0)
        parts = []
        for number in range(self.count):
            part = crop(features, uniforms[2 * number : 2 * number + 2])
            parts += [part, flip(part, tf.zeros([1]))] if self.mirror else [part]
        return parts


_PIXEL_NAMES = (IMAGE, MASK)


def moving_names(features: Features) -> list[str]:
    """Returns the names of the features that a geometric op may change."""
    return [name for name in (IMAGE, *TARGETS) if name in features]


def warp_features(features: Features, maps: tf.Tensor, fill: int, keep: float) -> dict[str, tf.Tensor]:
    """Returns the features of one image after an affine map.

    Args:
      features: `image`, and optionally `mask`, `boxes` and `box_labels`.
      maps: float32[1, 2, 3], see `base.centre_maps`.
      fill: value outside the image, 0-255; a mask has 0 there.
      keep: fraction of a box that must remain visible.
    """
    sides = tf.shape(features[IMAGE])[:2]
    pixel_maps = base.centre_maps(tf_ops, maps, sides[0], sides[1])
    moved = base.warp_boxes(features, maps[0], sides, keep)
    moved[IMAGE] = _sample(features[IMAGE], pixel_maps, "BILINEAR", fill)
    if MASK in features:
        moved[MASK] = _sample(features[MASK], pixel_maps, "NEAREST", 0)
    return moved


def stack_features(parts: list[dict[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
    """Joins the features of the crops of one image: `image` and `mask` stacked, `boxes` and labels ragged."""
    features = dict(parts[0])
    for name in moving_names(features):
        stack = tf.stack if name in _PIXEL_NAMES else _stack_ragged
        features[name] = stack([part[name] for part in parts])
    return features


def _stack_ragged(rows: list[tf.Tensor]) -> tf.RaggedTensor:
    # `tf.ragged.stack` loses the static shape of boxes in a graph.
    lengths = tf.stack([tf.shape(row, tf.int64)[0] for row in rows])
    return tf.RaggedTensor.from_row_lengths(tf.concat(rows, 0), lengths)


def _sample(image: tf.Tensor, transform: tf.Tensor, interpolation: str, fill: int) -> tf.Tensor:
    # One kernel call instead of about thirty in `base.warp`. For integers the kernel truncates, so the image is float.
    sampled = tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.cast(image, tf.float32)[None],
        transforms=tf.concat([tf.reshape(transform, [1, 6]), tf.zeros([1, 2])], axis=1),
        output_shape=tf.shape(image)[:2],
        fill_value=float(fill),
        interpolation=interpolation,
        fill_mode="CONSTANT",
    )
    return tf.ensure_shape(tf_ops.to_uint8(sampled[0]), image.shape)


def _list_pixel_names(features: Features) -> list[str]:
    return [name for name in _PIXEL_NAMES if name in features]


def _crop(features: Features, corner: tf.Tensor, side: int, keep: float) -> dict[str, tf.Tensor]:
    moved = base.cut_boxes(features, corner, tf.fill([2], side), tf.shape(features[IMAGE])[:2], keep)
    for name in _list_pixel_names(features):
        channels = features[name].shape[-1]
        window = tf.slice(features[name], tf.concat([corner, [0]], 0), [side, side, channels])
        moved[name] = tf.ensure_shape(window, [side, side, channels])
    return moved


def _check_sides(rows: Any, columns: Any, minimum: int, op: str) -> tuple[int, int]:
    height, width = rows.shape[1], columns.shape[1]
    if min(height, width) < minimum:
        raise OptionError(f"{op} needs images of at least {minimum}x{minimum} pixels; these have {height}x{width}")
    return height, width
