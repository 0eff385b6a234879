"""RandAugment: some random ops of one strength, after Cubuk et al. (2020), arXiv 1909.13719.

The ops and their ranges are those of torchvision's `RandAugment`; it turns and shears about the centre, with bilinear
sampling. Each op is one of four simple things - a map of places, a table of values, a blend with grey, a blend with
the blurred image - so a batch in which every image draws another op is four kernels, and an image passes unchanged
through those it did not draw.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.ops import base, tf_ops
from trainer.ops.base import IMAGE, BatchOp, Features
from trainer.ops.geometry import moving, warped
from trainer.ops.resize import KEEP

STEPS = 30  # of magnitude
KINDS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast",
    "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
_AUTOCONTRAST, _EQUALIZE = KINDS.index("autocontrast"), KINDS.index("equalize")
# Of an image on the host only the kernel it drew runs: kind -> number of a branch in `RandAugment.__call__`.
_BRANCHES = {"identity": 0, "color": 3, "sharpness": 4, "autocontrast": 5, "equalize": 6}
_BRANCHES |= dict.fromkeys(("shear_x", "shear_y", "translate_x", "translate_y", "rotate"), 1)
_BRANCHES |= dict.fromkeys(("brightness", "contrast", "posterize", "solarize"), 2)


@dataclass(frozen=True)
class RandAugment(BatchOp):
    """Runs `count` ops drawn from `KINDS`, each at `magnitude` of 30, half of those that have a sign backwards."""

    count: int = 2
    magnitude: float = 9
    fill: int = 0
    keep: float = KEEP
    batch_px = 0

    @property
    def draws(self) -> int:
        """One number for the kind and one for the sign, for each op."""
        return 2 * self.count

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        branches = tf.constant([_BRANCHES[kind] for kind in KINDS])
        for number in range(self.count):
            row = _row(tf_ops, numbers[None, 2 * number : 2 * number + 2])
            features = self._one(features, branches[row[0] // 2], row)
        return dict(features)

    def batch(self, xp: Any, images: Any, numbers: Any) -> Any:
        """See `BatchOp`; the result is whole numbers."""
        images = base.whole(xp, xp.cast(images, "float32"))
        _, height, width, _ = xp.shape(images)
        for number in range(self.count):
            row = _row(xp, numbers[:, 2 * number : 2 * number + 2])
            maps = base.about_centre(xp, self._take(xp, "maps", row), height, width)
            images = base.whole(xp, base.warp(xp, images, maps, self.fill))
            images = _look_up(xp, images, self._drawn_values(xp, images, row))
            images = _coloured(xp, images, self._take(xp, "colour", row))
            images = _sharpened(xp, images, self._take(xp, "sharpness", row))
        return images

    def _one(self, features: Features, branch: tf.Tensor, row: tf.Tensor) -> dict[str, tf.Tensor]:
        names = moving(features)

        def pixels(change: Any) -> Any:
            def changed() -> list[tf.Tensor]:
                image = features[IMAGE]
                result = tf.cast(change(tf.cast(image[None], tf.float32))[0], tf.uint8)
                return [tf.ensure_shape(result, image.shape) if name == IMAGE else features[name] for name in names]

            return changed

        def moved() -> list[tf.Tensor]:
            found = warped(features, self._take(tf_ops, "maps", row), self.fill, self.keep)
            return [found[name] for name in names]

        branches = [
            lambda: [features[name] for name in names],
            moved,
            pixels(lambda image: _look_up(tf_ops, image, self._values(tf_ops, image, row))),
            pixels(lambda image: _coloured(tf_ops, image, self._take(tf_ops, "colour", row))),
            pixels(lambda image: _sharpened(tf_ops, image, self._take(tf_ops, "sharpness", row))),
            pixels(lambda image: _look_up(tf_ops, image, _stretched(tf_ops, image))),
            pixels(lambda image: _look_up(tf_ops, image, _equalized(tf_ops, image))),
        ]
        return {**features, **dict(zip(names, tf.switch_case(branch, branches), strict=True))}

    def _drawn_values(self, xp: Any, images: Any, row: Any) -> Any:
        kind = (row // 2)[:, None, None]
        values = xp.where(kind == _AUTOCONTRAST, _stretched(xp, images), self._values(xp, images, row))
        return xp.where(kind == _EQUALIZE, _equalized(xp, images), values)

    def _values(self, xp: Any, images: Any, row: Any) -> Any:
        pull = self._take(xp, "to_mean", row) * xp.mean(base.grey_of(images), axis=(1, 2, 3))
        values = self._take(xp, "values", row) + pull[:, None]
        shape = (xp.shape(images)[0], 256, 3)
        return xp.broadcast_to(base.whole(xp, values)[:, :, None], shape)

    def _take(self, xp: Any, name: str, row: Any) -> Any:
        return xp.take(xp.convert_to_tensor(_tables(self.magnitude)[name], dtype="float32"), row, axis=0)


def _row(xp: Any, numbers: Any) -> Any:
    """Returns int32[batch], rows of the tables: twice the kind, and one more where the sign is minus."""
    kind = base.pick(xp, numbers[:, 0], len(KINDS))
    return kind * 2 + xp.cast(numbers[:, 1] < 0.5, "int32")


@functools.cache
def _tables(magnitude: float) -> dict[str, np.ndarray]:
    """Returns the parameters of every kind, at rows twice the kind for plus and one more for minus.

    `maps` [rows, 2, 3] (see `base.about_centre`), `values` [rows, 256] for every value of a pixel, `to_mean`
    [rows], the share of the mean grey added to it, `colour` and `sharpness` [rows], 1 for unchanged.
    """
    level = magnitude / STEPS
    rows = 2 * len(KINDS)
    tables = {
        "maps": np.tile(np.eye(2, 3), (rows, 1, 1)),
        "values": np.tile(np.arange(256.0), (rows, 1)),
        "to_mean": np.zeros(rows),
        "colour": np.ones(rows),
        "sharpness": np.ones(rows),
    }
    value = np.arange(256)
    for minus, sign in enumerate((1.0, -1.0)):
        row = {kind: 2 * number + minus for number, kind in enumerate(KINDS)}
        factor, angle = 1.0 + sign * 0.9 * level, sign * math.radians(30.0 * level)
        tables["maps"][row["shear_x"], 0, 1] = tables["maps"][row["shear_y"], 1, 0] = sign * 0.3 * level
        shift = sign * 150 / 331 * level
        tables["maps"][row["translate_x"], 0, 2] = tables["maps"][row["translate_y"], 1, 2] = shift
        turn = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        tables["maps"][row["rotate"], :, :2] = turn
        tables["values"][row["brightness"]] = tables["values"][row["contrast"]] = value * factor
        tables["to_mean"][row["contrast"]] = 1.0 - factor
        tables["values"][row["posterize"]] = value >> round(4 * level) << round(4 * level)
        tables["values"][row["solarize"]] = np.where(value >= 255.0 * (1.0 - level), 255 - value, value)
        tables["colour"][row["color"]] = tables["sharpness"][row["sharpness"]] = factor
    return tables


def _look_up(xp: Any, images: Any, values: Any) -> Any:
    """Returns values[batch, pixel, channel] for every pixel of whole numbers, as float32."""
    index = _cells(xp, images)
    return xp.take(xp.reshape(xp.stack([values[..., i] for i in range(3)], axis=1), (-1,)), index, axis=0)


def _cells(xp: Any, images: Any) -> Any:
    """Returns int32[batch, height, width, 3]: the place of each value in a flat [batch, 3, 256]."""
    batch = xp.shape(images)[0]
    start = xp.arange(batch, dtype="int32")[:, None, None, None] * 768
    return start + xp.arange(3, dtype="int32") * 256 + xp.cast(images, "int32")


def _stretched(xp: Any, images: Any) -> Any:
    """Returns the table that spreads each channel over 0-255, float32[batch, 256, 3]."""
    low, high = xp.min(images, axis=(1, 2))[:, None], xp.max(images, axis=(1, 2))[:, None]
    value = xp.cast(xp.arange(256, dtype="int32"), "float32")[None, :, None]
    spread = (value - low) * (255.0 / xp.maximum(high - low, 1.0))
    return base.whole(xp, xp.where(high > low, spread, value))


def _equalized(xp: Any, images: Any) -> Any:
    """Returns the table that evens out the histograms, as Pillow's `equalize` does, float32[batch, 256, 3]."""
    batch = xp.shape(images)[0]
    cells = xp.reshape(_cells(xp, images), (-1,))
    counts = xp.reshape(xp.segment_sum(cells * 0 + 1, cells, num_segments=batch * 768), (batch, 3, 256))
    value = xp.arange(256, dtype="int32")
    largest = xp.max(xp.where(counts > 0, value, 0), axis=-1)[:, :, None]
    of_largest = xp.sum(xp.where(value == largest, counts, 0), axis=-1)[:, :, None]
    step = (xp.sum(counts, axis=-1)[:, :, None] - of_largest) // 255
    before = xp.cumsum(counts, axis=-1) - counts
    even = xp.minimum((step // 2 + before) // xp.maximum(step, 1), 255)
    table = xp.cast(xp.where(step > 0, even, value), "float32")
    return xp.stack([table[:, i] for i in range(3)], axis=-1)


def _coloured(xp: Any, images: Any, factors: Any) -> Any:
    factors = factors[:, None, None, None]
    return base.whole(xp, images * factors + base.grey_of(images) * (1.0 - factors))


def _sharpened(xp: Any, images: Any, factors: Any) -> Any:
    """Moves pixels away from the blurred image, or to it; the outermost stay, as with Pillow's `SMOOTH`."""
    _, height, width, _ = xp.shape(images)
    inner = images[:, 1:-1, 1:-1]
    near = [images[:, y : height - 2 + y, x : width - 2 + x] for y in range(3) for x in range(3)]
    blurred = (functools.reduce(lambda one, other: one + other, near) + 4.0 * inner) / 13.0
    difference = (inner - blurred) * (factors[:, None, None, None] - 1.0)
    return base.whole(xp, images + xp.pad(difference, ((0, 0), (1, 1), (1, 1), (0, 0))))
