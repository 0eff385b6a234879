"""Chains of ops: the table of all ops, their text form, and functions that run them on images and batches.

Chains on batches run with any array library: on the device, and on the host if that is faster.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from beam_jobs.common.strings import parse_call, unknown
from beam_jobs.errors import OptionError
from trainer.ops import rng, tf_ops
from trainer.ops.base import BatchOp, Features, IndexOp, MixingOp, Op, Size, run_index_ops
from trainer.ops.colour import ColorJitter, Cutout, Normalize
from trainer.ops.geometry import (
    CenterCrop,
    Flip,
    FlipVertical,
    MultiCrop,
    PadReflect,
    RandomCrop,
    Rotate,
    stack_features,
)
from trainer.ops.mixing import Cutmix, Mixup
from trainer.ops.rand_augment import RandAugment
from trainer.ops.resize import METHODS, WINDOW, Decode, DecodeRandomCrop, RandomCropResize, Resize, ResizeShort


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _is_colour(value: object) -> bool:
    return isinstance(value, tuple) and len(value) in {0, 3} and all(_is_number(part, 0, 255) for part in value)


def _pixels_rule(low: int) -> tuple[str, Callable[[Any], bool]]:
    text = "above 0" if low else "of at least 0"
    return f"a whole number of pixels {text}", lambda value: _is_whole(value) and value >= low


def _fraction_rule(high: float = 1.0) -> tuple[str, Callable[[Any], bool]]:
    return f"between 0 and {high:g}", lambda value: value is None or _is_number(value, 0, high)


# Argument -> description of the allowed values, and their check. A name has the same meaning in every op.
_ARGUMENTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "alpha": ("a number from 0.05 to 10", lambda value: _is_number(value, 0.05, 10)),
    "brightness": _fraction_rule(),
    "contrast": _fraction_rule(),
    "count": ("a whole number of 1 to 1000", lambda value: _is_whole(value) and 1 <= value <= 1000),
    "fill": ("a whole number of 0 to 255", lambda value: _is_whole(value) and 0 <= value <= 255),
    "hue": _fraction_rule(0.5),
    "keep": _fraction_rule(),
    "magnitude": ("a number from 0 to 30", lambda value: _is_number(value, 0, 30)),
    "margin": _pixels_rule(0),
    "max_degrees": ("a number from 0 to 180", lambda value: _is_number(value, 0, 180)),
    "mean_rgb": ("three numbers of 0 to 255", _is_colour),
    "method": (f"one of {', '.join(METHODS)}", lambda value: value in METHODS),
    "min_area": ("a fraction above 0 and up to 1", lambda value: _is_number(value, 1e-9, 1)),
    "mirror": ("True or False", lambda value: isinstance(value, bool)),
    "scaled": ("True or False", lambda value: isinstance(value, bool)),
    "probability": _fraction_rule(),
    "saturation": _fraction_rule(),
    "side": _pixels_rule(1),
    "std_rgb": ("three numbers of 0 to 255", _is_colour),
    "strength": _fraction_rule(),
}


def parse_chain(spec: str, table: Mapping[str, type], kind: str = "op") -> tuple[Any, ...]:
    """Parses a chain of ops such as `"decode_random_crop(224, min_area=0.3)|flip"`.

    Args:
      spec: text of the chain.
      table: name -> class of the op.
      kind: noun for an op of the table in errors.

    Raises:
      OptionError: the text is not a chain of ops, or an op or argument is unknown.
    """
    return tuple(_parse_op(part.strip(), spec, table, kind) for part in spec.split("|"))


def _parse_op(text: str, spec: str, table: Mapping[str, type], kind: str) -> Any:
    try:
        name, positional, named = parse_call(text)
    except ValueError as error:
        raise OptionError(f"ops {spec!r}: {text!r} is not an op; write a chain such as decode|resize(224)") from error
    if name not in table:
        raise OptionError(f"ops {spec!r}: {unknown(kind, name, table)}")
    try:
        op = table[name](*positional, **named)
    except TypeError as error:
        arguments = ", ".join(field.name for field in dataclasses.fields(table[name])) or "no argument"
        raise OptionError(f"ops {spec!r}: {text!r} does not fit; {name} takes {arguments}") from error
    for field in dataclasses.fields(op):
        value = getattr(op, field.name)
        allowed, is_valid = _ARGUMENTS[field.name]
        if not is_valid(value):
            raise OptionError(f"ops {spec!r}: in {text!r} {field.name} is {value!r}; it must be {allowed}")
    return op


def run_batch(
    xp: Any,
    ops: Sequence[BatchOp],
    images: Any,
    uniforms: Sequence[Any],
    convert: Callable[[BatchOp, Any], Any] = lambda _, images: images,
    stride: int = 1,
) -> Any:
    """Runs a chain on a batch.

    Args:
      xp: `keras.ops` or `trainer.ops.tf_ops`.
      ops: ops of the chain.
      images: [batch, height, width, 3], 0-255, uint8 or float32; only the batch size may be unknown.
      uniforms: float32[batch, random_count] for each op.
      convert: function of an op and its result; it returns the images for the next op.
      stride: see `MixingOp.batch`; a divisor of the batch size.

    Raises:
      OptionError: an op does not fit the size of the images.
    """
    steps = zip(ops, uniforms, strict=True)
    for is_index_op, group in itertools.groupby(steps, key=lambda step: isinstance(step[0], IndexOp)):
        group_steps = list(group)
        if is_index_op and any(op.moves_window for op, _ in group_steps):  # type: ignore[attr-defined]
            images = run_index_ops(xp, group_steps, images)  # type: ignore[arg-type]
        else:
            for op, op_uniforms in group_steps:
                arguments = (stride,) if isinstance(op, MixingOp) else ()
                images = convert(op, op.batch(xp, images, op_uniforms, *arguments))
    return images


def first_batch_op(ops: Sequence[Op], moves_targets: bool = False) -> int:
    """Returns the index of the first op that runs on batches, or the length of the chain.

    From that op on, all images have one known size, and every op is faster on batches than on single images, as it is
    for small images. Mixing ops always run on batches.

    Args:
      ops: a chain of the host.
      moves_targets: whether the features include boxes or masks, which ops can move only image by image.

    Raises:
      OptionError: an op mixes images that may differ in size.
    """
    sizes: list[Size] = [None]
    for op in ops:
        sizes.append(op.size(sizes[-1]))
    position = len(ops)
    while position > 0 and _can_batch(ops[position - 1], sizes[position - 1], moves_targets):
        position -= 1
    for op in ops[:position]:
        if isinstance(op, MixingOp):
            raise OptionError(f"{op} mixes images, which must have one size; put a crop or resize before it")
    return position


def check_order(ops: Sequence[Any], spec: str) -> None:
    """Raises `OptionError` if `normalize`, `mixup` or `cutmix` is before an op that must come first."""
    for op, following in itertools.pairwise(ops):
        if isinstance(op, Normalize):
            raise OptionError(f"ops {spec!r}: normalize must be the last op")
        if isinstance(op, MixingOp) and not isinstance(following, (MixingOp, Normalize)):
            raise OptionError(f"ops {spec!r}: only mixup, cutmix and normalize may follow mixup and cutmix")


def _can_batch(op: Any, size: Size, moves_targets: bool) -> bool:
    if not isinstance(op, BatchOp) or size is None:
        return False
    if isinstance(op, (MixingOp, Normalize)):
        return True
    return not moves_targets and size[0] * size[1] <= op.batch_px


NUMBERS = "numbers"  # feature with the random numbers of all ops, if they are computed per batch
RANDOM_FEATURES = (NUMBERS, WINDOW)
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
    """Parses a chain of ops such as `"decode_random_crop(224, min_area=0.3)|flip"`.

    Examples:
      >>> from trainer import parse_ops
      >>> parse_ops("decode_random_crop(224, min_area=0.3)|flip")
      (DecodeRandomCrop(side=224, min_area=0.3, ...), Flip(probability=0.5))
      >>> parse_ops("decode|resise(32)")
      Traceback (most recent call last):
      beam_jobs.errors.OptionError: ops 'decode|resise(32)': there is no op 'resise'; did you mean resize? known are ...

    Args:
      spec: ops in order, separated by `|`, with arguments by position or by name; `docs/ops.md` lists all ops.

    Returns:
      the ops, frozen dataclasses.

    Raises:
      OptionError: the text is not a chain of ops, an op or argument is unknown, or the order is wrong.
    """
    ops = parse_chain(spec, OPS)
    for position, op in enumerate(ops):
        if isinstance(op, (Decode, DecodeRandomCrop)) != (position == 0):
            raise OptionError(f"ops {spec!r} must start with decode or decode_random_crop and decode only once")
    if sum(isinstance(op, MultiCrop) for op in ops) > 1:
        raise OptionError(f"ops {spec!r} contain multi_crop twice; keep one of them")
    check_order(ops, spec)
    return ops


def outputs(ops: Sequence[Op]) -> int:
    """Returns the number of images that a chain makes of one: 1, or more with `multi_crop`."""
    return next((op.outputs for op in ops if isinstance(op, MultiCrop)), 1)


def apply_ops(ops: Sequence[Op], features: Features, draw: tf.Tensor, first: int = 0) -> dict[str, tf.Tensor]:
    """Runs a chain of ops on one image; each op has separate random numbers.

    Examples:
      >>> import tensorflow as tf
      >>> from trainer import apply_ops, parse_ops
      >>> ops = parse_ops("decode|resize(32)|flip")
      >>> features = {"image": tf.io.read_file("photos/cat/000.jpg")}
      >>> apply_ops(ops, features, draw=tf.constant([7, 0]))["image"].shape
      TensorShape([32, 32, 3])

    Args:
      ops: ops of the chain.
      features: `image`, an encoded string scalar, and optionally `boxes`, `box_labels` and `mask`, see `Op`.
      draw: int32[2], the seed of every random number of the image; equal seeds give equal images.
      first: index of the first op in the complete chain, if `ops` are a part of it.

    Returns:
      the features with `image` uint8[height, width, 3]; float32 after `normalize`. A chain with `multi_crop` that
      makes several images returns `image` and `mask` [outputs, height, width, channels], and `boxes` and `box_labels`
      ragged; the later ops use the seed i of `rng.split(draw, outputs)` for image i. Other features do not change.

    Raises:
      tf.errors.InvalidArgumentError: the bytes are not a JPEG or PNG file, or the image does not fit an op.
    """
    counts = [op.random_count for op in ops]
    has_numbers = NUMBERS in features
    uniforms = tf.split(features[NUMBERS], counts) if has_numbers else rng.uniform_for_chain(draw, counts, first)
    for position, op in enumerate(ops):
        if isinstance(op, MultiCrop) and op.outputs > 1:
            parts = op.parts(features, uniforms[position])
            seeds, next_position = tf.unstack(rng.split(draw, len(parts))), position + 1
            pairs = zip(parts, seeds, strict=True)
            return stack_features([apply_ops(ops[next_position:], *pair, first + next_position) for pair in pairs])
        features = op(features, uniforms[position])
    return {name: value for name, value in features.items() if name not in RANDOM_FEATURES}


def draw_numbers(ops: Sequence[Op], features: Features, image_seed: tf.Tensor, first: int = 0) -> dict[str, tf.Tensor]:
    """Computes the random numbers of `apply_ops` for a batch of images, in a fraction of the time.

    Args:
      ops: ops for `apply_ops`.
      features: features of a batch of records.
      image_seed: int32[batch, 2].
      first: argument `first` for `apply_ops`.

    Returns:
      the features and the numbers, as features that `apply_ops` reads.
    """
    counts = [op.random_count for op in ops]
    if not any(counts) or outputs(ops) > 1:
        return dict(features)
    uniforms = rng.uniform_for_chain(image_seed, counts, first)
    result = {**features, NUMBERS: tf.concat(uniforms, -1)}
    if isinstance(ops[0], DecodeRandomCrop):
        result[WINDOW] = ops[0].window(features, uniforms[0])
    return result


def apply_batch_ops(
    ops: Sequence[Op], images: tf.Tensor, image_seed: tf.Tensor, first: int = 0, stride: int = 1
) -> tf.Tensor:
    """Runs a chain, or the end of one, on a batch.

    The pixels are equal to those of `apply_ops`, or within 1 for ops that `first_batch_op` does not run on batches.

    Args:
      ops: ops from `first_batch_op` on.
      images: uint8[batch, height, width, 3].
      image_seed: int32[batch, 2].
      first: index of the first op in the complete chain.
      stride: see `MixingOp.batch`; a divisor of the batch size.

    Returns:
      uint8[batch, height, width, 3]; float32 after `normalize`.
    """
    uniforms = rng.uniform_for_chain(image_seed, [op.random_count for op in ops], first)
    return run_batch(tf_ops, ops, images, uniforms, _round_result, stride)  # type: ignore[arg-type]


def mix_batch_labels(
    ops: Sequence[Op], labels: tf.Tensor, image_seed: tf.Tensor, first: int = 0, stride: int = 1
) -> tf.Tensor:
    """Returns labels float32[batch, classes], mixed like the images of `apply_batch_ops` with the same seeds."""
    uniforms = rng.uniform_for_chain(image_seed, [op.random_count for op in ops], first)
    for op, op_uniforms in zip(ops, uniforms, strict=True):
        labels = op.labels(tf_ops, labels, op_uniforms, stride) if isinstance(op, MixingOp) else labels
    return labels


def _round_result(op: Op, images: tf.Tensor) -> tf.Tensor:
    if isinstance(op, Normalize) or images.dtype == tf.uint8:
        return images
    return tf_ops.to_uint8(images)
