"""Ops that mix each image of a batch with another image of the batch, and their labels in the same ratio."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trainer.ops.base import MixingOp, pick

_TABLE_INTERVALS = 512  # number of intervals; linear interpolation between their ends is correct to 1e-3


@dataclass(frozen=True)
class Mixup(MixingOp):
    """Averages each image with another one of the batch, after Zhang et al. (2018), arXiv 1710.09412.

    The weight of the image itself is drawn from Beta(alpha, alpha) for each image. The distance to the partner is the
    same for all images whose positions in the batch have the same remainder by `stride`, see `MixingOp.batch`, and
    is drawn with the random numbers of the first of these images.
    """

    alpha: float
    probability: float = 1.0
    random_count: ClassVar[int] = 3

    def batch(self, xp: Any, images: Any, uniforms: Any, stride: int = 1) -> Any:
        """See `MixingOp`; the result is float32."""
        images = xp.cast(images, "float32")
        ratio = self._draw_ratio(xp, uniforms)[:, None, None, None]
        return images * ratio + take_partner(xp, images, uniforms, stride) * (1.0 - ratio)

    def labels(self, xp: Any, labels: Any, uniforms: Any, stride: int = 1) -> Any:
        """See `MixingOp`."""
        ratio = self._draw_ratio(xp, uniforms)[:, None]
        return labels * ratio + take_partner(xp, labels, uniforms, stride) * (1.0 - ratio)

    def _draw_ratio(self, xp: Any, uniforms: Any) -> Any:
        ratio = beta(xp, self.alpha, uniforms[:, 0])
        return xp.where(uniforms[:, 1] < self.probability, ratio, 1.0)


@dataclass(frozen=True)
class Cutmix(MixingOp):
    """Pastes a rectangle of another image of the batch over each image, after Yun et al. (2019), arXiv 1905.04899.

    The rectangle has the aspect ratio of the image and a random centre. Before it is clipped at the edge, its area is
    1 - lambda, with lambda drawn from Beta(alpha, alpha). Labels mix by the clipped area, computed without pixels, so
    that it does not depend on the size of the image. The partner is chosen as in `Mixup`.
    """

    alpha: float
    probability: float = 1.0
    random_count: ClassVar[int] = 5

    def batch(self, xp: Any, images: Any, uniforms: Any, stride: int = 1) -> Any:
        """See `MixingOp`."""
        _, height, width, _ = xp.shape(images)
        rows, columns = self._edges(xp, uniforms)
        is_covered = _is_between(xp, rows, height)[:, :, None, None] & _is_between(xp, columns, width)[:, None, :, None]
        return xp.where(is_covered, take_partner(xp, images, uniforms, stride), images)

    def labels(self, xp: Any, labels: Any, uniforms: Any, stride: int = 1) -> Any:
        """See `MixingOp`."""
        rows, columns = self._edges(xp, uniforms)
        ratio = ((rows[1] - rows[0]) * (columns[1] - columns[0]))[:, None]
        return labels * (1.0 - ratio) + take_partner(xp, labels, uniforms, stride) * ratio

    def _edges(self, xp: Any, uniforms: Any) -> list[tuple[Any, Any]]:
        """Returns begin and end of the rectangle, vertical and horizontal, float32[batch] in 0-1."""
        side = xp.sqrt(1.0 - beta(xp, self.alpha, uniforms[:, 0]))
        half = xp.where(uniforms[:, 1] < self.probability, side, 0.0) / 2.0
        centres = (uniforms[:, 3], uniforms[:, 4])
        return [(xp.clip(centre - half, 0.0, 1.0), xp.clip(centre + half, 0.0, 1.0)) for centre in centres]


def take_partner(xp: Any, values: Any, uniforms: Any, stride: int = 1) -> Any:
    """Returns the values of the partner of each image, which is a random multiple of `stride` further in the batch."""
    batch = xp.shape(values)[0]
    index = xp.arange(batch, dtype="int32")
    first_uniforms = xp.take(uniforms[:, 2], index % stride, axis=0)
    shift = pick(xp, first_uniforms, batch // stride - 1) + 1
    return xp.take(values, (index + shift * stride) % batch, axis=0)


def mix_weighted(xp: Any, mix: Callable[[Any], Any], labels: Any, weights: Any) -> tuple[Any, Any]:
    """Mixes labels of images with different weights in the loss.

    Cross-entropy is linear in the target, so the loss of a mixture of weighted images, a w1 H(y1) +
    (1 - a) w2 H(y2), is that of the target (a w1 y1 + (1 - a) w2 y2) / w with the weight w = a w1 + (1 - a) w2.

    Args:
      xp: the array library.
      mix: function that mixes the rows of [batch, columns].
      labels: float32[batch, classes].
      weights: float32[batch].

    Returns:
      labels float32[batch, classes] and weights float32[batch]; labels are zeros for a weight of 0.
    """
    column = xp.cast(weights, "float32")[:, None]
    mixed = mix(xp.concatenate([labels * column, column], axis=-1))
    weight = mixed[:, -1:]
    return mixed[:, :-1] / xp.where(weight > 0, weight, 1.0), weight[:, 0]


def beta(xp: Any, alpha: float, uniforms: Any) -> Any:
    """Returns samples of Beta(alpha, alpha) by its inverse distribution function.

    Args:
      xp: the array library.
      alpha: 0.05 to 10; above, the table is too coarse.
      uniforms: float32[batch] in [0, 1).
    """
    is_upper = uniforms > 0.5
    position = xp.where(is_upper, 1.0 - uniforms, uniforms) * (2.0 * _TABLE_INTERVALS)
    interval = xp.minimum(xp.cast(xp.floor(position), "int32"), _TABLE_INTERVALS - 1)
    table = xp.convert_to_tensor(_powers(alpha), dtype="float32")
    interval_start, interval_end = xp.take(table, interval, axis=0), xp.take(table, interval + 1, axis=0)
    power = interval_start + (interval_end - interval_start) * (position - xp.cast(interval, "float32"))
    value = power ** (1.0 / min(alpha, 1.0))
    return xp.where(is_upper, 1.0 - value, value)


@functools.cache
def _powers(alpha: float) -> np.ndarray:
    """Returns x^p at evenly spaced probabilities from 0 to 1/2 of Beta(alpha, alpha), p = min(alpha, 1).

    For alpha below 1 the density has a pole at 0. In s = x^p it is s^(alpha/p - 1) (1 - s^(1/p))^(alpha - 1), without a
    pole and with a nearly linear inverse; a table of x would be inaccurate near 0.

    Returns:
      float32[_TABLE + 1].
    """
    p = min(alpha, 1.0)
    s = np.linspace(0.0, 0.5**p, 100_001)
    density = s ** (alpha / p - 1.0) * (1.0 - s ** (1.0 / p)) ** (alpha - 1.0)
    total = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2.0)])
    return np.interp(np.linspace(0.0, total[-1], _TABLE_INTERVALS + 1), total, s).astype(np.float32)


def _is_between(xp: Any, edges: tuple[Any, Any], size: Any) -> Any:
    centres = (xp.cast(xp.arange(size, dtype="int32"), "float32") + 0.5) / xp.cast(size, "float32")
    return (centres >= edges[0][:, None]) & (centres < edges[1][:, None])
