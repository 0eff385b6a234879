"""What image ops are made of: the kinds of op, pixel kernels, and what becomes of boxes.

An op that also works on whole batches says so by its class. Kernels take batches with any array library: `xp` is
`keras.ops` or `trainer.ops.tf_ops`. None loops over images and all keep static shapes, so they compile under XLA. Sides
are in pixels, images [batch, height, width, 3], 0-255.

A box is moved with its pixels and cut off at the edge of the image. It stays, with its label, when at least the share
`keep` of its area is left, and more than nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import tensorflow as tf

# Rounds when the fraction is cut off then. A little more than a half: exact halves are common, and where one compiler
# comes out just above and another just below, both must round up.
HALF = 0.5 + 2.0**-10
GREY = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow converts to `L`
# RGB to YIQ, the colour space of NTSC (FCC 1953): hue is an angle in its I-Q plane.
_YIQ = np.array([GREY, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)])


def pick(xp: Any, numbers: Any, choices: Any) -> Any:
    """Returns int32 in [0, choices), for float32 numbers in [0, 1) of the same shape."""
    return xp.cast(xp.floor(numbers * xp.cast(choices, "float32")), "int32")


def reflect(xp: Any, index: Any, size: int) -> Any:
    """Returns positions inside 0 to size - 1 for some outside, mirrored at the edge without repeating it."""
    return (size - 1) - xp.abs((size - 1) - xp.abs(index))


def gather_pixels(xp: Any, images: Any, rows: Any, columns: Any) -> Any:
    """Returns image[rows, columns] of each image, for rows int32[batch, h] and columns int32[batch, w]."""
    batch, height, width, channels = xp.shape(images)
    start = xp.arange(batch, dtype="int32") * (height * width)
    index = start[:, None, None] + rows[:, :, None] * width + columns[:, None, :]
    return xp.take(xp.reshape(images, (-1, channels)), index, axis=0)


def paint_square(xp: Any, images: Any, side: int, value: int, numbers: Any) -> Any:
    """Returns images with a square of one value over a random place; what sticks out of the image is cut off.

    Args:
      xp: the array library.
      images: [..., height, width, 3].
      side: of the square.
      value: 0-255.
      numbers: float32[..., 2], where the centre is.

    Returns:
      the same type and shape as `images`.
    """
    *batch, height, width, channels = xp.shape(images)
    # Rows of single values: a mask that has to be spread over the channels takes four times as long on the host.
    places = (xp.arange(height, dtype="int32"), xp.arange(width * channels, dtype="int32") // channels)
    inside = []
    for axis, (size, place) in enumerate(zip((height, width), places, strict=True)):
        first = pick(xp, numbers[..., axis : axis + 1], size) - side // 2
        inside.append((place >= first) & (place < first + side))
    covered = inside[0][..., :, None] & inside[1][..., None, :]
    lines = xp.reshape(images, (*batch, height, width * channels))
    painted = xp.where(covered, xp.convert_to_tensor(value, dtype=images.dtype), lines)
    return xp.reshape(painted, (*batch, height, width, channels))


def rotation(xp: Any, radians: Any) -> Any:
    """Returns float32[batch, 2, 3], the maps of `warp` that turn by angles float32[batch]; no shift."""
    cos, sin, none = xp.cos(radians), xp.sin(radians), radians * 0.0
    return xp.stack([xp.stack([cos, -sin, none], axis=-1), xp.stack([sin, cos, none], axis=-1)], axis=-2)


def about_centre(xp: Any, maps: Any, height: Any, width: Any) -> Any:
    """Returns maps in pixels of maps whose origin is the centre and whose shift is a share of the side.

    Args:
      xp: the array library.
      maps: float32[batch, 2, 3]: rows for x and y, columns for x, y and the shift.
      height: of the image.
      width: of the image.
    """
    sides = xp.stack([xp.cast(width, "float32"), xp.cast(height, "float32")])
    centre = (sides - 1.0) / 2.0
    turn, shift = maps[..., :2], maps[..., 2]
    # Multiply and add, no matrix product: accelerators may round the factors of those to fewer bits.
    offset = centre + shift * sides - (turn[..., 0] * centre[0] + turn[..., 1] * centre[1])
    return xp.concatenate([turn, offset[..., None]], axis=-1)


def warp(xp: Any, images: Any, maps: Any, fill: int) -> Any:
    """Samples images along affine maps, bilinear; outside of the image everything is `fill`.

    Args:
      xp: the array library.
      images: float32[batch, height, width, 3].
      maps: float32[batch, 2, 3]: where in the source a pixel (x, y, 1) comes from, in pixels.
      fill: 0-255.

    Returns:
      float32[batch, height, width, 3].
    """
    batch, height, width, channels = xp.shape(images)
    across = xp.cast(xp.arange(width, dtype="int32"), "float32")[None, None, :]
    down = xp.cast(xp.arange(height, dtype="int32"), "float32")[None, :, None]
    maps = maps[:, :, :, None, None]
    x = maps[:, 0, 0] * across + maps[:, 0, 1] * down + maps[:, 0, 2]
    y = maps[:, 1, 0] * across + maps[:, 1, 1] * down + maps[:, 1, 2]
    left, top = xp.floor(x), xp.floor(y)
    start = xp.arange(batch, dtype="int32")[:, None, None] * (height * width)
    pixels = xp.reshape(images - float(fill), (-1, channels))
    total: Any = float(fill)
    for row, vertical in ((top, 1.0 - (y - top)), (top + 1.0, y - top)):
        for column, horizontal in ((left, 1.0 - (x - left)), (left + 1.0, x - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            index = xp.cast(xp.where(inside, row, 0.0), "int32") * width
            index = start + index + xp.cast(xp.where(inside, column, 0.0), "int32")
            weight = xp.where(inside, vertical * horizontal, 0.0)
            total = total + xp.take(pixels, index, axis=0) * weight[..., None]
    return total


def grey_of(images: Any) -> Any:
    """Returns float32[..., 1] of pixels float32[..., 3]."""
    return images[..., 0:1] * GREY[0] + images[..., 1:2] * GREY[1] + images[..., 2:3] * GREY[2]


def hue_matrix(xp: Any, radians: Any) -> Any:
    """Returns float32[batch, 3, 3] that turn the hue by angles float32[batch]; greys stay what they are."""
    back = np.linalg.inv(_YIQ)
    keep = back @ np.diag([1.0, 0.0, 0.0]) @ _YIQ
    along = back @ np.diag([0.0, 1.0, 1.0]) @ _YIQ
    crosswise = back @ np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]]) @ _YIQ
    keep, along, crosswise = (xp.convert_to_tensor(part, dtype="float32") for part in (keep, along, crosswise))
    return keep + xp.cos(radians)[:, None, None] * along + xp.sin(radians)[:, None, None] * crosswise


def mix_channels(images: Any, matrices: Any, offsets: Any) -> Any:
    """Returns matrix x pixel + offset, for matrices float32[batch, 3, 3] and offsets float32[batch]."""
    columns = [images[..., i : i + 1] * matrices[:, None, None, :, i] for i in range(3)]
    return columns[0] + columns[1] + columns[2] + offsets[:, None, None, None]


def whole(xp: Any, images: Any) -> Any:
    """Returns float32 images rounded and clipped to 0-255."""
    return xp.clip(xp.floor(images + HALF), 0.0, 255.0)


IMAGE = "image"
MASK = "mask"
BOXES = "boxes"
BOX_LABELS = "box_labels"
TARGETS = (MASK, BOXES, BOX_LABELS)

Features: TypeAlias = Mapping[str, tf.Tensor]
Size: TypeAlias = "tuple[int, int] | None"  # height and width in pixels, None where images differ


class Op(Protocol):
    """One step of preprocessing."""

    @property
    def draws(self) -> int:
        """How many random numbers the op takes for an image."""

    @property
    def random(self) -> bool:
        """Whether it takes any."""

    def size(self, before: Size) -> Size:
        """Returns height and width after the op, as far as they are the same for all images."""

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the features with `image` changed, and what moves with it.

        Args:
          features: of one image: `image`, and perhaps `boxes` float32[n, 4] (ymin, xmin, ymax, xmax, shares of the
            image) with `box_labels` int64[n], and `mask` uint8[height, width, 1]. Others pass through.
          numbers: float32[draws] in [0, 1).
        """


class ImageOp:
    """Base of the ops: no chance, and the size stays."""

    draws: ClassVar[Any] = 0  # a property in an op whose arguments decide it

    @property
    def random(self) -> bool:
        """Whether the op takes random numbers."""
        return bool(self.draws > 0)

    def size(self, before: Size) -> Size:
        """Returns height and width after the op."""
        return before


class BatchOp(ImageOp, ABC):
    """An op that also works on a batch of images of one size, with any array library."""

    # The most pixels an image may have for a batch on the host to be faster than one image at a time.
    batch_px: ClassVar[int] = 96 * 96

    @abstractmethod
    def batch(self, xp: Any, images: Any, numbers: Any) -> Any:
        """Returns the changed images.

        Args:
          xp: `keras.ops` or `trainer.ops.tf_ops`.
          images: [batch, height, width, 3], 0-255, uint8 or float32.
          numbers: float32[batch, draws].

        Returns:
          [batch, height, width, 3], 0-255: the type of `images`, or float32 that still has to be rounded.
        """


class IndexOp(BatchOp):
    """An op that moves whole rows and columns of pixels. Neighbours in a chain become one gather."""

    moves_window: ClassVar[bool] = True

    @abstractmethod
    def index(self, xp: Any, rows: Any, columns: Any, numbers: Any) -> tuple[Any, Any]:
        """Returns which source row each row after the op shows, int32[batch, height], and which column."""

    def batch(self, xp: Any, images: Any, numbers: Any) -> Any:
        """See `BatchOp`."""
        return moved(xp, [(self, numbers)], images)


class MixingOp(BatchOp):
    """An op that mixes each image of a batch with another one, and their labels alike."""

    batch_px = 1 << 62

    @abstractmethod
    def batch(self, xp: Any, images: Any, numbers: Any, lanes: int = 1) -> Any:
        """See `BatchOp`; with `lanes`, an image is mixed with one that is a multiple of so many places away."""

    @abstractmethod
    def labels(self, xp: Any, labels: Any, numbers: Any, lanes: int = 1) -> Any:
        """Returns the mixed labels, float32[batch, classes]."""


def moved(xp: Any, steps: Sequence[tuple[IndexOp, Any]], images: Any) -> Any:
    """Runs neighbours that only move rows and columns: each pixel is copied once, whatever their number."""
    batch, height, width, _ = xp.shape(images)
    rows = xp.broadcast_to(xp.arange(height, dtype="int32")[None], (batch, height))
    columns = xp.broadcast_to(xp.arange(width, dtype="int32")[None], (batch, width))
    for op, drawn in steps:
        rows, columns = op.index(xp, rows, columns, drawn)
    return gather_pixels(xp, images, rows, columns)


def cut_boxes(
    features: Features, begin: tf.Tensor, size: tf.Tensor, sides: tf.Tensor, keep: float
) -> dict[str, tf.Tensor]:
    """Returns the features with the boxes as shares of a window.

    Args:
      features: with or without `boxes`.
      begin: int32[2], top and left of the window.
      size: int32[2], its height and width.
      sides: int32[2], height and width of the image before.
      keep: share of a box that must be left.
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
    turned = tf.constant([axis == 0, axis == 1])
    mirrored = tf.concat([tf.where(turned, 1.0 - high, low), tf.where(turned, 1.0 - low, high)], axis=1)
    return {**features, BOXES: mirrored}


def warp_boxes(features: Features, maps: tf.Tensor, sides: tf.Tensor, keep: float) -> dict[str, tf.Tensor]:
    """Returns the features with the upright boxes around the boxes moved by an affine map.

    Args:
      features: with or without `boxes`.
      maps: float32[2, 3], where the pixels come from: x and y from the centre, the shift in shares of the side.
      sides: int32[2], height and width of the image.
      keep: share of the upright box that must be left.
    """
    if BOXES not in features:
        return dict(features)
    across = tf.cast(sides[::-1], tf.float32)
    ends = tf.gather(features[BOXES], [[1, 0], [1, 2], [3, 0], [3, 2]], axis=1)  # x and y of four corners
    corners = (ends - 0.5 - maps[:, 2]) * across
    # Boxes go where the pixels go, which is the way back of where they come from.
    moved = tf.linalg.matmul(corners, tf.linalg.inv(maps[:, :2]), transpose_b=True) / across + 0.5
    low, high = tf.reduce_min(moved, axis=1), tf.reduce_max(moved, axis=1)
    return keep_visible_boxes(features, tf.concat([low[:, ::-1], high[:, ::-1]], axis=1), keep)


def keep_visible_boxes(features: Features, moved: tf.Tensor, keep: float) -> dict[str, tf.Tensor]:
    """Returns the features with moved boxes cut off at 0 and 1, less those of which too little is left.

    Args:
      features: with `boxes`, and perhaps `box_labels`.
      moved: float32[n, 4], reaching outside of 0 to 1.
      keep: share of a box that must be left.
    """
    cut_off = tf.clip_by_value(moved, 0.0, 1.0)
    left = _box_area(cut_off)
    kept = (left > 0) & (left >= keep * _box_area(moved))
    found = {**features, BOXES: tf.boolean_mask(cut_off, kept)}
    if BOX_LABELS in features:
        found[BOX_LABELS] = tf.boolean_mask(features[BOX_LABELS], kept)
    return found


def _box_area(boxes: tf.Tensor) -> tf.Tensor:
    sides = boxes[:, 2:] - boxes[:, :2]
    return sides[:, 0] * sides[:, 1]
