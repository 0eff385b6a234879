"""What becomes of the boxes of an image that is cut or turned.

A box is moved with its pixels and cut off at the edge of the image. It stays, with its label, when at least the share
`keep` of its area is left, and more than nothing.
"""

from __future__ import annotations

import tensorflow as tf

from trainer.ops.types import BOX_LABELS, BOXES, Features


def cut(features: Features, begin: tf.Tensor, size: tf.Tensor, sides: tf.Tensor, keep: float) -> dict[str, tf.Tensor]:
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
    return keep_visible(features, moved, keep)


def mirror(features: Features, axis: int) -> dict[str, tf.Tensor]:
    """Returns the features with the boxes mirrored: axis 0 swaps top and bottom, 1 left and right."""
    if BOXES not in features:
        return dict(features)
    low, high = features[BOXES][:, :2], features[BOXES][:, 2:]
    turned = tf.constant([axis == 0, axis == 1])
    mirrored = tf.concat([tf.where(turned, 1.0 - high, low), tf.where(turned, 1.0 - low, high)], axis=1)
    return {**features, BOXES: mirrored}


def warp(features: Features, maps: tf.Tensor, sides: tf.Tensor, keep: float) -> dict[str, tf.Tensor]:
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
    return keep_visible(features, tf.concat([low[:, ::-1], high[:, ::-1]], axis=1), keep)


def keep_visible(features: Features, moved: tf.Tensor, keep: float) -> dict[str, tf.Tensor]:
    """Returns the features with moved boxes cut off at 0 and 1, less those of which too little is left.

    Args:
      features: with `boxes`, and perhaps `box_labels`.
      moved: float32[n, 4], reaching outside of 0 to 1.
      keep: share of a box that must be left.
    """
    cut_off = tf.clip_by_value(moved, 0.0, 1.0)
    left = _area(cut_off)
    kept = (left > 0) & (left >= keep * _area(moved))
    found = {**features, BOXES: tf.boolean_mask(cut_off, kept)}
    if BOX_LABELS in features:
        found[BOX_LABELS] = tf.boolean_mask(features[BOX_LABELS], kept)
    return found


def _area(boxes: tf.Tensor) -> tf.Tensor:
    sides = boxes[:, 2:] - boxes[:, :2]
    return sides[:, 0] * sides[:, 1]
