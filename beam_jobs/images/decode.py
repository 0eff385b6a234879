"""The decoder of training and serving. The ingest uses it too, so that training can decode every accepted record."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from beam_jobs.errors import BadImage
from beam_jobs.rejects import RejectReason

if TYPE_CHECKING:
    import tensorflow as tf


def decode_rgb(encoded: tf.Tensor | bytes, ratio: int = 1) -> tf.Tensor:
    """Decodes a JPEG or PNG file as training and serving do; the kernel detects the format by its magic bytes.

    Args:
      encoded: string scalar, a JPEG or PNG file.
      ratio: divisor of height and width of a JPEG, which are rounded up: 1, 2, 4 or 8.

    Returns:
      uint8[height, width, 3], sRGB, 0-255.

    Raises:
      tf.errors.InvalidArgumentError: the file cannot be decoded.
    """
    import tensorflow as tf

    return tf.io.decode_jpeg(encoded, channels=3, ratio=ratio)


def decode_checked(encoded: bytes, ratio: int = 1) -> np.ndarray:
    """Decodes like `decode_rgb`, into an array.

    Raises:
      BadImage: the file cannot be decoded.
    """
    return _decode_array(lambda: decode_rgb(encoded, ratio))


def decode_alpha(encoded: bytes) -> np.ndarray:
    """Decodes a PNG with its transparency, which `decode_rgb` drops.

    Returns:
      uint8[height, width, 4]: RGB, and alpha, which is 255 where the image is opaque.

    Raises:
      BadImage: the file cannot be decoded.
    """
    import tensorflow as tf

    return _decode_array(lambda: tf.io.decode_png(encoded, channels=4))


def _decode_array(decode: Callable[[], tf.Tensor]) -> np.ndarray:
    import tensorflow as tf

    try:
        return np.asarray(memoryview(decode()))  # `.numpy()` would copy the pixels
    except tf.errors.InvalidArgumentError as error:
        raise BadImage(RejectReason.UNDECODABLE, _first_sentence(error.message)) from error


def _first_sentence(message: str) -> str:
    # TensorFlow wraps its message in the names of the op and its node, which say nothing about the image.
    return re.sub(r"^\{\{.*?\}\}\s*", "", message).split(" [Op:")[0].splitlines()[0][:200]
