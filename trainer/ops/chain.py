"""Runs chains of ops: the table of all ops, their text form, and what applies them to images and batches.

`"decode_random_crop(224)|flip"` is the same as `(DecodeRandomCrop(side=224), Flip())`. Chains over whole batches run
with any array library: on the device, and on the host where that is faster.
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
from trainer.ops.base import BatchOp, Features, IndexOp, MixingOp, Op, Size, moved
from trainer.ops.colour import ColorJitter, Cutout, Normalize
from trainer.ops.geometry import CenterCrop, Flip, FlipVertical, MultiCrop, PadReflect, RandomCrop, Rotate, stacked
from trainer.ops.mixing import Cutmix, Mixup
from trainer.ops.rand_augment import RandAugment
from trainer.ops.resize import METHODS, WINDOW, Decode, DecodeRandomCrop, RandomCropResize, Resize, ResizeShort


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object, least: float, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def _is_colour(value: object, least: float) -> bool:
    return isinstance(value, tuple) and len(value) in {0, 3} and all(_is_number(part, least, 255) for part in value)


def _pixels(least: int) -> tuple[str, Callable[[Any], bool]]:
    text = "above 0" if least else "of at least 0"
    return f"a whole number of pixels {text}", lambda value: _is_whole(value) and value >= least


def _share(most: float = 1.0) -> tuple[str, Callable[[Any], bool]]:
    return f"between 0 and {most:g}", lambda value: value is None or _is_number(value, 0, most)


# Argument -> what is allowed, and how to tell. The names mean the same in every op.
_ARGUMENTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "alpha": ("a number from 0.05 to 10", lambda value: _is_number(value, 0.05, 10)),
    "brightness": _share(),
    "contrast": _share(),
    "count": ("a whole number of 1 to 1000", lambda value: _is_whole(value) and 1 <= value <= 1000),
    "fill": ("a whole number of 0 to 255", lambda value: _is_whole(value) and 0 <= value <= 255),
    "hue": _share(0.5),
    "keep": _share(),
    "magnitude": ("a number from 0 to 30", lambda value: _is_number(value, 0, 30)),
    "margin": _pixels(0),
    "max_degrees": ("a number from 0 to 180", lambda value: _is_number(value, 0, 180)),
    "mean_rgb": ("three numbers of 0 to 255", lambda value: _is_colour(value, 0)),
    "method": (f"one of {', '.join(METHODS)}", lambda value: value in METHODS),
    "min_area": ("a share above 0 and up to 1", lambda value: _is_number(value, 1e-9, 1)),
    "mirror": ("True or False", lambda value: isinstance(value, bool)),
    "probability": _share(),
    "saturation": _share(),
    "side": _pixels(1),
    "std_rgb": ("three numbers of 0 to 255", lambda value: _is_colour(value, 0)),
    "strength": _share(),
}


def parse_chain(spec: str, table: Mapping[str, type], kind: str = "op") -> tuple[Any, ...]:
    """Reads a chain of ops such as `"decode_random_crop(224, min_area=0.3)|flip"`.

    Args:
      spec: the text.
      table: name -> op.
      kind: what an op of the table is called in an error.

    Raises:
      OptionError: the text is not such a chain, or names an unknown op or argument.
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
        wanted = ", ".join(field.name for field in dataclasses.fields(table[name])) or "no argument"
        raise OptionError(f"ops {spec!r}: {text!r} does not fit; {name} takes {wanted}") from error
    for field in dataclasses.fields(op):
        value = getattr(op, field.name)
        allowed, fits = _ARGUMENTS[field.name]
        if not fits(value):
            raise OptionError(f"ops {spec!r}: in {text!r} {field.name} is {value!r}; it must be {allowed}")
    return op


def run_batch(
    xp: Any,
    ops: Sequence[BatchOp],
    images: Any,
    numbers: Sequence[Any],
    after: Callable[[BatchOp, Any], Any] = lambda _, images: images,
    lanes: int = 1,
) -> Any:
    """Runs a chain on a batch.

    Args:
      xp: `keras.ops` or `trainer.ops.tf_ops`.
      ops: the chain.
      images: [batch, height, width, 3], 0-255, uint8 or float32; only the batch may be of unknown size.
      numbers: float32[batch, draws] for each op.
      after: takes an op and the images that it made, and returns what the next op gets.
      lanes: see `MixingOp`; they divide the batch.

    Raises:
      OptionError: an op does not fit the size of the images.
    """
    steps = zip(ops, numbers, strict=True)
    for by_index, group in itertools.groupby(steps, key=lambda step: isinstance(step[0], IndexOp)):
        members = list(group)
        if by_index and any(op.moves_window for op, _ in members):  # type: ignore[attr-defined]
            images = moved(xp, members, images)  # type: ignore[arg-type]
        else:
            for op, drawn in members:
                mixed = (lanes,) if isinstance(op, MixingOp) else ()
                images = after(op, op.batch(xp, images, drawn, *mixed))
    return images


def split_position(ops: Sequence[Op], moves_targets: bool = False) -> int:
    """Returns from which op on a chain runs on batches, or its length.

    From there on all images have one size that is known, and every op is faster on a batch than image by image: small
    images, for which calling an op costs more than its pixels. Mixing ops run on a batch whatever their size.

    Args:
      ops: a chain of the host.
      moves_targets: boxes or masks come along, which only move image by image.

    Raises:
      OptionError: an op mixes images that may differ in size.
    """
    sizes: list[Size] = [None]
    for op in ops:
        sizes.append(op.size(sizes[-1]))
    position = len(ops)
    while position > 0 and _fits(ops[position - 1], sizes[position - 1], moves_targets):
        position -= 1
    for op in ops[:position]:
        if isinstance(op, MixingOp):
            raise OptionError(f"{op} mixes images, which must have one size by then; put a crop or resize before it")
    return position


def check_order(ops: Sequence[Any], spec: str) -> None:
    """Raises `OptionError` when an op stands behind one that must come after it."""
    for op, following in itertools.pairwise(ops):
        if isinstance(op, Normalize):
            raise OptionError(f"ops {spec!r}: normalize must be the last op")
        if isinstance(op, MixingOp) and not isinstance(following, (MixingOp, Normalize)):
            raise OptionError(f"ops {spec!r}: only mixup, cutmix and normalize may follow mixup and cutmix")


def _fits(op: Any, size: Size, moves_targets: bool) -> bool:
    if not isinstance(op, BatchOp) or size is None:
        return False
    if isinstance(op, (MixingOp, Normalize)):
        return True
    return not moves_targets and size[0] * size[1] <= op.batch_px


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
