"""Ops that change what pixels show and leave them where they are; boxes and masks stay as they are.

The mixing ops take each image of a batch with another one of it, and their labels by the same share.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import tensorflow as tf

from beam_jobs.errors import OptionError
from trainer.ops import base, tf_ops
from trainer.ops.base import IMAGE, BatchOp, Features, MixingOp, pick

AnyOp = TypeVar("AnyOp")


@dataclass(frozen=True)
class Cutout(BatchOp):
    """Paints a square of `fill` over a random place, after DeVries and Taylor (2017), arXiv 1708.04552.

    The centre of the square is any pixel, so up to three quarters of it may stick out of the image.
    """

    side: int
    fill: int = 0
    draws: ClassVar[int] = 2
    batch_px = 1 << 62

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        return {**features, IMAGE: self.batch(tf_ops, features[IMAGE], numbers)}

    def batch(self, xp: Any, images: Any, numbers: Any) -> Any:
        """See `BatchOp`."""
        return base.paint_square(xp, images, self.side, self.fill, numbers)


@dataclass(frozen=True)
class ColorJitter(BatchOp):
    """Changes brightness, contrast, saturation and hue by random factors.

    A factor lies in 1 - x to 1 + x, and the hue turns by -hue to hue of a full circle. `strength` sets all four as
    SimCLR does (Chen et al. 2020, arXiv 2002.05709): 0.8, 0.8, 0.8 and 0.2 times it; one that is given counts instead.
    All four are one matrix for each image, so values are clipped to 0-255 once, at the end, and hue turns in the plane
    of YIQ, which leaves the greys alone.
    """

    strength: float = 0.0
    brightness: float | None = None
    contrast: float | None = None
    saturation: float | None = None
    hue: float | None = None
    draws: ClassVar[int] = 4
    batch_px = 0

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        image = features[IMAGE]
        pixels = tf.reshape(tf.cast(image, tf.float32), [1, -1, 3])
        matrices, offsets = self._mixture(tf_ops, tf.reduce_mean(pixels, axis=1), numbers[None])
        # One image at a time a matrix product takes a sixth of the time of `mix_channels`.
        mixed = tf.matmul(pixels, matrices, transpose_b=True) + offsets
        changed = tf_ops.stored(tf_ops.clip(mixed, 0.0, 255.0))
        return {**features, IMAGE: tf.ensure_shape(tf.reshape(changed, tf.shape(image)), image.shape)}

    def batch(self, xp: Any, images: Any, numbers: Any) -> Any:
        """See `BatchOp`."""
        images = xp.cast(images, "float32")
        matrices, offsets = self._mixture(xp, xp.mean(images, axis=(1, 2)), numbers)
        return xp.clip(base.mix_channels(images, matrices, offsets), 0.0, 255.0)

    def _mixture(self, xp: Any, mean: Any, numbers: Any) -> tuple[Any, Any]:
        """Returns matrices and offsets for images of a mean colour float32[batch, 3], see `mix_channels`."""
        amount = self._amounts()
        brightness, contrast, saturation = (1.0 + amount[i] * (numbers[:, i] * 2.0 - 1.0) for i in range(3))
        hue = base.hue_matrix(xp, (numbers[:, 3] * 2.0 - 1.0) * (2 * math.pi * amount[3]))
        mean = brightness * base.grey_of(mean)[:, 0]
        saturation = saturation[:, None, None]
        grey = xp.convert_to_tensor([base.GREY] * 3, dtype="float32")
        matrices = (brightness * contrast)[:, None, None] * (hue * saturation + grey * (1.0 - saturation))
        return matrices, (1.0 - contrast) * mean

    def _amounts(self) -> list[float]:
        given = (self.brightness, self.contrast, self.saturation, self.hue)
        shares = (0.8, 0.8, 0.8, 0.2)
        return [self.strength * share if own is None else own for own, share in zip(given, shares, strict=True)]


@dataclass(frozen=True)
class Normalize(BatchOp):
    """Takes the mean of each channel off and divides by its standard deviation: float32 images, the last op.

    Without numbers it stands for the statistics of the dataset, see `bind_statistics`.
    """

    mean_rgb: tuple[float, ...] = ()
    std_rgb: tuple[float, ...] = ()
    batch_px = 1 << 62

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        return {**features, IMAGE: self.batch(tf_ops, features[IMAGE], numbers)}

    def batch(self, xp: Any, images: Any, numbers: Any) -> Any:
        """See `BatchOp`; the result is float32 around 0."""
        if len(self.mean_rgb) != 3 or len(self.std_rgb) != 3:
            raise OptionError("normalize has no statistics; write normalize((r, g, b), (r, g, b)), or bind_statistics")
        *batch, height, width, channels = xp.shape(images)
        lines = xp.reshape(xp.cast(images, "float32"), (*batch, height, width * channels))
        scale = [1.0 / max(std, 1e-6) for std in self.std_rgb]
        changed = (lines - _line(xp, self.mean_rgb, width)) * _line(xp, scale, width)
        return xp.reshape(changed, (*batch, height, width, channels))


def bind_statistics(ops: Sequence[AnyOp], mean_rgb: Sequence[float], std_rgb: Sequence[float]) -> tuple[AnyOp, ...]:
    """Returns a chain in which a `normalize` without numbers has those of a dataset.

    Args:
      ops: a chain of the host or of the device.
      mean_rgb: mean of each channel, 0-255.
      std_rgb: standard deviation of each channel, 0-255; one of 0 leaves its channel at 0.
    """
    bound = {"mean_rgb": tuple(map(float, mean_rgb)), "std_rgb": tuple(map(float, std_rgb))}
    return tuple(replace(op, **bound) if isinstance(op, Normalize) and not op.mean_rgb else op for op in ops)


def _line(xp: Any, colour: Sequence[float], width: Any) -> Any:
    """Returns one colour over a row of pixels: against three values the host would go through them one by one."""
    return xp.reshape(xp.broadcast_to(xp.convert_to_tensor(colour, dtype="float32"), (width, 3)), (-1,))


_TABLE = 512  # straight between this many points the distribution is right to 1e-3


@dataclass(frozen=True)
class Mixup(MixingOp):
    """Averages each image with another one of the batch, after Zhang et al. (2018), arXiv 1710.09412.

    The share of the image itself is drawn from Beta(alpha, alpha) for each image. All images of a batch, or of a lane
    of it, look the same number of places further for their partner; the draw of the first image decides how many.
    """

    alpha: float
    probability: float = 1.0
    draws: ClassVar[int] = 3

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """Refuses: one image cannot be mixed."""
        return _refuse("mixup")

    def batch(self, xp: Any, images: Any, numbers: Any, lanes: int = 1) -> Any:
        """See `MixingOp`; the result is float32."""
        images = xp.cast(images, "float32")
        share = self._share(xp, numbers)[:, None, None, None]
        return images * share + partner(xp, images, numbers, lanes) * (1.0 - share)

    def labels(self, xp: Any, labels: Any, numbers: Any, lanes: int = 1) -> Any:
        """See `MixingOp`."""
        share = self._share(xp, numbers)[:, None]
        return labels * share + partner(xp, labels, numbers, lanes) * (1.0 - share)

    def _share(self, xp: Any, numbers: Any) -> Any:
        share = beta(xp, self.alpha, numbers[:, 0])
        return xp.where(numbers[:, 1] < self.probability, share, 1.0)


@dataclass(frozen=True)
class Cutmix(MixingOp):
    """Pastes a rectangle of another image of the batch over each image, after Yun et al. (2019), arXiv 1905.04899.

    The rectangle has the shape of the image and a random centre; before what sticks out is cut off it covers
    1 - lambda, with lambda of Beta(alpha, alpha). Labels mix by the area that is left, measured without pixels, so
    that it is the same at every size. The partner is found as in `Mixup`.
    """

    alpha: float
    probability: float = 1.0
    draws: ClassVar[int] = 5

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """Refuses: one image cannot be mixed."""
        return _refuse("cutmix")

    def batch(self, xp: Any, images: Any, numbers: Any, lanes: int = 1) -> Any:
        """See `MixingOp`."""
        _, height, width, _ = xp.shape(images)
        rows, columns = self._edges(xp, numbers)
        covered = _between(xp, rows, height)[:, :, None, None] & _between(xp, columns, width)[:, None, :, None]
        return xp.where(covered, partner(xp, images, numbers, lanes), images)

    def labels(self, xp: Any, labels: Any, numbers: Any, lanes: int = 1) -> Any:
        """See `MixingOp`."""
        rows, columns = self._edges(xp, numbers)
        pasted = ((rows[1] - rows[0]) * (columns[1] - columns[0]))[:, None]
        return labels * (1.0 - pasted) + partner(xp, labels, numbers, lanes) * pasted

    def _edges(self, xp: Any, numbers: Any) -> list[tuple[Any, Any]]:
        """Returns begin and end of the rectangle, down and across, float32[batch] in 0-1."""
        side = xp.sqrt(1.0 - beta(xp, self.alpha, numbers[:, 0]))
        half = xp.where(numbers[:, 1] < self.probability, side, 0.0) / 2.0
        centres = (numbers[:, 3], numbers[:, 4])
        return [(xp.clip(centre - half, 0.0, 1.0), xp.clip(centre + half, 0.0, 1.0)) for centre in centres]


def partner(xp: Any, values: Any, numbers: Any, lanes: int = 1) -> Any:
    """Returns what the partner of each image has: every lane, rolled by a number of places from 1 to its length - 1."""
    batch = xp.shape(values)[0]
    place = xp.arange(batch, dtype="int32")
    first = xp.take(numbers[:, 2], place % lanes, axis=0)
    places = pick(xp, first, batch // lanes - 1) + 1
    return xp.take(values, (place + places * lanes) % batch, axis=0)


def mix_weighted(xp: Any, mix: Callable[[Any], Any], labels: Any, weights: Any) -> tuple[Any, Any]:
    """Mixes labels whose images weigh differently in the loss.

    Cross-entropy is linear in the target, so the loss of a mixture in which each image keeps its weight, a w1 H(y1) +
    (1 - a) w2 H(y2), is that of the target (a w1 y1 + (1 - a) w2 y2) / w with the weight w = a w1 + (1 - a) w2.

    Args:
      xp: the array library.
      mix: mixes the rows of [batch, columns].
      labels: float32[batch, classes].
      weights: float32[batch].

    Returns:
      labels float32[batch, classes] and weights float32[batch]; labels of zeros where the weight is 0.
    """
    column = xp.cast(weights, "float32")[:, None]
    mixed = mix(xp.concatenate([labels * column, column], axis=-1))
    weight = mixed[:, -1:]
    return mixed[:, :-1] / xp.where(weight > 0, weight, 1.0), weight[:, 0]


def beta(xp: Any, alpha: float, numbers: Any) -> Any:
    """Returns samples of Beta(alpha, alpha) by its inverse distribution function.

    Args:
      xp: the array library.
      alpha: 0.05 to 10; above, too much of the distribution lies between two points of the table.
      numbers: float32[batch] in [0, 1).
    """
    upper = numbers > 0.5
    place = xp.where(upper, 1.0 - numbers, numbers) * (2.0 * _TABLE)
    below = xp.minimum(xp.cast(xp.floor(place), "int32"), _TABLE - 1)
    table = xp.convert_to_tensor(_powers(alpha), dtype="float32")
    low, high = xp.take(table, below, axis=0), xp.take(table, below + 1, axis=0)
    power = low + (high - low) * (place - xp.cast(below, "float32"))
    value = power ** (1.0 / min(alpha, 1.0))
    return xp.where(upper, 1.0 - value, value)


@functools.cache
def _powers(alpha: float) -> np.ndarray:
    """Returns x^p at evenly spaced probabilities from 0 to 1/2 of Beta(alpha, alpha), p = min(alpha, 1).

    Below an alpha of 1 the density has a pole at 0. With s = x^p it is s^(alpha/p - 1) (1 - s^(1/p))^(alpha - 1), which
    has none, and its inverse is nearly straight: a table of x itself would be far off near 0.

    Returns:
      float32[_TABLE + 1].
    """
    p = min(alpha, 1.0)
    s = np.linspace(0.0, 0.5**p, 100_001)
    density = s ** (alpha / p - 1.0) * (1.0 - s ** (1.0 / p)) ** (alpha - 1.0)
    total = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2.0)])
    return np.interp(np.linspace(0.0, total[-1], _TABLE + 1), total, s).astype(np.float32)


def _between(xp: Any, edges: tuple[Any, Any], size: Any) -> Any:
    centres = (xp.cast(xp.arange(size, dtype="int32"), "float32") + 0.5) / xp.cast(size, "float32")
    return (centres >= edges[0][:, None]) & (centres < edges[1][:, None])


def _refuse(name: str) -> dict[str, tf.Tensor]:
    raise OptionError(f"{name} mixes the images of a batch and cannot run on one; name it in device_ops")
