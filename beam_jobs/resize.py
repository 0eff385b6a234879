"""Smaller images: a decode that is scaled inside the JPEG transform, then one resize to the exact size."""

from __future__ import annotations

import cv2
import numpy as np

from beam_jobs import normalise
from beam_jobs.decode import decode_checked
from beam_jobs.geometry import Geometry
from beam_jobs.headers import Header

_RATIOS = (8, 4, 2)  # what the decoder can divide height and width by at no cost


def upright_size(header: Header) -> tuple[int, int]:
    """Returns height and width of the image once it is turned upright."""
    turned = header.orientation >= 5
    return (header.width, header.height) if turned else (header.height, header.width)


def shrunk_pixels(data: bytes, header: Header, reasons: tuple[str, ...], plan: Geometry) -> np.ndarray:
    """Decodes an image upright, at no less than the size it will be resized to.

    A JPEG is decoded by the trainer's decoder at 1/2, 1/4 or 1/8 of its size where that is still enough, which
    filters out what the smaller image cannot show and costs less than a whole decode.

    Returns:
      uint8[height, width] for grey images, uint8[height, width, 3] for all others.

    Raises:
      BadImage: it cannot be decoded.
    """
    if header.format != "jpeg" and reasons:
        return normalise.plain_pixels(data, header)
    room = min(size / wanted for size, wanted in zip(plan.source, plan.resized, strict=True))
    ratio = next((ratio for ratio in _RATIOS if header.format == "jpeg" and room >= ratio), 1)
    pixels = normalise.grey_or_rgb(decode_checked(data, ratio), header)
    return normalise.upright(pixels, header.orientation)


def apply(pixels: np.ndarray, plan: Geometry) -> np.ndarray:
    """Returns the pixels resized and cropped as the geometry says.

    Bilinear while an output pixel covers less than two input pixels, the mean of all it covers from there on: the
    exact mean costs five times as much and shows no difference before.

    Args:
      pixels: uint8[height, width] or uint8[height, width, 3], at most eight times smaller than `plan.source`.
      plan: the size to resize to, and what to keep of it.
    """
    height, width = plan.resized
    if pixels.shape[:2] != plan.resized:
        factor = min(pixels.shape[0] / height, pixels.shape[1] / width)
        kind = cv2.INTER_AREA if factor >= 2 else cv2.INTER_LINEAR
        pixels = cv2.resize(np.ascontiguousarray(pixels), (width, height), interpolation=kind)
    rows, columns = plan.stored
    return np.ascontiguousarray(pixels[plan.top : plan.top + rows, plan.left : plan.left + columns])


def as_rgb(pixels: np.ndarray) -> np.ndarray:
    """Returns uint8[height, width, 3] of grey or coloured pixels."""
    return pixels if pixels.ndim == 3 else cv2.cvtColor(pixels, cv2.COLOR_GRAY2RGB)
