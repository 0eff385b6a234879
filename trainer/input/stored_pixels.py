"""Where a chain of ops begins: at an encoded file, at stored pixels, or at what a cache kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from beam_jobs.dataset.manifest import Manifest
from trainer.ops import IMAGE, Decode, DecodeRandomCrop, Features, ImageOp, Op
from trainer.ops.types import Size


@dataclass(frozen=True)
class DecodeRaw(ImageOp):
    """Takes stored pixels as they are: string[...] -> uint8[..., height, width, 3]; one image or a batch."""

    height: int
    width: int

    def size(self, before: Size) -> Size:
        """Known."""
        return self.height, self.width

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        stored = features[IMAGE]
        shape = tf.concat([tf.shape(stored), [self.height, self.width, 3]], 0)
        pixels = tf.reshape(tf.io.decode_raw(stored, tf.uint8), shape)
        return {**features, IMAGE: tf.ensure_shape(pixels, [*stored.shape, self.height, self.width, 3])}


@dataclass(frozen=True)
class DecodeSized(Decode):
    """Decodes images that all have one size: string scalar -> uint8[height, width, 3]."""

    height: int
    width: int

    def size(self, before: Size) -> Size:
        """Known, so that the ops behind it may run on batches."""
        return self.height, self.width

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        decoded = super().__call__(features, numbers)
        return {**decoded, IMAGE: tf.ensure_shape(decoded[IMAGE], [self.height, self.width, 3])}


def stored_ops(ops: Sequence[Op], dataset: Manifest, size: tuple[int, int] | None = None) -> tuple[Op, ...]:
    """Returns the ops that begin at what the records of a dataset hold; each keeps its place, and so its draws.

    Those of the policy `raw` need no decode, so a fused decode and crop becomes the crop alone.

    Args:
      ops: a chain that begins with a decode.
      dataset: the dataset.
      size: height and width of all its images, where that is one.
    """
    pixels = dataset.options["pixels"]
    if pixels["policy"] == "raw":
        return raw_ops(ops, pixels["side_px"])
    if size and isinstance(ops[0], Decode):
        return (DecodeSized(*size), *ops[1:])
    return tuple(ops)


def raw_ops(ops: Sequence[Op], side: int) -> tuple[Op, ...]:
    """Returns the ops that begin at stored pixels, side x side of them."""
    return (DecodeRaw(side, side), *([ops[0].on_pixels()] if isinstance(ops[0], DecodeRandomCrop) else []), *ops[1:])
