"""RandAugment: random ops of one magnitude, after Cubuk et al. (2020), arXiv 1909.13719.

The ops and their ranges are those of torchvision's `RandAugment`, except that rotation and shear are about the centre
and bilinear. Each op is an affine map, a table of values, a blend with grey or a blend with the blurred image. So a
batch needs four kernels for any choice of ops; three of the kernels leave an image unchanged.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.ops import base, tf_ops
from trainer.ops.base import IMAGE, BatchOp, Features
from trainer.ops.geometry import moving_names, warp_features
from trainer.ops.resize import KEEP

MAX_MAGNITUDE = 30
KINDS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast",
    "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
_AUTOCONTRAST, _EQUALIZE = KINDS.index("autocontrast"), KINDS.index("equalize")
# For single images on the host: kind -> index of its kernel in `RandAugment._apply_one`.
_BRANCHES = {"identity": 0, "color": 3, "sharpness": 4, "autocontrast": 5, "equalize": 6}
_BRANCHES |= dict.fromkeys(("shear_x", "shear_y", "translate_x", "translate_y", "rotate"), 1)
_BRANCHES |= dict.fromkeys(("brightness", "contrast", "posterize", "solarize"), 2)


@dataclass(frozen=True)
class RandAugment(BatchOp):
    """Runs `count` random ops of `KINDS` at `magnitude`, of at most 30, with a random sign where an op has one."""

    count: int = 2
    magnitude: float = 9
    fill: int = 0
    keep: float = KEEP
    batch_px = 0  # on the host, always one image at a time

    @property
    def random_count(self) -> int:
        """Two numbers per op, for its kind and its sign."""
        return 2 * self.count

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        branches = tf.constant([_BRANCHES[kind] for kind in KINDS])
        for number in range(self.count):
            table_index = _draw_table_index(tf_ops, uniforms[None, 2 * number : 2 * number + 2])
            features = self._apply_one(features, branches[table_index[0] // 2], table_index)
        return dict(features)

    def batch(self, xp: Any, images: Any, uniforms: Any) -> Any:
        """See `BatchOp`; the result is whole numbers."""
        images = base.round_pixels(xp, xp.cast(images, "float32"))
        _, height, width, _ = xp.shape(images)
        for number in range(self.count):
            table_index = _draw_table_index(xp, uniforms[:, 2 * number : 2 * number + 2])
            maps = base.centre_maps(xp, self._take(xp, "maps", table_index), height, width)
            images = base.round_pixels(xp, base.warp(xp, images, maps, self.fill))
            images = _look_up(xp, images, self._select_table(xp, images, table_index))
            images = _adjust_colour(xp, images, self._take(xp, "colour", table_index))
            images = _sharpen(xp, images, self._take(xp, "sharpness", table_index))
        return images

    def _apply_one(self, features: Features, branch: tf.Tensor, table_index: tf.Tensor) -> dict[str, tf.Tensor]:
        names = moving_names(features)

        def make_branch(kernel: Any) -> Any:
            def apply() -> list[tf.Tensor]:
                image = features[IMAGE]
                result = tf.cast(kernel(tf.cast(image[None], tf.float32))[0], tf.uint8)
                return [tf.ensure_shape(result, image.shape) if name == IMAGE else features[name] for name in names]

            return apply

        def warp() -> list[tf.Tensor]:
            warped = warp_features(features, self._take(tf_ops, "maps", table_index), self.fill, self.keep)
            return [warped[name] for name in names]

        branches = [
            lambda: [features[name] for name in names],
            warp,
            make_branch(lambda image: _look_up(tf_ops, image, self._fixed_table(tf_ops, image, table_index))),
            make_branch(lambda image: _adjust_colour(tf_ops, image, self._take(tf_ops, "colour", table_index))),
            make_branch(lambda image: _sharpen(tf_ops, image, self._take(tf_ops, "sharpness", table_index))),
            make_branch(lambda image: _look_up(tf_ops, image, _autocontrast_table(tf_ops, image))),
            make_branch(lambda image: _look_up(tf_ops, image, _equalize_table(tf_ops, image))),
        ]
        return {**features, **dict(zip(names, tf.switch_case(branch, branches), strict=True))}

    def _select_table(self, xp: Any, images: Any, table_index: Any) -> Any:
        kind = (table_index // 2)[:, None, None]
        fixed = self._fixed_table(xp, images, table_index)
        values = xp.where(kind == _AUTOCONTRAST, _autocontrast_table(xp, images), fixed)
        return xp.where(kind == _EQUALIZE, _equalize_table(xp, images), values)

    def _fixed_table(self, xp: Any, images: Any, table_index: Any) -> Any:
        shift = self._take(xp, "to_mean", table_index) * xp.mean(base.to_grey(images), axis=(1, 2, 3))
        values = self._take(xp, "values", table_index) + shift[:, None]
        shape = (xp.shape(images)[0], 256, 3)
        return xp.broadcast_to(base.round_pixels(xp, values)[:, :, None], shape)

    def _take(self, xp: Any, name: str, table_index: Any) -> Any:
        return xp.take(xp.convert_to_tensor(_tables(self.magnitude)[name], dtype="float32"), table_index, axis=0)


def _draw_table_index(xp: Any, uniforms: Any) -> Any:
    """Returns the rows of `_tables`, int32[batch]: 2 * kind, plus 1 for a negative sign."""
    kind = base.pick(xp, uniforms[:, 0], len(KINDS))
    return kind * 2 + xp.cast(uniforms[:, 1] < 0.5, "int32")


@functools.cache
def _tables(magnitude: float) -> dict[str, np.ndarray]:
    """Returns the parameters of every kind, in row 2 * kind for a positive sign and 2 * kind + 1 for a negative one.

    `maps` [rows, 2, 3] (see `base.centre_maps`), `values` [rows, 256] for every value of a pixel, `to_mean` [rows],
    the fraction of the mean grey to add, `colour` and `sharpness` [rows], blend factors, 1 for unchanged.
    """
    level = magnitude / MAX_MAGNITUDE
    rows = 2 * len(KINDS)
    tables = {
        "maps": np.tile(np.eye(2, 3), (rows, 1, 1)),
        "values": np.tile(np.arange(256.0), (rows, 1)),
        "to_mean": np.zeros(rows),
        "colour": np.ones(rows),
        "sharpness": np.ones(rows),
    }
    value = np.arange(256)  # of a pixel
    for is_negative, sign in enumerate((1.0, -1.0)):
        row = {kind: 2 * number + is_negative for number, kind in enumerate(KINDS)}
        factor, angle = 1.0 + sign * 0.9 * level, sign * math.radians(30.0 * level)
        tables["maps"][row["shear_x"], 0, 1] = tables["maps"][row["shear_y"], 1, 0] = sign * 0.3 * level
        shift = sign * 150 / 331 * level
        tables["maps"][row["translate_x"], 0, 2] = tables["maps"][row["translate_y"], 1, 2] = shift
        rotation = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        tables["maps"][row["rotate"], :, :2] = rotation
        tables["values"][row["brightness"]] = tables["values"][row["contrast"]] = value * factor
        tables["to_mean"][row["contrast"]] = 1.0 - factor
        tables["values"][row["posterize"]] = value >> round(4 * level) << round(4 * level)
        tables["values"][row["solarize"]] = np.where(value >= 255.0 * (1.0 - level), 255 - value, value)
        tables["colour"][row["color"]] = tables["sharpness"][row["sharpness"]] = factor
    return tables


def _look_up(xp: Any, images: Any, values: Any) -> Any:
    """Returns values[batch, pixel, channel] for every pixel of integer values, as float32."""
    index = _flat_index(xp, images)
    return xp.take(xp.reshape(xp.stack([values[..., i] for i in range(3)], axis=1), (-1,)), index, axis=0)


def _flat_index(xp: Any, images: Any) -> Any:
    """Returns the index of each value in a flat [batch, 3, 256]: int32[batch, height, width, 3]."""
    batch = xp.shape(images)[0]
    start = xp.arange(batch, dtype="int32")[:, None, None, None] * 768
    return start + xp.arange(3, dtype="int32") * 256 + xp.cast(images, "int32")


def _autocontrast_table(xp: Any, images: Any) -> Any:
    """Returns the table that scales each channel to 0-255, float32[batch, 256, 3]."""
    low, high = xp.min(images, axis=(1, 2))[:, None], xp.max(images, axis=(1, 2))[:, None]
    value = xp.cast(xp.arange(256, dtype="int32"), "float32")[None, :, None]
    scaled = (value - low) * (255.0 / xp.maximum(high - low, 1.0))
    return base.round_pixels(xp, xp.where(high > low, scaled, value))


def _equalize_table(xp: Any, images: Any) -> Any:
    """Returns the table that equalises the histograms, as in Pillow's `equalize`, float32[batch, 256, 3]."""
    batch = xp.shape(images)[0]
    index = xp.reshape(_flat_index(xp, images), (-1,))
    counts = xp.reshape(xp.segment_sum(index * 0 + 1, index, num_segments=batch * 768), (batch, 3, 256))
    value = xp.arange(256, dtype="int32")
    largest = xp.max(xp.where(counts > 0, value, 0), axis=-1)[:, :, None]
    largest_count = xp.sum(xp.where(value == largest, counts, 0), axis=-1)[:, :, None]
    step = (xp.sum(counts, axis=-1)[:, :, None] - largest_count) // 255
    preceding = xp.cumsum(counts, axis=-1) - counts
    equalized = xp.minimum((step // 2 + preceding) // xp.maximum(step, 1), 255)
    table = xp.cast(xp.where(step > 0, equalized, value), "float32")
    return xp.stack([table[:, i] for i in range(3)], axis=-1)


def _adjust_colour(xp: Any, images: Any, factors: Any) -> Any:
    factors = factors[:, None, None, None]
    return base.round_pixels(xp, images * factors + base.to_grey(images) * (1.0 - factors))


def _sharpen(xp: Any, images: Any, factors: Any) -> Any:
    """Blends with the blurred image; the pixels at the edge do not change, as in Pillow's `SMOOTH`."""
    _, height, width, _ = xp.shape(images)
    inner = images[:, 1:-1, 1:-1]
    neighbours = [images[:, y : height - 2 + y, x : width - 2 + x] for y in range(3) for x in range(3)]
    blurred = (functools.reduce(operator.add, neighbours) + 4.0 * inner) / 13.0
    difference = (inner - blurred) * (factors[:, None, None, None] - 1.0)
    return base.round_pixels(xp, images + xp.pad(difference, ((0, 0), (1, 1), (1, 1), (0, 0))))
