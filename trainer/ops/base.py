"""Base classes of image ops, pixel kernels, and functions on boxes.

Subclasses of `BatchOp` also work on batches. Kernels take batches of any array library: `xp` is `keras.ops` or
`trainer.ops.tf_ops`. They do not loop over images and keep static shapes, so they compile under XLA. Sides are in
pixels, images are [batch, height, width, 3], 0-255.

A box moves with its pixels and is clipped at the edge of the image. It is removed, with its label, if no area of it
remains, or less than the fraction `keep`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from beam_jobs.errors import OptionError

# Added before truncation to round. It is slightly more than a half because exact halves are common, and results of
# two compilers just above and just below a half must both round up.
HALF = 0.5 + 2.0**-10
GREY = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow converts to `L`
# RGB to YIQ, the colour space of NTSC (FCC 1953): hue is an angle in its I-Q plane.
_YIQ = np.array([GREY, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)])


def pick(xp: Any, uniforms: Any, choices: Any) -> Any:
    """Returns int32 in [0, choices), for float32 uniforms in [0, 1) of the same shape."""
    return xp.cast(xp.floor(uniforms * xp.cast(choices, "float32")), "int32")


def reflect(xp: Any, index: Any, size: int) -> Any:
    """Returns indices from 0 to size - 1 for indices outside, mirrored at the edge without repeating it."""
    return (size - 1) - xp.abs((size - 1) - xp.abs(index))


def gather_pixels(xp: Any, images: Any, rows: Any, columns: Any) -> Any:
    """Returns image[rows, columns] of each image, for rows int32[batch, h] and columns int32[batch, w]."""
    batch, height, width, channels = xp.shape(images)
    start = xp.arange(batch, dtype="int32") * (height * width)
    index = start[:, None, None] + rows[:, :, None] * width + columns[:, None, :]
    return xp.take(xp.reshape(images, (-1, channels)), index, axis=0)


def paint_square(xp: Any, images: Any, side: int, value: int, uniforms: Any) -> Any:
    """Returns images with a square of one value at a random position, clipped at the edge.

    Args:
      xp: the array library.
      images: [..., height, width, 3].
      side: side of the square in pixels.
      value: value of all its channels, 0-255.
      uniforms: float32[..., 2] in [0, 1), which choose row and column of the centre.

    Returns:
      images of the same type and shape.
    """
    *batch, height, width, channels = xp.shape(images)
    # A row of the mask has width x channels values: broadcasting over channels takes four times as long on the host.
    indices = (xp.arange(height, dtype="int32"), xp.arange(width * channels, dtype="int32") // channels)
    is_inside = []
    for axis, (size, index) in enumerate(zip((height, width), indices, strict=True)):
        start = pick(xp, uniforms[..., axis : axis + 1], size) - side // 2
        is_inside.append((index >= start) & (index < start + side))
    is_covered = is_inside[0][..., :, None] & is_inside[1][..., None, :]
    lines = xp.reshape(images, (*batch, height, width * channels))
    painted = xp.where(is_covered, xp.convert_to_tensor(value, dtype=images.dtype), lines)
    return xp.reshape(painted, (*batch, height, width, channels))


def rotation(xp: Any, radians: Any) -> Any:
    """Returns maps of `warp`, float32[batch, 2, 3], that rotate by angles float32[batch] about the origin."""
    cos, sin, zero = xp.cos(radians), xp.sin(radians), radians * 0.0
    return xp.stack([xp.stack([cos, -sin, zero], axis=-1), xp.stack([sin, cos, zero], axis=-1)], axis=-2)


def centre_maps(xp: Any, maps: Any, height: Any, width: Any) -> Any:
    """Converts maps with the origin at the centre and the shift as a fraction of the side to maps in pixels.

    Args:
      xp: the array library.
      maps: float32[batch, 2, 3]: rows for x and y, columns for x, y and the shift.
      height: height of the image in pixels.
      width: width of the image in pixels.
    """
    sides = xp.stack([xp.cast(width, "float32"), xp.cast(height, "float32")])
    centre = (sides - 1.0) / 2.0
    linear, shift = maps[..., :2], maps[..., 2]
    # No matrix product, because accelerators may round its factors to fewer bits.
    offset = centre + shift * sides - (linear[..., 0] * centre[0] + linear[..., 1] * centre[1])
    return xp.concatenate([linear, offset[..., None]], axis=-1)


def warp(xp: Any, images: Any, maps: Any, fill: int) -> Any:
    """Transforms images by affine maps, with bilinear sampling and `fill` outside the image.

    Args:
      xp: the array library.
      images: float32[batch, height, width, 3].
      maps: float32[batch, 2, 3]: from a target pixel (x, y, 1) to its position in the source, in pixels.
      fill: value outside the image, 0-255.

    Returns:
      float32[batch, height, width, 3].
    """
    batch, height, width, channels = xp.shape(images)
    columns = xp.cast(xp.arange(width, dtype="int32"), "float32")[None, None, :]
    rows = xp.cast(xp.arange(height, dtype="int32"), "float32")[None, :, None]
    maps = maps[:, :, :, None, None]
    x = maps[:, 0, 0] * columns + maps[:, 0, 1] * rows + maps[:, 0, 2]
    y = maps[:, 1, 0] * columns + maps[:, 1, 1] * rows + maps[:, 1, 2]
    left, top = xp.floor(x), xp.floor(y)
    start = xp.arange(batch, dtype="int32")[:, None, None] * (height * width)
    pixels = xp.reshape(images - float(fill), (-1, channels))
    total: Any = float(fill)
    for row, row_weight in ((top, 1.0 - (y - top)), (top + 1.0, y - top)):
        for column, column_weight in ((left, 1.0 - (x - left)), (left + 1.0, x - left)):
            is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            index = xp.cast(xp.where(is_inside, row, 0.0), "int32") * width
            index = start + index + xp.cast(xp.where(is_inside, column, 0.0), "int32")
            weight = xp.where(is_inside, row_weight * column_weight, 0.0)
            total = total + xp.take(pixels, index, axis=0) * weight[..., None]
    return total


def to_grey(images: Any) -> Any:
    """Returns the luma float32[..., 1] of pixels float32[..., 3]."""
    return images[..., 0:1] * GREY[0] + images[..., 1:2] * GREY[1] + images[..., 2:3] * GREY[2]


def hue_matrix(xp: Any, radians: Any) -> Any:
    """Returns matrices float32[batch, 3, 3] that rotate the hue by angles float32[batch] and leave greys unchanged."""
    inverse = np.linalg.inv(_YIQ)
    luma = inverse @ np.diag([1.0, 0.0, 0.0]) @ _YIQ
    cosine = inverse @ np.diag([0.0, 1.0, 1.0]) @ _YIQ
    sine = inverse @ np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]]) @ _YIQ
    luma, cosine, sine = (xp.convert_to_tensor(part, dtype="float32") for part in (luma, cosine, sine))
    return luma + xp.cos(radians)[:, None, None] * cosine + xp.sin(radians)[:, None, None] * sine


def mix_channels(images: Any, matrices: Any, offsets: Any) -> Any:
    """Returns matrix x pixel + offset, for matrices float32[batch, 3, 3] and offsets float32[batch]."""
    columns = [images[..., i : i + 1] * matrices[:, None, None, :, i] for i in range(3)]
    return columns[0] + columns[1] + columns[2] + offsets[:, None, None, None]


def round_pixels(xp: Any, images: Any) -> Any:
    """Returns float32 images rounded and clipped to 0-255."""
    return xp.clip(xp.floor(images + HALF), 0.0, 255.0)


IMAGE = "image"
IMAGE_SEED = "draw"  # the seed of every random number of the image
MASK = "mask"
BOXES = "boxes"
BOX_LABELS = "box_labels"
TARGETS = (MASK, BOXES, BOX_LABELS)

Features: TypeAlias = Mapping[str, tf.Tensor]
Size: TypeAlias = "tuple[int, int] | None"  # height and width in pixels, None if images differ in size


class Op(Protocol):
    """One step of preprocessing."""

    @property
    def random_count(self) -> int:
        """Number of random numbers that the op takes per image."""

    @property
    def random(self) -> bool:
        """Whether the op takes random numbers."""

    def size(self, input_size: Size) -> Size:
        """Returns height and width after the op for images of size `input_size`; None if the results differ in size."""

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the features with a new `image` and, for ops that move pixels, new targets.

        Args:
          features: features of one image: `image`, and optionally `boxes` float32[n, 4] (ymin, xmin, ymax, xmax,
            fractions of the image) with `box_labels` int64[n], `mask` uint8[height, width, 1]. Others do not change.
          uniforms: float32[random_count], random numbers in [0, 1).
        """


class ImageOp:
    """Base class of the ops; by default an op is not random and does not change the size."""

    random_count: ClassVar[Any] = 0  # a property in ops whose arguments determine it

    @property
    def random(self) -> bool:
        """Whether the op takes random numbers."""
        return bool(self.random_count > 0)

    def size(self, input_size: Size) -> Size:
        """Returns height and width after the op."""
        return input_size


class SquareOp(ImageOp):
    """An op whose result is `side` x `side` pixels."""

    side: int

    def size(self, input_size: Size) -> Size:
        """Returns side x side."""
        return self.side, self.side


class BatchOp(ImageOp, ABC):
    """An op that also works on a batch of images of one size, with any array library."""

    # Up to this number of pixels per image, batches are faster on the host than single images.
    batch_px: ClassVar[int] = 96 * 96

    @abstractmethod
    def batch(self, xp: Any, images: Any, uniforms: Any) -> Any:
        """Returns the transformed images.

        Args:
          xp: `keras.ops` or `trainer.ops.tf_ops`.
          images: [batch, height, width, 3], 0-255, uint8 or float32.
          uniforms: float32[batch, random_count].

        Returns:
          [batch, height, width, 3], 0-255: the type of `images`, or float32 that is not yet rounded.
        """


class IndexOp(BatchOp):
    """An op that moves complete rows and columns; consecutive index ops, except flips alone, become one gather."""

    moves_window: ClassVar[bool] = True  # whether the op changes the visible part of the image; a flip does not

    @abstractmethod
    def index(self, xp: Any, rows: Any, columns: Any, uniforms: Any) -> tuple[Any, Any]:
        """Returns the source row of each new row, int32[batch, height], and the source column of each new column."""

    def batch(self, xp: Any, images: Any, uniforms: Any) -> Any:
        """See `BatchOp`."""
        return run_index_ops(xp, [(self, uniforms)], images)


class MixingOp(BatchOp):
    """An op that mixes each image of a batch with another one, and their labels in the same ratio."""

    batch_px = 1 << 62  # no limit

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """Raises `OptionError`, because one image cannot be mixed."""
        name = type(self).__name__.lower()
        raise OptionError(f"{name} mixes the images of a batch and cannot run on one image; use it in device_ops")

    @abstractmethod
    def batch(self, xp: Any, images: Any, uniforms: Any, stride: int = 1) -> Any:
        """See `BatchOp`; the distance in the batch between two mixed images is a multiple of `stride`.

        With the number of lanes of a host as the stride, any number of hosts mixes the same images.
        """

    @abstractmethod
    def labels(self, xp: Any, labels: Any, uniforms: Any, stride: int = 1) -> Any:
        """Returns the mixed labels, float32[batch, classes]."""


def run_index_ops(xp: Any, steps: Sequence[tuple[IndexOp, Any]], images: Any) -> Any:
    """Runs consecutive ops that only move rows and columns with one copy of each pixel."""
    batch, height, width, _ = xp.shape(images)
    rows = xp.broadcast_to(xp.arange(height, dtype="int32")[None], (batch, height))
    columns = xp.broadcast_to(xp.arange(width, dtype="int32")[None], (batch, width))
    for op, uniforms in steps:
        rows, columns = op.index(xp, rows, columns, uniforms)
    return gather_pixels(xp, images, rows, columns)


def cut_boxes(
    features: Features, begin: tf.Tensor, size: tf.Tensor, sides: tf.Tensor, keep: float
) -> dict[str, tf.Tensor]:
    """Returns the features with the boxes as fractions of a window.

    Args:
      features: features of one image.
      begin: int32[2], top and left of the window.
      size: int32[2], height and width of the window.
      sides: int32[2], height and width of the original image.
      keep: fraction of a box that must remain visible.
    """
    if BOXES not in features:
        return dict(features)
    begin, size, sides = (tf.cast(value, tf.float32) for value in (begin, size, sides))
    moved = (features[BOXES] * tf.tile(sides, [2]) - tf.tile(begin, [2])) / tf.tile(size, [2])
    return keep_visible_boxes(features, moved, keep)


def mirror_boxes(features: Features, axis: int) -> dict[str, tf.Tensor]:
    """Returns the features with the boxes mirrored: axis 0 swaps top and bottom, 1 left and right."""
    if BOXES not in features:
        return dict(features)
    low, high = features[BOXES][:, :2], features[BOXES][:, 2:]
    is_mirrored = tf.constant([axis == 0, axis == 1])
    mirrored = tf.concat([tf.where(is_mirrored, 1.0 - high, low), tf.where(is_mirrored, 1.0 - low, high)], axis=1)
    return {**features, BOXES: mirrored}


def warp_boxes(features: Features, maps: tf.Tensor, sides: tf.Tensor, keep: float) -> dict[str, tf.Tensor]:
    """Returns the features with the axis-aligned bounds of the boxes after an affine map.

    Args:
      features: features of one image.
      maps: float32[2, 3], from target to source: x and y from the centre, the shift as a fraction of the side.
      sides: int32[2], height and width of the image.
      keep: fraction of the new box that must remain visible.
    """
    if BOXES not in features:
        return dict(features)
    width_height = tf.cast(sides[::-1], tf.float32)
    box_corners = tf.gather(features[BOXES], [[1, 0], [1, 2], [3, 0], [3, 2]], axis=1)  # x and y of four corners
    corners = (box_corners - 0.5 - maps[:, 2]) * width_height
    # The maps convert positions in the target to the source, so boxes need the inverse.
    moved = tf.linalg.matmul(corners, tf.linalg.inv(maps[:, :2]), transpose_b=True) / width_height + 0.5
    low, high = tf.reduce_min(moved, axis=1), tf.reduce_max(moved, axis=1)
    return keep_visible_boxes(features, tf.concat([low[:, ::-1], high[:, ::-1]], axis=1), keep)


def keep_visible_boxes(features: Features, moved: tf.Tensor, keep: float) -> dict[str, tf.Tensor]:
    """Returns the features with moved boxes clipped to 0-1, without boxes whose visible part is too small.

    Args:
      features: features of one image, with `boxes`.
      moved: float32[n, 4], the moved boxes, which may exceed 0-1.
      keep: fraction of a box that must remain visible.
    """
    clipped = tf.clip_by_value(moved, 0.0, 1.0)
    area = _box_area(clipped)
    is_visible = (area > 0) & (area >= keep * _box_area(moved))
    result = {**features, BOXES: tf.boolean_mask(clipped, is_visible)}
    if BOX_LABELS in features:
        result[BOX_LABELS] = tf.boolean_mask(features[BOX_LABELS], is_visible)
    return result


def _box_area(boxes: tf.Tensor) -> tf.Tensor:
    sides = boxes[:, 2:] - boxes[:, :2]
    return sides[:, 0] * sides[:, 1]
