"""Ops of the host that decode and resize images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import tensorflow as tf

from beam_jobs.dataset import record
from beam_jobs.images.decode import decode_rgb
from trainer.ops import base, tf_ops
from trainer.ops.base import IMAGE, MASK, Features, ImageOp, Size, SquareOp, pick

BILINEAR, AREA = "bilinear", "area"
METHODS = (BILINEAR, AREA)
KEEP = 0.3  # visible fraction of a box after a crop, as in `random_crop_image` of the TF Object Detection API
# Szegedy et al., "Going Deeper with Convolutions" (2015): aspect ratios of the crops. Torchvision makes ten attempts.
_ASPECTS = (3 / 4, 4 / 3)
_ATTEMPTS = 10
WINDOW = "window"  # feature with the crops of the first op, if they are chosen per batch
_JPEG = b"\xff\xd8\xff"
_HALVINGS = 3  # libjpeg decodes at 1/2, 1/4 and 1/8
_WINDOW_RANDOM_COUNT = 2 * _ATTEMPTS + 2


@dataclass(frozen=True)
class Decode(ImageOp):
    """Decodes the complete image: string scalar -> uint8[height, width, 3]."""

    def size(self, input_size: Size) -> Size:
        """Returns None, because images differ in size."""
        return None

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        return {**features, IMAGE: decode_rgb(features[IMAGE])}


@dataclass(frozen=True)
class RandomCropResize(SquareOp):
    """Resizes a random crop: uint8[height, width, 3] -> uint8[side, side, 3].

    The crop covers a fraction of the image from `min_area` to 1 and has an aspect ratio of 3:4 to 4:3, after Szegedy et
    al., "Going Deeper with Convolutions" (2015). It is the first of ten random sizes that fits into the image, or else
    the largest centred crop of such an aspect ratio.
    """

    side: int
    min_area: float = 0.08
    method: str = BILINEAR
    keep: float = KEEP
    random_count: ClassVar[int] = _WINDOW_RANDOM_COUNT

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        image = features[IMAGE]
        sides = tf.shape(image)[:2]
        begin, size = random_window(sides, self.min_area, uniforms)
        return _resize_crop(self, features, _slice(image, begin, size), (begin, size, sides))


@dataclass(frozen=True)
class DecodeRandomCrop(SquareOp):
    """Decodes only a random crop and resizes it: string scalar -> uint8[side, side, 3].

    The crop is that of `RandomCropResize`. Rows and blocks of a JPEG outside the crop are not converted to pixels. A
    crop of at least 2, 4 or 8 times `side` pixels in each direction is decoded at 1/2, 1/4 or 1/8 of its size, which is
    faster, and averages pixels, which the bilinear resize does not. The crop then moves by less than 8 pixels, to whole
    pixels of the scaled image. `scaled=False` and the method `area` decode at full size.
    """

    side: int
    min_area: float = 0.08
    method: str = BILINEAR
    keep: float = KEEP
    scaled: bool = True
    random_count: ClassVar[int] = _WINDOW_RANDOM_COUNT

    def window(self, features: Features, uniforms: tf.Tensor) -> tf.Tensor:
        """Returns the crops of a batch, ten times faster than for single images: int32[batch, 5], see `_window`."""
        return self._window(features[IMAGE], _stored_sides(features), uniforms)

    def on_pixels(self) -> RandomCropResize:
        """Returns the op for decoded images; its crop is the same, but not moved to whole pixels of a scaled image."""
        return RandomCropResize(self.side, self.min_area, self.method, self.keep)

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class; height and width come from the record if the features include them."""
        encoded = features[IMAGE]
        sides = _stored_sides(features) if record.HEIGHT in features else tf.shape(decode_rgb(encoded))[:2]
        window = features[WINDOW] if WINDOW in features else self._window(encoded, sides, uniforms)
        begin, size, halvings = window[:2], window[2:4], window[4]
        decoders = [partial(_decode_crop, encoded, begin, size, 2**power) for power in range(_HALVINGS + 1)]
        image = tf.switch_case(
            tf.where(tf.io.is_jpeg(encoded), halvings, len(decoders)),
            [*decoders, lambda: _slice(decode_rgb(encoded), begin, size)],
        )
        return _resize_crop(self, features, image, (begin, size, sides))

    def _window(self, encoded: tf.Tensor, sides: tf.Tensor, uniforms: tf.Tensor) -> tf.Tensor:
        """Returns int32[..., 5]: begin and size of the crop, and how often its decode halves height and width."""
        begin, size = random_window(sides, self.min_area, uniforms)
        if not self.scaled or self.method != BILINEAR:
            return tf.concat([begin, size, tf.zeros_like(size[..., :1])], -1)
        is_jpeg = tf.strings.substr(encoded, 0, len(_JPEG)) == _JPEG  # `is_jpeg` takes no batch
        scale = tf.where(is_jpeg[..., None], tf.reduce_min(size, -1, keepdims=True) // self.side, 0)
        halvings = tf.add_n([tf.cast(scale >= 2**power, tf.int32) for power in range(1, _HALVINGS + 1)])
        # The crop moves to whole pixels of the scaled image, so that boxes and masks are where the pixels are.
        ratio = tf.bitwise.left_shift(1, halvings)
        begin = begin // ratio * ratio
        size = tf.minimum((size + ratio // 2) // ratio, (sides - begin) // ratio) * ratio
        return tf.concat([begin, size, halvings], -1)


@dataclass(frozen=True)
class Resize(SquareOp):
    """Resizes to side x side and ignores the aspect ratio, without antialiasing, which takes longer than the decode.

    `bilinear` uses four source pixels per pixel; `area` averages all of them, better but slower for small results.
    """

    side: int
    method: str = BILINEAR

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        return _resize(features, self.side, self.side, self.method)


@dataclass(frozen=True)
class ResizeShort(ImageOp):
    """Scales the short side to `side` pixels and keeps the aspect ratio."""

    side: int
    method: str = BILINEAR

    def size(self, input_size: Size) -> Size:
        """Returns None, because images differ in their long side."""
        return None

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        shape = tf.cast(tf.shape(features[IMAGE])[:2], tf.float32)
        target = tf.cast(tf.round(shape * (self.side / tf.reduce_min(shape))), tf.int32)
        return _resize(features, target[0], target[1], self.method)


def random_window(sides: tf.Tensor, min_area: float, uniforms: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses the crops of `RandomCropResize` for one image or a batch, all ten attempts at once.

    Args:
      sides: int32[..., 2], height and width of the image.
      min_area: minimum area as a fraction of the image.
      uniforms: float32[..., 22] in [0, 1).

    Returns:
      begin int32[..., 2] and size int32[..., 2], rows before columns.
    """
    shape = tf.cast(sides, tf.float32)
    low, high = (math.log(aspect) for aspect in _ASPECTS)
    areas = (min_area + (1.0 - min_area) * uniforms[..., :_ATTEMPTS]) * (shape[..., :1] * shape[..., 1:])
    aspects = tf.exp(low + (high - low) * uniforms[..., _ATTEMPTS : 2 * _ATTEMPTS])
    attempt_sizes = tf.round(tf.sqrt(tf.stack([areas / aspects, areas * aspects], axis=-1)))
    fits = tf.reduce_all((attempt_sizes >= 1.0) & (attempt_sizes <= shape[..., None, :]), axis=-1)
    # The last candidate always fits: the largest crop of the nearest allowed aspect ratio.
    largest = tf.minimum(shape, tf.round(shape[..., ::-1] * _ASPECTS[1]))
    index = tf.argmax(tf.concat([fits, tf.ones_like(fits[..., :1])], -1), axis=-1, output_type=tf.int32)
    candidates = tf.concat([attempt_sizes, largest[..., None, :]], axis=-2)
    size = tf.cast(tf.gather(candidates, index, batch_dims=index.shape.rank, axis=index.shape.rank), tf.int32)
    margin = sides - size
    corner = pick_corner(margin, uniforms[..., 2 * _ATTEMPTS :])
    return tf.where(index[..., None] == _ATTEMPTS, margin // 2, corner), size


def pick_corner(margin: tf.Tensor, uniforms: tf.Tensor) -> tf.Tensor:
    """Returns int32 positions from 0 to `margin`, for uniforms float32 of the same shape."""
    return pick(tf_ops, uniforms, margin + 1)


def _resize_crop(
    op: RandomCropResize | DecodeRandomCrop,
    features: Features,
    image: tf.Tensor,
    window: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
) -> dict[str, tf.Tensor]:
    begin, size, sides = window
    cropped = {**base.cut_boxes(features, begin, size, sides, op.keep), IMAGE: image}
    if MASK in features:
        cropped[MASK] = _slice(features[MASK], begin, size)
    return _resize(cropped, op.side, op.side, op.method)


def _decode_crop(encoded: tf.Tensor, begin: tf.Tensor, size: tf.Tensor, ratio: int) -> tf.Tensor:
    """Decodes a crop of a JPEG at 1/ratio of its size; `begin` and `size` are multiples of the ratio."""
    window = tf.concat([begin, size], 0) // ratio
    return tf.io.decode_and_crop_jpeg(encoded, window, channels=3, ratio=ratio)


def _resize(features: Features, height: int | tf.Tensor, width: int | tf.Tensor, method: str) -> dict[str, tf.Tensor]:
    target = tf.stack([height, width])
    sides = [side if isinstance(side, int) else None for side in (height, width)]
    # `tf.image.resize` adds a dozen ops on shapes to these kernels.
    if method == AREA:
        pixels = tf.raw_ops.ResizeArea(images=features[IMAGE][None], size=target)[0]
    else:
        pixels = tf.raw_ops.ResizeBilinear(images=features[IMAGE][None], size=target, half_pixel_centers=True)[0]
    # Averages of 0-255 need no clipping. The next ops need static sizes to be compiled.
    resized = {**features, IMAGE: tf.ensure_shape(tf_ops.to_uint8(pixels), [*sides, 3])}
    if MASK in features:
        # Values of a mask are class indices, which cannot be averaged.
        mask = tf.raw_ops.ResizeNearestNeighbor(images=features[MASK][None], size=target, half_pixel_centers=True)[0]
        resized[MASK] = tf.ensure_shape(mask, [*sides, 1])
    return resized


def _stored_sides(features: Features) -> tf.Tensor:
    return tf.cast(tf.stack([features[record.HEIGHT], features[record.WIDTH]], axis=-1), tf.int32)


def _slice(image: tf.Tensor, begin: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    return tf.slice(image, tf.concat([begin, [0]], 0), tf.concat([size, [-1]], 0))
