"""Runs chains of ops: the table of all ops, their text form, and what applies them to images and batches."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from beam_jobs.errors import OptionError
from trainer.ops import rng, tf_ops
from trainer.ops.batch import check_order, run_batch
from trainer.ops.colour import ColorJitter, Cutout, Normalize
from trainer.ops.geometry import CenterCrop, Flip, FlipVertical, MultiCrop, PadReflect, RandomCrop, Rotate, stacked
from trainer.ops.mixing import Cutmix, Mixup
from trainer.ops.parse import parse_chain
from trainer.ops.rand_augment import RandAugment
from trainer.ops.resize import WINDOW, Decode, DecodeRandomCrop, RandomCropResize, Resize, ResizeShort
from trainer.ops.types import (
    Features,
    MixingOp,
    Op,
)

NUMBERS = "numbers"  # of all ops, where they were drawn before
DRAWN = (NUMBERS, WINDOW)
OPS: dict[str, type] = {
    "center_crop": CenterCrop,
    "color_jitter": ColorJitter,
    "cutmix": Cutmix,
    "cutout": Cutout,
    "decode": Decode,
    "decode_random_crop": DecodeRandomCrop,
    "flip": Flip,
    "flip_vertical": FlipVertical,
    "mixup": Mixup,
    "multi_crop": MultiCrop,
    "normalize": Normalize,
    "pad_reflect": PadReflect,
    "rand_augment": RandAugment,
    "random_crop": RandomCrop,
    "random_crop_resize": RandomCropResize,
    "resize": Resize,
    "resize_short": ResizeShort,
    "rotate": Rotate,
}


def parse_ops(spec: str) -> tuple[Op, ...]:
    """Reads a chain of ops such as `"decode_random_crop(224, min_area=0.3)|flip"`.

    Examples:
      >>> from trainer import parse_ops
      >>> parse_ops("decode_random_crop(224, min_area=0.3)|flip")
      (DecodeRandomCrop(side=224, min_area=0.3, ...), Flip(probability=0.5))
      >>> parse_ops("decode|resise(32)")
      Traceback (most recent call last):
      beam_jobs.errors.OptionError: ops 'decode|resise(32)': there is no op 'resise'; did you mean resize? known are ...

    Args:
      spec: ops in order, parted by `|`, arguments by position or by name; `docs/ops.md` has all of them.

    Returns:
      the ops, frozen dataclasses.

    Raises:
      OptionError: the text is not such a chain, names an unknown op or argument, or has them in a wrong order.
    """
    ops = parse_chain(spec, OPS)
    for position, op in enumerate(ops):
        if isinstance(op, (Decode, DecodeRandomCrop)) != (position == 0):
            raise OptionError(f"ops {spec!r} must start with decode or decode_random_crop and decode only once")
    if sum(isinstance(op, MultiCrop) for op in ops) > 1:
        raise OptionError(f"ops {spec!r} hold multi_crop twice; it may be there once")
    check_order(ops, spec)
    return ops


def outputs(ops: Sequence[Op]) -> int:
    """Returns how many images a chain makes of one: 1, or more with `multi_crop`."""
    return next((op.outputs for op in ops if isinstance(op, MultiCrop)), 1)


def apply_ops(ops: Sequence[Op], features: Features, draw: tf.Tensor, first: int = 0) -> dict[str, tf.Tensor]:
    """Runs a chain of ops on one image; each op draws its own numbers.

    Examples:
      >>> import tensorflow as tf
      >>> from trainer import apply_ops, parse_ops
      >>> ops = parse_ops("decode|resize(32)|flip")
      >>> features = {"image": tf.io.read_file("photos/cat/000.jpg")}
      >>> apply_ops(ops, features, draw=tf.constant([7, 0]))["image"].shape
      TensorShape([32, 32, 3])

    Args:
      ops: the chain.
      features: `image` is an encoded string scalar; perhaps `boxes`, `box_labels` and `mask`, see `Op`.
      draw: int32[2]; equal draws give equal images.
      first: position of the first op in the whole chain, when this is a part of it.

    Returns:
      the features with `image` uint8[height, width, 3]; float32 behind `normalize`. A chain with `multi_crop` gives
      [outputs, height, width, 3] if it makes more than one, `mask` alike and `boxes` and `box_labels` ragged; image i
      of them is what the ops behind it make with the draw i of `chance.split(draw, outputs)`. Other features stay as
      they are.

    Raises:
      tf.errors.InvalidArgumentError: the bytes are no JPEG or PNG file, or the image does not fit an op.
    """
    numbers = _numbers(ops, features, draw, first)
    for position, op in enumerate(ops):
        if isinstance(op, MultiCrop) and op.outputs > 1:
            parts = op.parts(features, numbers[position])
            return _spread(ops[position + 1 :], parts, draw, first + position + 1)
        features = op(features, numbers[position])
    return {name: value for name, value in features.items() if name not in DRAWN}


def draw_numbers(ops: Sequence[Op], features: Features, draw: tf.Tensor, first: int = 0) -> dict[str, tf.Tensor]:
    """Draws for a batch of images what `apply_ops` would draw for each: the same numbers, for a fraction of the time.

    Args:
      ops: the chain that `apply_ops` will get.
      features: of a batch of records, not yet taken apart.
      draw: int32[batch, 2].
      first: as `apply_ops` will get it.

    Returns:
      the features, with what was drawn in a form that `apply_ops` knows.
    """
    counts = [op.draws for op in ops]
    if not any(counts) or outputs(ops) > 1:
        return dict(features)
    numbers = rng.of_chain(draw, counts, first)
    drawn = {**features, NUMBERS: tf.concat(numbers, -1)}
    if isinstance(ops[0], DecodeRandomCrop):
        drawn[WINDOW] = ops[0].window(features, numbers[0])
    return drawn


def apply_batch_ops(ops: Sequence[Op], images: tf.Tensor, draw: tf.Tensor, first: int = 0, lanes: int = 1) -> tf.Tensor:
    """Runs a chain, or the rest of one, on a batch.

    The pixels are those of `apply_ops` image by image, and within 1 of them for the ops that `split_position` keeps
    off batches.

    Args:
      ops: from `split_position` on.
      images: uint8[batch, height, width, 3].
      draw: int32[batch, 2].
      first: position of the first op in the whole chain.
      lanes: images are mixed with those that are a multiple of so many places away; they divide the batch.

    Returns:
      uint8[batch, height, width, 3]; float32 behind `normalize`.
    """
    numbers = rng.of_chain(draw, [op.draws if op.random else 0 for op in ops], first)
    return run_batch(tf_ops, ops, images, numbers, _as_stored, lanes)  # type: ignore[arg-type]


def mix_batch_labels(
    ops: Sequence[Op], labels: tf.Tensor, draw: tf.Tensor, first: int = 0, lanes: int = 1
) -> tf.Tensor:
    """Returns labels float32[batch, classes] mixed as `apply_batch_ops` mixes the images of the same draws."""
    numbers = rng.of_chain(draw, [op.draws if op.random else 0 for op in ops], first)
    for op, drawn in zip(ops, numbers, strict=True):
        labels = op.labels(tf_ops, labels, drawn, lanes) if isinstance(op, MixingOp) else labels
    return labels


def _numbers(ops: Sequence[Op], features: Features, draw: tf.Tensor, first: int) -> list[tf.Tensor]:
    counts = [op.draws for op in ops]
    return tf.split(features[NUMBERS], counts) if NUMBERS in features else rng.of_chain(draw, counts, first)


def _as_stored(op: Op, images: tf.Tensor) -> tf.Tensor:
    if isinstance(op, Normalize) or images.dtype == tf.uint8:
        return images
    return tf_ops.stored(images)


def _spread(ops: Sequence[Op], parts: list[dict[str, tf.Tensor]], draw: tf.Tensor, first: int) -> dict[str, tf.Tensor]:
    draws = tf.unstack(rng.split(draw, len(parts)))
    return stacked([apply_ops(ops, part, own, first) for part, own in zip(parts, draws, strict=True)])
