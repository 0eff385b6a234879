"""What is refused before anything is read: ops that do not fit each other, the model or the size of its images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from beam_jobs.common.strings import WARNING, size
from beam_jobs.common.system import free_bytes
from beam_jobs.dataset import record
from beam_jobs.errors import OptionError
from trainer.input.parse import DRAW, KEY, LABEL, DecodeSized, raw_ops
from trainer.input.plan import Choices, evaluation_ops
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
    parse_ops,
    split_position,
)
from trainer.ops.tf_ops import as_written
from trainer.options import InputOptions

_SCALE_SLACK = 1.05  # of rounded sizes


@as_written
def check_options(options: InputOptions, raw_side: int | None = None) -> None:
    """Builds both chains of ops without data, so that what cannot work is known before anything runs.

    Args:
      options: how shards become batches.
      raw_side: height and width of stored pixels, of the policy `raw`; None for JPEG and PNG files.

    Raises:
      OptionError: an op is unknown, does not fit, leaves images of another size than `image_side_px`, or floats.
    """
    _check_device_ops(options)
    row = {IMAGE: "", record.HEIGHT: 0, record.WIDTH: 0, KEY: "", LABEL: 0}
    types = {name: tf.string if value == "" else tf.int64 for name, value in row.items()}
    parsed = {name: tf.constant(value, types[name]) for name, value in row.items()}
    parsed[DRAW] = tf.zeros([2], tf.int32)
    for training in (True, False):
        ops = parse_ops(options.train_spec) if training else evaluation_ops(options)
        split_position(ops)  # refuses what mixes images of different sizes
        if any(isinstance(op, Normalize) for op in ops):
            spec = options.train_spec if training else options.eval_spec
            raise OptionError(f"ops {spec!r} hold normalize; leave it out: every model normalises its images itself")
        ops = raw_ops(ops, raw_side) if raw_side else ops
        steady = tuple(op for op in ops if not isinstance(op, MixingOp))
        shape = _shape_after(steady, parsed)
        side = options.image_side_px
        if None in tuple(shape) and type(steady[0]) is Decode and all(op.size((side, side)) for op in steady[1:]):
            # Right where every stored image has the size of the model, which is known once they are stored.
            shape = _shape_after((DecodeSized(side, side), *steady[1:]), parsed)
        check_shape(shape, options, training)


def _shape_after(ops: tuple[Op, ...], row: dict[str, tf.Tensor]) -> tf.TensorShape:
    prepared = tf.data.Dataset.from_tensors(row).map(lambda row: apply_ops(ops, row, row[DRAW]))
    # Crops of one image come together here; in a batch they are rows like all others.
    return prepared.element_spec[IMAGE].shape[-3:]


def check_shape(shape: tf.TensorShape, options: InputOptions, training: bool) -> None:
    """Raises `OptionError` unless images of this shape are what the model takes."""
    side = options.image_side_px
    if shape != (side, side, 3):
        name, text = ("train_ops", options.train_spec) if training else ("eval_ops", options.eval_spec)
        raise OptionError(
            f"{name} {text!r} end at the shape {shape}; image_side_px is {side}, so it must be {side}x{side}"
            f"{f': images differ in size, so add resize({side})' * (None in tuple(shape))}"
        )


def check_start(start: Position, choices: Choices) -> None:
    """Raises `OptionError` where several hosts would have to evaluate a part of the split that none can tell."""
    if choices.host.count > 1 and start.records and not choices.training:
        raise OptionError(
            f"start is {start.records} records into the split, and {choices.host.count} hosts evaluate a part of it "
            "each; start at 0 records, or evaluate the rest on one host"
        )


def scale_warning(options: InputOptions, short_px: float) -> str:
    """Returns a warning where evaluation shows images at a scale that training never does; empty where it does not.

    Args:
      options: how shards become batches.
      short_px: typical short side of the stored images, in pixels.
    """
    low, high = _scales(parse_ops(options.train_spec), short_px)
    scale, _ = _scales(evaluation_ops(options), short_px)
    if low / _SCALE_SLACK <= scale <= high * _SCALE_SLACK:
        return ""
    trained = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
    return (
        f"{WARNING}train_ops show images at {trained} of their stored size and eval_ops at {scale:.2f}, so the "
        f"model is evaluated and served on another scale than it learns; leave out or adapt "
        f"eval_ops {options.eval_spec!r}"
    )


def _scales(ops: Sequence[Op], short_px: float) -> tuple[float, float]:
    """Returns the least and the greatest number of pixels that show one pixel of the short side of a stored image."""
    low = high = 1.0
    for op in ops:
        factor = 1.0
        if isinstance(op, (Resize, ResizeShort, RandomCropResize, DecodeRandomCrop)):
            factor, short_px = op.side / short_px, op.side
        elif isinstance(op, PadReflect):
            short_px += 2 * op.margin
        elif isinstance(op, (CenterCrop, RandomCrop, MultiCrop)):
            short_px = op.side
        low, high = low * factor, high * factor / math.sqrt(getattr(op, "min_area", 1.0))
    return low, high


def check_room(options: InputOptions, images: int, value_bytes: int = 1) -> None:
    """Looks whether the memory that is free holds the batches; a process that runs out of it is ended without a word.

    Args:
      options: how images become batches.
      images: of a batch of this host.
      value_bytes: of a channel of a pixel; 4 for the floats that the baselines of the bench move.

    Raises:
      OptionError: it does not.
    """
    free = free_bytes()
    batch = images * options.image_side_px**2 * 3 * value_bytes
    needed = options.batches_held * batch
    if needed > free:
        raise OptionError(
            f"batch_size is {options.batch_size}: {options.batches_held} batches of {size(batch)}"
            f"{', as floats,' * (value_bytes > 1)} are in memory at a time, and {size(free)} are free; with "
            f"image_side_px {options.image_side_px} at most {options.batch_size * free // needed} images fit"
        )


def _check_device_ops(options: InputOptions) -> None:
    from trainer.ops.device import output_side, parse_device_ops

    side = output_side(parse_device_ops(options.device_ops), options.image_side_px)
    if side != options.image_side_px:
        raise OptionError(
            f"device_ops {options.device_ops!r} end at {side} pixels; image_side_px is {options.image_side_px}, so it "
            f"must be {options.image_side_px}"
        )
