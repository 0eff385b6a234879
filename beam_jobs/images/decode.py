"""The decoder of training and serving, and a faster one for the ingest with the same pixels and the same rejects."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg

from beam_jobs.errors import BadImage
from beam_jobs.images.header_formats import Header
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


def decode_checked(encoded: bytes, ratio: int = 1, header: Header | None = None) -> np.ndarray:
    """Returns the pixels of `decode_rgb` as an array; rejects the same files.

    Args:
      encoded: a JPEG or PNG file.
      ratio: see `decode_rgb`.
      header: header of the file, if known; it makes the decoding of a baseline JPEG faster.

    Raises:
      BadImage: the file cannot be decoded.
    """
    if header and header.format == "png":  # the same kernel as in `decode_rgb`, in half of the time
        import tensorflow as tf

        return _decode_array(lambda: tf.io.decode_png(tf.constant(encoded), channels=3))
    pixels = decode_sound_jpeg(encoded, header, ratio) if header else None
    return _decode_array(lambda: decode_rgb(encoded, ratio)) if pixels is None else pixels


def decode_sound_jpeg(encoded: bytes, header: Header, ratio: int = 1) -> np.ndarray | None:
    """Decodes an undamaged JPEG with libjpeg-turbo, without TensorFlow, to the pixels of `decode_rgb`.

    Returns:
      the pixels as `decode_rgb` returns them; None if TensorFlow must decode the file: it is damaged, not a JPEG, CMYK,
      which TensorFlow converts itself, or progressive, where TensorFlow returns other pixels for damaged scans.
    """
    if header.format != "jpeg" or header.progressive or header.mode == "CMYK":
        return None
    rows, columns = -(-header.height // ratio), -(-header.width // ratio)
    try:  # with TensorFlow's defaults, and the smallest scale of the decoder that gives at least these sizes
        pixels = simplejpeg.decode_jpeg(encoded, fastdct=True, min_height=rows, min_width=columns)
    except ValueError:  # raised also if libjpeg-turbo only warns
        return None
    return pixels if pixels.shape[:2] == (rows, columns) else None


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
    # TensorFlow puts the names of the op and its node around the message; they do not describe the image.
    return re.sub(r"^\{\{.*?\}\}\s*", "", message).split(" [Op:")[0].splitlines()[0][:200]
