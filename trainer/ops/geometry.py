"""Ops that move pixels: on the host boxes and masks move along, on the device there are images alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf

from beam_jobs.errors import OptionError
from trainer.ops import base, tf_ops
from trainer.ops.base import IMAGE, MASK, TARGETS, BatchOp, Features, ImageOp, IndexOp, Size
from trainer.ops.resize import KEEP, pick_corner


@dataclass(frozen=True)
class CenterCrop(IndexOp):
    """Cuts side x side pixels out of the middle; the image must be at least that large."""

    side: int
    keep: float = KEEP

    def size(self, before: Size) -> Size:
        """A square."""
        return self.side, self.side

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        corner = (tf.shape(features[IMAGE])[:2] - self.side) // 2
        return _cut(features, corner, self.side, self.keep)

    def index(self, xp: Any, rows: Any, columns: Any, numbers: Any) -> tuple[Any, Any]:
        """See `IndexOp`."""
        height, width = _checked_sides(rows, columns, self.side, f"center_crop({self.side})")
        top, left = (height - self.side) // 2, (width - self.side) // 2
        return rows[:, top : top + self.side], columns[:, left : left + self.side]


@dataclass(frozen=True)
class PadReflect(IndexOp):
    """Adds `margin` pixels on each side, mirrored at the edge; objects in the mirror get no box."""

    margin: int

    def size(self, before: Size) -> Size:
        """Grows on both sides."""
        return None if before is None else (before[0] + 2 * self.margin, before[1] + 2 * self.margin)

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        image = features[IMAGE]
        sides = tf.shape(image)[:2]
        moved = base.cut_boxes(features, tf.fill([2], -self.margin), sides + 2 * self.margin, sides, keep=0.0)
        for name in _pictures(features):
            moved[name] = _pad(features[name], self.margin)
        return moved

    def index(self, xp: Any, rows: Any, columns: Any, numbers: Any) -> tuple[Any, Any]:
        """See `IndexOp`."""
        _checked_sides(rows, columns, self.margin + 1, f"pad_reflect({self.margin})")
        return self._wider(xp, rows), self._wider(xp, columns)

    def _wider(self, xp: Any, index: Any) -> Any:
        size = index.shape[1]
        place = base.reflect(xp, xp.arange(-self.margin, size + self.margin, dtype="int32"), size)
        return xp.take(index, place, axis=1)


@dataclass(frozen=True)
class RandomCrop(IndexOp):
    """Cuts side x side pixels out of a random place; the image must be at least that large."""

    side: int
    keep: float = KEEP
    draws: ClassVar[int] = 2

    def size(self, before: Size) -> Size:
        """A square."""
        return self.side, self.side

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        corner = pick_corner(tf.shape(features[IMAGE])[:2] - self.side, numbers)
        return _cut(features, corner, self.side, self.keep)

    def index(self, xp: Any, rows: Any, columns: Any, numbers: Any) -> tuple[Any, Any]:
        """See `IndexOp`."""
        _checked_sides(rows, columns, self.side, f"random_crop({self.side})")
        return self._part(xp, rows, numbers[:, 0:1]), self._part(xp, columns, numbers[:, 1:2])

    def _part(self, xp: Any, index: Any, numbers: Any) -> Any:
        batch, size = xp.shape(index)
        first = base.pick(xp, numbers, size - self.side + 1)
        place = first + xp.arange(self.side, dtype="int32") + xp.arange(batch, dtype="int32")[:, None] * size
        return xp.take(xp.reshape(index, (-1,)), place, axis=0)


@dataclass(frozen=True)
class Flip(IndexOp):
    """Mirrors left and right with a probability."""

    probability: float = 0.5
    draws: ClassVar[int] = 1
    moves_window = False
    axis: ClassVar[int] = 1

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        mirrored = numbers[0] < self.probability

        def mirror() -> list[tf.Tensor]:
            turned = base.mirror_boxes(features, self.axis)
            return [tf.reverse(turned[name], [self.axis]) if name in _PICTURES else turned[name] for name in names]

        names = moving(features)
        found = tf.cond(mirrored, mirror, lambda: [features[name] for name in names])
        return {**features, **dict(zip(names, found, strict=True))}

    def index(self, xp: Any, rows: Any, columns: Any, numbers: Any) -> tuple[Any, Any]:
        """See `IndexOp`."""
        mirrored = numbers < self.probability
        sides = [rows, columns]
        sides[self.axis] = xp.where(mirrored, xp.flip(sides[self.axis], axis=1), sides[self.axis])
        return sides[0], sides[1]

    def batch(self, xp: Any, images: Any, numbers: Any) -> Any:
        """See `BatchOp`."""
        mirrored = (numbers < self.probability)[:, :, None, None]
        return xp.where(mirrored, xp.flip(images, axis=self.axis + 1), images)


@dataclass(frozen=True)
class FlipVertical(Flip):
    """Mirrors top and bottom with a probability."""

    axis: ClassVar[int] = 0


@dataclass(frozen=True)
class Rotate(BatchOp):
    """Turns about the centre by -max_degrees to max_degrees, bilinear; what comes in from outside is `fill`.

    A mask takes the nearest pixel and 0 from outside. A box becomes the upright box around its turned corners.
    """

    max_degrees: float
    fill: int = 0
    keep: float = KEEP
    draws: ClassVar[int] = 1
    batch_px = 0  # the kernel for one image adds in another order, and a batch must not change a pixel

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        maps = base.rotation(tf_ops, self._radians(numbers))
        return warped(features, maps, self.fill, self.keep)

    def batch(self, xp: Any, images: Any, numbers: Any) -> Any:
        """See `BatchOp`."""
        _, height, width, _ = xp.shape(images)
        maps = base.rotation(xp, self._radians(numbers[:, 0]))
        pixel_maps = base.about_centre(xp, maps, height, width)
        return base.warp(xp, xp.cast(images, "float32"), pixel_maps, self.fill)

    def _radians(self, numbers: Any) -> Any:
        return (numbers * 2.0 - 1.0) * math.radians(self.max_degrees)


@dataclass(frozen=True)
class MultiCrop(ImageOp):
    """Makes several images of one: `count` random crops of side x side, each followed by its mirror image.

    The ops behind it run on each of them with draws of its own, see `outputs`.
    """

    count: int
    side: int
    mirror: bool = True
    keep: float = KEEP

    @property
    def draws(self) -> int:
        """Two for each crop."""
        return 2 * self.count

    @property
    def outputs(self) -> int:
        """How many images come of one."""
        return self.count * (2 if self.mirror else 1)

    def size(self, before: Size) -> Size:
        """A square."""
        return self.side, self.side

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        parts = self.parts(features, numbers)
        return stacked(parts) if len(parts) > 1 else parts[0]

    def parts(self, features: Features, numbers: tf.Tensor) -> list[dict[str, tf.Tensor]]:
        """Returns the features of each image made of one."""
        crop, flip = RandomCrop(self.side, self.keep), Flip(probability=1.0)
        found = []
        for number in range(self.count):
            part = crop(features, numbers[2 * number : 2 * number + 2])
            found += [part, flip(part, tf.zeros([1]))] if self.mirror else [part]
        return found


_PICTURES = (IMAGE, MASK)


def moving(features: Features) -> list[str]:
    """Returns the names of the features that a geometric op may change."""
    return [name for name in (IMAGE, *TARGETS) if name in features]


def warped(features: Features, maps: tf.Tensor, fill: int, keep: float) -> dict[str, tf.Tensor]:
    """Returns the features of one image moved by an affine map.

    Args:
      features: `image`, and perhaps `mask`, `boxes` and `box_labels`.
      maps: float32[1, 2, 3], see `base.about_centre`.
      fill: value of what comes in from outside the image; of a mask that is 0.
      keep: share of a box that must be left.
    """
    sides = tf.shape(features[IMAGE])[:2]
    in_pixels = base.about_centre(tf_ops, maps, sides[0], sides[1])
    moved = base.warp_boxes(features, maps[0], sides, keep)
    moved[IMAGE] = _sample(features[IMAGE], in_pixels, "BILINEAR", fill)
    if MASK in features:
        moved[MASK] = _sample(features[MASK], in_pixels, "NEAREST", 0)
    return moved


def stacked(parts: list[dict[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
    """Returns the features of several images made of one: `image` and `mask` stacked, `boxes` and labels ragged."""
    together = dict(parts[0])
    for name in moving(together):
        stack = tf.stack if name in _PICTURES else _ragged
        together[name] = stack([part[name] for part in parts])
    return together


def _ragged(rows: list[tf.Tensor]) -> tf.RaggedTensor:
    # `tf.ragged.stack` forgets in a graph that every box has four sides.
    lengths = tf.stack([tf.shape(row, tf.int64)[0] for row in rows])
    return tf.RaggedTensor.from_row_lengths(tf.concat(rows, 0), lengths)


def _sample(image: tf.Tensor, maps: tf.Tensor, interpolation: str, fill: int) -> tf.Tensor:
    # One kernel, where `base.warp` takes thirty. Of integers it would cut the fraction off.
    sampled = tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.cast(image, tf.float32)[None],
        transforms=tf.concat([tf.reshape(maps, [1, 6]), tf.zeros([1, 2])], axis=1),
        output_shape=tf.shape(image)[:2],
        fill_value=float(fill),
        interpolation=interpolation,
        fill_mode="CONSTANT",
    )
    return tf.ensure_shape(tf_ops.stored(sampled[0]), image.shape)


def _pictures(features: Features) -> list[str]:
    return [name for name in _PICTURES if name in features]


def _cut(features: Features, corner: tf.Tensor, side: int, keep: float) -> dict[str, tf.Tensor]:
    moved = base.cut_boxes(features, corner, tf.fill([2], side), tf.shape(features[IMAGE])[:2], keep)
    for name in _pictures(features):
        channels = features[name].shape[-1]
        window = tf.slice(features[name], tf.concat([corner, [0]], 0), [side, side, channels])
        moved[name] = tf.ensure_shape(window, [side, side, channels])
    return moved


def _pad(image: tf.Tensor, margin: int) -> tf.Tensor:
    return tf.pad(image, [[margin, margin], [margin, margin], [0, 0]], mode="REFLECT")


def _checked_sides(rows: Any, columns: Any, least: int, op: str) -> tuple[int, int]:
    height, width = rows.shape[1], columns.shape[1]
    if min(height, width) < least:
        raise OptionError(f"{op} wants images of at least {least}x{least} pixels; these have {height}x{width}")
    return height, width
