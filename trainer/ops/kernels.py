"""Pixel kernels over batches, with any array library: `xp` is `keras.ops` or `trainer.ops.tf_ops`.

None loops over images and all keep static shapes, so they compile under XLA. Sides are in pixels, images
[batch, height, width, 3], 0-255.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Rounds when the fraction is cut off then. A little more than a half: exact halves are common, and where one compiler
# comes out just above and another just below, both must round up.
HALF = 0.5 + 2.0**-10
GREY = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow converts to `L`
# RGB to YIQ, the colour space of NTSC (FCC 1953): hue is an angle in its I-Q plane.
_YIQ = np.array([GREY, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)])


def pick(xp: Any, numbers: Any, choices: Any) -> Any:
    """Returns int32 in [0, choices), for float32 numbers in [0, 1) of the same shape."""
    return xp.cast(xp.floor(numbers * xp.cast(choices, "float32")), "int32")


def reflect(xp: Any, index: Any, size: int) -> Any:
    """Returns positions inside 0 to size - 1 for some outside, mirrored at the edge without repeating it."""
    return (size - 1) - xp.abs((size - 1) - xp.abs(index))


def gather_pixels(xp: Any, images: Any, rows: Any, columns: Any) -> Any:
    """Returns image[rows, columns] of each image, for rows int32[batch, h] and columns int32[batch, w]."""
    batch, height, width, channels = xp.shape(images)
    start = xp.arange(batch, dtype="int32") * (height * width)
    index = start[:, None, None] + rows[:, :, None] * width + columns[:, None, :]
    return xp.take(xp.reshape(images, (-1, channels)), index, axis=0)


def paint_square(xp: Any, images: Any, side: int, value: int, numbers: Any) -> Any:
    """Returns images with a square of one value over a random place; what sticks out of the image is cut off.

    Args:
      xp: the array library.
      images: [..., height, width, 3].
      side: of the square.
      value: 0-255.
      numbers: float32[..., 2], where the centre is.

    Returns:
      the same type and shape as `images`.
    """
    *batch, height, width, channels = xp.shape(images)
    # Rows of single values: a mask that has to be spread over the channels takes four times as long on the host.
    places = (xp.arange(height, dtype="int32"), xp.arange(width * channels, dtype="int32") // channels)
    inside = []
    for axis, (size, place) in enumerate(zip((height, width), places, strict=True)):
        first = pick(xp, numbers[..., axis : axis + 1], size) - side // 2
        inside.append((place >= first) & (place < first + side))
    covered = inside[0][..., :, None] & inside[1][..., None, :]
    lines = xp.reshape(images, (*batch, height, width * channels))
    painted = xp.where(covered, xp.convert_to_tensor(value, dtype=images.dtype), lines)
    return xp.reshape(painted, (*batch, height, width, channels))


def rotation(xp: Any, radians: Any) -> Any:
    """Returns float32[batch, 2, 3], the maps of `warp` that turn by angles float32[batch]; no shift."""
    cos, sin, none = xp.cos(radians), xp.sin(radians), radians * 0.0
    return xp.stack([xp.stack([cos, -sin, none], axis=-1), xp.stack([sin, cos, none], axis=-1)], axis=-2)


def about_centre(xp: Any, maps: Any, height: Any, width: Any) -> Any:
    """Returns maps in pixels of maps whose origin is the centre and whose shift is a share of the side.

    Args:
      xp: the array library.
      maps: float32[batch, 2, 3]: rows for x and y, columns for x, y and the shift.
      height: of the image.
      width: of the image.
    """
    sides = xp.stack([xp.cast(width, "float32"), xp.cast(height, "float32")])
    centre = (sides - 1.0) / 2.0
    turn, shift = maps[..., :2], maps[..., 2]
    # Multiply and add, no matrix product: accelerators may round the factors of those to fewer bits.
    offset = centre + shift * sides - (turn[..., 0] * centre[0] + turn[..., 1] * centre[1])
    return xp.concatenate([turn, offset[..., None]], axis=-1)


def warp(xp: Any, images: Any, maps: Any, fill: int) -> Any:
    """Samples images along affine maps, bilinear; outside of the image everything is `fill`.

    Args:
      xp: the array library.
      images: float32[batch, height, width, 3].
      maps: float32[batch, 2, 3]: where in the source a pixel (x, y, 1) comes from, in pixels.
      fill: 0-255.

    Returns:
      float32[batch, height, width, 3].
    """
    batch, height, width, channels = xp.shape(images)
    across = xp.cast(xp.arange(width, dtype="int32"), "float32")[None, None, :]
    down = xp.cast(xp.arange(height, dtype="int32"), "float32")[None, :, None]
    maps = maps[:, :, :, None, None]
    x = maps[:, 0, 0] * across + maps[:, 0, 1] * down + maps[:, 0, 2]
    y = maps[:, 1, 0] * across + maps[:, 1, 1] * down + maps[:, 1, 2]
    left, top = xp.floor(x), xp.floor(y)
    start = xp.arange(batch, dtype="int32")[:, None, None] * (height * width)
    pixels = xp.reshape(images - float(fill), (-1, channels))
    total: Any = float(fill)
    for row, vertical in ((top, 1.0 - (y - top)), (top + 1.0, y - top)):
        for column, horizontal in ((left, 1.0 - (x - left)), (left + 1.0, x - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            index = xp.cast(xp.where(inside, row, 0.0), "int32") * width
            index = start + index + xp.cast(xp.where(inside, column, 0.0), "int32")
            weight = xp.where(inside, vertical * horizontal, 0.0)
            total = total + xp.take(pixels, index, axis=0) * weight[..., None]
    return total


def grey_of(images: Any) -> Any:
    """Returns float32[..., 1] of pixels float32[..., 3]."""
    return images[..., 0:1] * GREY[0] + images[..., 1:2] * GREY[1] + images[..., 2:3] * GREY[2]


def hue_matrix(xp: Any, radians: Any) -> Any:
    """Returns float32[batch, 3, 3] that turn the hue by angles float32[batch]; greys stay what they are."""
    back = np.linalg.inv(_YIQ)
    keep = back @ np.diag([1.0, 0.0, 0.0]) @ _YIQ
    along = back @ np.diag([0.0, 1.0, 1.0]) @ _YIQ
    crosswise = back @ np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]]) @ _YIQ
    keep, along, crosswise = (xp.convert_to_tensor(part, dtype="float32") for part in (keep, along, crosswise))
    return keep + xp.cos(radians)[:, None, None] * along + xp.sin(radians)[:, None, None] * crosswise


def mix_channels(images: Any, matrices: Any, offsets: Any) -> Any:
    """Returns matrix x pixel + offset, for matrices float32[batch, 3, 3] and offsets float32[batch]."""
    columns = [images[..., i : i + 1] * matrices[:, None, None, :, i] for i in range(3)]
    return columns[0] + columns[1] + columns[2] + offsets[:, None, None, None]


def whole(xp: Any, images: Any) -> Any:
    """Returns float32 images rounded and clipped to 0-255."""
    return xp.clip(xp.floor(images + HALF), 0.0, 255.0)
