"""Image ops: frozen dataclasses in one table, used alike by training, evaluation and serving.

An op takes and returns the features of one image, `{"image": ...}`, and a seed that is its only source of chance. The
decode ops turn `image` from an encoded string into uint8[height, width, 3], sRGB, 0-255; all others keep that type.
`"decode_random_crop(224)|flip"` is the same as `(DecodeRandomCrop(side=224), Flip())`.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import tensorflow as tf

from beam_jobs import record
from beam_jobs.decode import decode_rgb
from beam_jobs.errors import OptionError
from beam_jobs.suggest import unknown

IMAGE = "image"
Features: TypeAlias = Mapping[str, tf.Tensor]


class Op(Protocol):
    """One step of preprocessing."""

    random: ClassVar[bool]

    def __call__(self, features: Features, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the features with `image` changed; `seed` is int64[2]."""


@dataclass(frozen=True)
class Decode:
    """Decodes the whole image: string scalar -> uint8[height, width, 3]."""

    random: ClassVar[bool] = False

    def __call__(self, features: Features, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        return {**features, IMAGE: decode_rgb(features[IMAGE])}


@dataclass(frozen=True)
class DecodeRandomCrop:
    """Decodes only a random crop and resizes it: string scalar -> uint8[side, side, 3].

    The crop covers `min_area` to all of the image with an aspect of 3:4 to 4:3, after Szegedy et al., "Going Deeper
    with Convolutions" (2015). Rows and blocks outside the crop of a JPEG are never turned into pixels.
    """

    side: int
    min_area: float = 0.08
    random: ClassVar[bool] = True

    def __call__(self, features: Features, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class; height and width come from the record when they are among the features."""
        encoded = features[IMAGE]
        shape = _stored_shape(features) if record.HEIGHT in features else tf.shape(decode_rgb(encoded))
        begin, size = _random_window(shape, self.min_area, seed)
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.cond(
            tf.io.is_jpeg(encoded),
            lambda: tf.io.decode_and_crop_jpeg(encoded, window, channels=3),
            lambda: tf.slice(decode_rgb(encoded), begin, size),
        )
        return {**features, IMAGE: _resize(image, self.side, self.side)}


@dataclass(frozen=True)
class RandomCropResize:
    """The crop of `DecodeRandomCrop` on decoded pixels: uint8[height, width, 3] -> uint8[side, side, 3]."""

    side: int
    min_area: float = 0.08
    random: ClassVar[bool] = True

    def __call__(self, features: Features, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        image = features[IMAGE]
        begin, size = _random_window(tf.shape(image), self.min_area, seed)
        return {**features, IMAGE: _resize(tf.slice(image, begin, size), self.side, self.side)}


@dataclass(frozen=True)
class Resize:
    """Stretches to side x side, bilinear, without antialiasing, which would cost more than the decode."""

    side: int
    random: ClassVar[bool] = False

    def __call__(self, features: Features, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        return {**features, IMAGE: _resize(features[IMAGE], self.side, self.side)}


@dataclass(frozen=True)
class ResizeShort:
    """Scales so that the short side has `side` pixels; the aspect stays."""

    side: int
    random: ClassVar[bool] = False

    def __call__(self, features: Features, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        shape = tf.cast(tf.shape(features[IMAGE])[:2], tf.float32)
        target = tf.cast(tf.round(shape * (self.side / tf.reduce_min(shape))), tf.int32)
        return {**features, IMAGE: _resize(features[IMAGE], target[0], target[1])}


@dataclass(frozen=True)
class CenterCrop:
    """Cuts side x side pixels out of the middle; the image must be at least that large."""

    side: int
    random: ClassVar[bool] = False

    def __call__(self, features: Features, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        image = features[IMAGE]
        corner = (tf.shape(image)[:2] - self.side) // 2
        return {**features, IMAGE: _crop(image, corner[0], corner[1], self.side)}


@dataclass(frozen=True)
class PadReflect:
    """Adds `margin` pixels on each side, mirrored at the edge."""

    margin: int
    random: ClassVar[bool] = False

    def __call__(self, features: Features, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        margins = [[self.margin, self.margin], [self.margin, self.margin], [0, 0]]
        return {**features, IMAGE: tf.pad(features[IMAGE], margins, mode="REFLECT")}


@dataclass(frozen=True)
class RandomCrop:
    """Cuts side x side pixels out of a random place; the image must be at least that large."""

    side: int
    random: ClassVar[bool] = True

    def __call__(self, features: Features, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        image = features[IMAGE]
        room = tf.shape(image)[:2] - self.side + 1
        corner = tf.cast(tf.random.stateless_uniform([2], seed) * tf.cast(room, tf.float32), tf.int32)
        return {**features, IMAGE: _crop(image, corner[0], corner[1], self.side)}


@dataclass(frozen=True)
class Flip:
    """Mirrors left and right in half of the cases."""

    random: ClassVar[bool] = True

    def __call__(self, features: Features, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        image = features[IMAGE]
        mirrored = tf.random.stateless_uniform([], seed) < 0.5
        return {**features, IMAGE: tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)}


OPS: dict[str, type] = {
    "center_crop": CenterCrop,
    "decode": Decode,
    "decode_random_crop": DecodeRandomCrop,
    "flip": Flip,
    "pad_reflect": PadReflect,
    "random_crop": RandomCrop,
    "random_crop_resize": RandomCropResize,
    "resize": Resize,
    "resize_short": ResizeShort,
}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1


# Argument -> what is allowed, and how to tell. The names mean the same in every op.
_ARGUMENTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "side": ("a whole number of pixels above 0", lambda value: _is_whole(value) and value > 0),
    "margin": ("a whole number of pixels of at least 0", lambda value: _is_whole(value) and value >= 0),
    "min_area": ("a share above 0 and up to 1", _is_share),
}


def parse_ops(spec: str) -> tuple[Op, ...]:
    """Reads a chain of ops such as `"decode_random_crop(224, min_area=0.3)|flip"`.

    Raises:
      OptionError: the text is not such a chain, or names an unknown op or argument.
    """
    ops = tuple(_parse_op(part.strip(), spec) for part in spec.split("|"))
    for position, op in enumerate(ops):
        if isinstance(op, (Decode, DecodeRandomCrop)) != (position == 0):
            raise OptionError(f"ops {spec!r} must start with decode or decode_random_crop and decode only once")
    return ops


def apply_ops(ops: Sequence[Op], features: Features, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """Runs a chain of ops on one image; each random op draws from its own seed.

    Args:
      ops: the chain.
      features: `image` is an encoded string scalar.
      seed: int64[2]; equal seeds give equal images.

    Returns:
      the features with `image` uint8[height, width, 3].
    """
    for position, op in enumerate(ops):
        features = op(features, tf.random.experimental.stateless_fold_in(seed, position) if op.random else seed)
    return dict(features)


def _parse_op(text: str, spec: str) -> Op:
    try:
        call = ast.parse(text, mode="eval").body
        call = ast.Call(func=call, args=[], keywords=[]) if isinstance(call, ast.Name) else call
        name = call.func.id  # type: ignore[attr-defined]
        positional = [ast.literal_eval(value) for value in call.args]  # type: ignore[attr-defined]
        named = {word.arg: ast.literal_eval(word.value) for word in call.keywords}  # type: ignore[attr-defined]
    except (SyntaxError, ValueError, AttributeError) as error:
        raise OptionError(f"ops {spec!r}: {text!r} is not an op; write a chain such as decode|resize(224)") from error
    if name not in OPS:
        raise OptionError(f"ops {spec!r}: {unknown('op', name, OPS)}")
    try:
        op = OPS[name](*positional, **named)
    except TypeError as error:
        wanted = ", ".join(field.name for field in dataclasses.fields(OPS[name])) or "no argument"
        raise OptionError(f"ops {spec!r}: {text!r} does not fit; {name} takes {wanted}") from error
    for field, (allowed, fits) in _ARGUMENTS.items():
        value = getattr(op, field, None)
        if hasattr(op, field) and not fits(value):
            raise OptionError(f"ops {spec!r}: in {text!r} {field} is {value!r}; it must be {allowed}")
    return op


def _random_window(shape: tf.Tensor, min_area: float, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns begin int32[3] and size int32[3] of a random crop; the size keeps all channels (-1)."""
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.zeros([1, 0, 4]),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(min_area, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    return begin, size


def _stored_shape(features: Features) -> tf.Tensor:
    return tf.cast(tf.stack([features[record.HEIGHT], features[record.WIDTH], 3]), tf.int32)


def _resize(image: tf.Tensor, height: int | tf.Tensor, width: int | tf.Tensor) -> tf.Tensor:
    resized = tf.image.resize(image, tf.stack([height, width]))
    # Static sizes must survive, or nothing downstream can be compiled.
    sides = [side if isinstance(side, int) else None for side in (height, width)]
    return tf.ensure_shape(tf.saturate_cast(tf.round(resized), tf.uint8), [*sides, 3])


def _crop(image: tf.Tensor, top: tf.Tensor, left: tf.Tensor, side: int) -> tf.Tensor:
    return tf.ensure_shape(tf.slice(image, tf.stack([top, left, 0]), [side, side, 3]), [side, side, 3])
