"""Checks before any record is read: the ops fit each other and the image size, the batches fit the memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from beam_jobs.common.strings import WARNING, size
from beam_jobs.common.system import free_bytes
from beam_jobs.dataset import record
from beam_jobs.errors import OptionError
from trainer.input.parse import IMAGE_SEED, KEY, LABEL, DecodeSized, adapt_ops_to_pixels
from trainer.input.plan import InputPlan, evaluation_ops
from trainer.input.position import Position
from trainer.ops import (
    IMAGE,
    CenterCrop,
    Decode,
    DecodeRandomCrop,
    MixingOp,
    MultiCrop,
    Normalize,
    Op,
    PadReflect,
    RandomCrop,
    RandomCropResize,
    Resize,
    ResizeShort,
    apply_ops,
    first_batch_op,
    parse_ops,
)
from trainer.ops.tf_ops import without_autograph
from trainer.options import InputOptions

_SCALE_TOLERANCE = 1.05  # sizes are rounded


@without_autograph
def check_options(options: InputOptions, raw_side: int | None = None) -> None:
    """Builds the chains of training and evaluation without data, so that errors appear before anything runs.

    Args:
      options: options of the pipeline.
      raw_side: height and width of stored pixels with the policy `raw`; None for JPEG and PNG files.

    Raises:
      OptionError: an op is unknown or does not fit, or the result is not uint8 images of `image_side_px`.
    """
    _check_device_ops(options)
    text, number = tf.constant(""), tf.constant(0, tf.int64)  # placeholders, which give the types
    parsed = {IMAGE: text, KEY: text, record.HEIGHT: number, record.WIDTH: number, LABEL: number}
    parsed[IMAGE_SEED] = tf.zeros([2], tf.int32)
    for training in (True, False):
        ops = parse_ops(options.train_spec) if training else evaluation_ops(options)
        first_batch_op(ops)  # raises if images of different sizes are mixed
        if any(isinstance(op, Normalize) for op in ops):
            spec = options.train_spec if training else options.eval_spec
            raise OptionError(f"ops {spec!r} contain normalize; leave it out: every model normalises its images itself")
        ops = adapt_ops_to_pixels(ops, raw_side) if raw_side else ops
        image_ops = tuple(op for op in ops if not isinstance(op, MixingOp))
        shape = _infer_shape(image_ops, parsed)
        side = options.image_side_px
        if None in tuple(shape) and type(image_ops[0]) is Decode and all(op.size((side, side)) for op in image_ops[1:]):
            # Correct if every stored image has the size of the model, which is unknown before they are stored.
            shape = _infer_shape((DecodeSized(side, side), *image_ops[1:]), parsed)
        check_shape(shape, options, training)


def _infer_shape(ops: tuple[Op, ...], row: dict[str, tf.Tensor]) -> tf.TensorShape:
    prepared = tf.data.Dataset.from_tensors(row).map(lambda row: apply_ops(ops, row, row[IMAGE_SEED]))
    # With several crops of an image, the first dimension is their number; in a batch each crop is a row.
    return prepared.element_spec[IMAGE].shape[-3:]


def check_shape(shape: tf.TensorShape, options: InputOptions, training: bool) -> None:
    """Raises `OptionError` unless the model takes images of this shape."""
    side = options.image_side_px
    if shape != (side, side, 3):
        name, text = ("train_ops", options.train_spec) if training else ("eval_ops", options.eval_spec)
        raise OptionError(
            f"{name} {text!r} give images of shape {shape}; image_side_px is {side}, so it must be {side}x{side}"
            f"{f': images differ in size, so add resize({side})' * (None in tuple(shape))}"
        )


def check_start(start: Position, plan: InputPlan) -> None:
    """Raises `OptionError` if several hosts would start an evaluation inside a pass."""
    if plan.host.count > 1 and start.records and not plan.training:
        raise OptionError(
            f"start is {start.records} records into the split, and each of {plan.host.count} hosts evaluates its "
            "own part; start at 0 records, or evaluate the rest on one host"
        )


def scale_warning(options: InputOptions, short_px: float) -> str:
    """Returns a warning if evaluation shows images at a scale that training never uses, otherwise an empty string.

    Args:
      options: options of the pipeline.
      short_px: typical short side of the stored images, in pixels.
    """
    low, high = _scale_range(parse_ops(options.train_spec), short_px)
    scale, _ = _scale_range(evaluation_ops(options), short_px)
    if low / _SCALE_TOLERANCE <= scale <= high * _SCALE_TOLERANCE:
        return ""
    training_scale = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
    return (
        f"{WARNING}train_ops show images at {training_scale} of their stored size and eval_ops at {scale:.2f}, so the "
        f"model is evaluated and served at another scale than it is trained at; leave out or adapt "
        f"eval_ops {options.eval_spec!r}"
    )


def _scale_range(ops: Sequence[Op], short_px: float) -> tuple[float, float]:
    """Returns the least and the greatest factor by which the ops scale the short side of a stored image."""
    low = high = 1.0
    for op in ops:
        factor = 1.0
        if isinstance(op, (Resize, ResizeShort, RandomCropResize, DecodeRandomCrop)):
            factor, short_px = op.side / short_px, op.side
        elif isinstance(op, PadReflect):
            short_px += 2 * op.margin
        elif isinstance(op, (CenterCrop, RandomCrop, MultiCrop)):
            short_px = op.side
        low, high = low * factor, high * factor / math.sqrt(getattr(op, "min_area", 1.0))  # small crops grow
    return low, high


def check_memory(options: InputOptions, images: int, value_bytes: int = 1) -> None:
    """Checks that the batches fit into the free memory; the kernel kills a process that runs out of it.

    Args:
      options: options of the pipeline.
      images: images in a batch of this host.
      value_bytes: bytes of one channel of a pixel; 4 for the floats in the baselines of the bench.

    Raises:
      OptionError: the batches do not fit.
    """
    free = free_bytes()
    batch_bytes = images * options.image_side_px**2 * 3 * value_bytes
    needed_bytes = options.batches_held * batch_bytes
    if needed_bytes > free:
        raise OptionError(
            f"batch_size is {options.batch_size}: {options.batches_held} batches of {size(batch_bytes)}"
            f"{', as floats,' * (value_bytes > 1)} are in memory at a time, and {size(free)} are free; with "
            f"image_side_px {options.image_side_px} at most {options.batch_size * free // needed_bytes} images fit"
        )


def _check_device_ops(options: InputOptions) -> None:
    from trainer.ops.device import output_side, parse_device_ops

    side = output_side(parse_device_ops(options.device_ops), options.image_side_px)
    if side != options.image_side_px:
        raise OptionError(
            f"device_ops {options.device_ops!r} give images of {side} pixels; image_side_px is {options.image_side_px}"
            f", so it must be {options.image_side_px}"
        )
