"""Ops that change the values of pixels but do not move them, boxes or masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import tensorflow as tf

from beam_jobs.errors import OptionError
from trainer.ops import base, tf_ops
from trainer.ops.base import IMAGE, BatchOp, Features

AnyOp = TypeVar("AnyOp")


class _PixelOp(BatchOp):
    """An op whose `batch` also works on a single image."""

    batch_px = 1 << 62  # no limit

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Op`."""
        return {**features, IMAGE: self.batch(tf_ops, features[IMAGE], uniforms)}


@dataclass(frozen=True)
class Cutout(_PixelOp):
    """Paints a square of `fill` at a random position, after DeVries and Taylor (2017), arXiv 1708.04552.

    The centre of the square is any pixel, so up to three quarters of it may lie outside the image.
    """

    side: int
    fill: int = 0
    random_count: ClassVar[int] = 2

    def batch(self, xp: Any, images: Any, uniforms: Any) -> Any:
        """See `BatchOp`."""
        return base.paint_square(xp, images, self.side, self.fill, uniforms)


@dataclass(frozen=True)
class ColorJitter(BatchOp):
    """Changes brightness, contrast, saturation and hue by random factors.

    Factors are from 1 - x to 1 + x, and the hue rotates by -hue to hue of a full circle. `strength` sets all four as in
    SimCLR (Chen et al. 2020, arXiv 2002.05709), to 0.8, 0.8, 0.8 and 0.2 times its value, unless they are set
    separately. All four are one matrix per image, so values are clipped to 0-255 only once, at the end. Hue rotates in
    the I-Q plane of YIQ, which does not change greys.
    """

    strength: float = 0.0
    brightness: float | None = None
    contrast: float | None = None
    saturation: float | None = None
    hue: float | None = None
    random_count: ClassVar[int] = 4
    batch_px = 0  # on the host, always one image at a time

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        image = features[IMAGE]
        pixels = tf.reshape(tf.cast(image, tf.float32), [1, -1, 3])
        matrices, offsets = self._make_transform(tf_ops, tf.reduce_mean(pixels, axis=1), uniforms[None])
        # For one image, a matrix product takes a sixth of the time of `mix_channels`.
        mixed = tf.matmul(pixels, matrices, transpose_b=True) + offsets
        pixels = tf_ops.to_uint8(tf_ops.clip(mixed, 0.0, 255.0))
        return {**features, IMAGE: tf.ensure_shape(tf.reshape(pixels, tf.shape(image)), image.shape)}

    def batch(self, xp: Any, images: Any, uniforms: Any) -> Any:
        """See `BatchOp`."""
        images = xp.cast(images, "float32")
        matrices, offsets = self._make_transform(xp, xp.mean(images, axis=(1, 2)), uniforms)
        return xp.clip(base.mix_channels(images, matrices, offsets), 0.0, 255.0)

    def _make_transform(self, xp: Any, mean: Any, uniforms: Any) -> tuple[Any, Any]:
        """Returns matrices and offsets for `mix_channels`, for images with a mean colour float32[batch, 3]."""
        amount = self._amounts()
        brightness, contrast, saturation = (1.0 + amount[i] * (uniforms[:, i] * 2.0 - 1.0) for i in range(3))
        hue = base.hue_matrix(xp, (uniforms[:, 3] * 2.0 - 1.0) * (2 * math.pi * amount[3]))
        mean = brightness * base.to_grey(mean)[:, 0]
        saturation = saturation[:, None, None]
        grey = xp.convert_to_tensor([base.GREY] * 3, dtype="float32")
        matrices = (brightness * contrast)[:, None, None] * (hue * saturation + grey * (1.0 - saturation))
        return matrices, (1.0 - contrast) * mean

    def _amounts(self) -> list[float]:
        defaults = [self.strength * factor for factor in (0.8, 0.8, 0.8, 0.2)]
        values = (self.brightness, self.contrast, self.saturation, self.hue)
        return [default if value is None else value for value, default in zip(values, defaults, strict=True)]


@dataclass(frozen=True)
class Normalize(_PixelOp):
    """Subtracts the mean of each channel and divides by its standard deviation: float32 images, the last op.

    Without arguments it uses the statistics of the dataset, see `bind_statistics`.
    """

    mean_rgb: tuple[float, ...] = ()
    std_rgb: tuple[float, ...] = ()

    def batch(self, xp: Any, images: Any, uniforms: Any) -> Any:
        """See `BatchOp`; the result is float32 around 0."""
        if len(self.mean_rgb) != 3 or len(self.std_rgb) != 3:
            raise OptionError("normalize has no statistics; write normalize((r, g, b), (r, g, b)) or bind_statistics")
        *batch, height, width, channels = xp.shape(images)
        lines = xp.reshape(xp.cast(images, "float32"), (*batch, height, width * channels))
        scale = [1.0 / max(std, 1e-6) for std in self.std_rgb]
        normalised = (lines - _make_line(xp, self.mean_rgb, width)) * _make_line(xp, scale, width)
        return xp.reshape(normalised, (*batch, height, width, channels))


def bind_statistics(ops: Sequence[AnyOp], mean_rgb: Sequence[float], std_rgb: Sequence[float]) -> tuple[AnyOp, ...]:
    """Returns a chain in which every `normalize` without arguments has the statistics of a dataset.

    Args:
      ops: a chain of the host or of the device.
      mean_rgb: mean of each channel, 0-255.
      std_rgb: standard deviation of each channel, 0-255; a channel with 0 becomes 0.
    """
    statistics = {"mean_rgb": tuple(map(float, mean_rgb)), "std_rgb": tuple(map(float, std_rgb))}
    return tuple(replace(op, **statistics) if isinstance(op, Normalize) and not op.mean_rgb else op for op in ops)


def _make_line(xp: Any, colour: Sequence[float], width: Any) -> Any:
    """Returns a row of pixels of one colour; broadcasting three values is slow on the host."""
    return xp.reshape(xp.broadcast_to(xp.convert_to_tensor(colour, dtype="float32"), (width, 3)), (-1,))
