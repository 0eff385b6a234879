"""Decodes files in the serving graph into the pixels that the ingest stores for them, policy by policy.

Served files have not been through the ingest: a photograph may lie on its side, be transparent, or be larger than what
the model was trained on. The Python code of the ingest cannot run in a graph, so this module does the same with ops.
What it gives is equal to the pixels of the stored record, except where an area average lies between two levels: there
the ingest adds up in another order, and may round to the other one. `tests/trainer/serving/test_serving_table.py`
measures it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import tensorflow as tf

from beam_jobs.images import process
from beam_jobs.images.decode import decode_rgb
from beam_jobs.options import PixelOptions
from trainer.input.orientation import orientation_of, upright
from trainer.ops import IMAGE, Decode, Features

REFUSAL = (
    "image_bytes holds a file that is neither JPEG nor PNG; convert it, or use `feedline predict`, which reads every "
    "format that the ingest does"
)
_MAGIC = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_CMYK = 4  # channels
# Fixed point arithmetic of `cv2.resize`, modules/imgproc/src/resize.cpp: weights of 11 bits, of which the sum over a
# row loses 4, so that the sum over rows fits.
_WEIGHT, _ROW_SHIFT, _COLUMN_SHIFT = 2048, 16, 65536
_EPSILON = 2.0**-52
_LEAST_OVERLAP = 1e-3  # of an input pixel, in the area average of OpenCV


@dataclass(frozen=True)
class DecodeSource(Decode):
    """Decodes a JPEG or PNG file as its stored record decodes: string scalar -> uint8[height, width, 3].

    The image is upright, transparency lies on white, the size is that of the policy, and a JPEG that the ingest
    compresses again is compressed again.

    Attributes:
      pixels: what the ingest did to the pixels.
    """

    pixels: PixelOptions = field(default_factory=PixelOptions)

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class.

        Raises:
          tf.errors.InvalidArgumentError: the file is neither JPEG nor PNG, or cannot be decoded.
        """
        encoded = features[IMAGE]
        starts = {name: tf.equal(tf.strings.substr(encoded, 0, len(magic)), magic) for name, magic in _MAGIC.items()}
        with tf.control_dependencies([tf.debugging.Assert(starts["jpeg"] | starts["png"], [REFUSAL])]):
            encoded = tf.identity(encoded)
        decoded = tf.cond(starts["jpeg"], lambda: _of_jpeg(encoded, self.pixels), lambda: _of_png(encoded, self.pixels))
        return {**features, IMAGE: tf.ensure_shape(decoded, [None, None, 3])}


def _of_png(encoded: tf.Tensor, policy: PixelOptions) -> tf.Tensor:
    pixels = upright(_on_white(tf.io.decode_png(encoded, channels=4)), orientation_of(encoded, "png"))
    plan = _plan(policy, tf.shape(pixels)[:2])
    return _cropped(_resized(pixels, tf.cast(tf.shape(pixels)[:2], tf.float64), plan), plan, policy)


def _of_jpeg(encoded: tf.Tensor, policy: PixelOptions) -> tf.Tensor:
    orientation = orientation_of(encoded, "jpeg")
    shape = tf.io.extract_jpeg_shape(encoded)
    turned = orientation >= 5
    sides = tf.where(turned, shape[1::-1], shape[:2])
    plan = _plan(policy, sides)

    def whole() -> tf.Tensor:
        decoded = decode_rgb(encoded)
        changed = (orientation != 1) | (shape[2] == _CMYK)
        return tf.cond(
            changed, lambda: _again(upright(decoded, orientation), process.KEPT_QUALITY, False), lambda: decoded
        )

    def smaller() -> tf.Tensor:
        ratios = [1, 2, 4, 8]
        room = tf.reduce_min(tf.cast(sides, tf.float64) / tf.cast(plan, tf.float64))
        choice = tf.reduce_sum(tf.cast(room >= tf.constant(ratios[1:], tf.float64), tf.int32))
        decoded = tf.switch_case(choice, [lambda ratio=ratio: decode_rgb(encoded, ratio) for ratio in ratios])
        covered = tf.cast(shape[:2], tf.float64) / tf.cast(tf.gather(ratios, choice), tf.float64)
        stored = _resized(decoded, covered, tf.where(turned, plan[::-1], plan))
        stored = _cropped(upright(stored, orientation), plan, policy)
        return _again(stored, policy.quality, True) if policy.policy == "resize" else stored

    if policy.policy == "copy":
        return whole()
    if policy.policy == "raw":
        return smaller()
    return tf.cond(tf.reduce_all(plan == sides), whole, smaller)


def _again(pixels: tf.Tensor, quality: int, subsample: bool) -> tf.Tensor:
    """Returns pixels as they come back from the JPEG that `normalise.encode` makes of them."""
    encoded = tf.io.encode_jpeg(pixels, format="rgb", quality=quality, chroma_downsampling=subsample)
    return decode_rgb(encoded)


def _on_white(rgba: tf.Tensor) -> tf.Tensor:
    """Returns uint8[height, width, 3] of uint8[height, width, 4]; opaque pixels stay as they are."""
    values = tf.cast(rgba, tf.int32)
    alpha = values[..., 3:]
    return tf.cast((values[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255, tf.uint8)


def _plan(policy: PixelOptions, sides: tf.Tensor) -> tf.Tensor:
    """Returns height and width after the resize of `beam_jobs.images.geometry`, int32[2], of an upright image."""
    if policy.policy == "copy":
        return sides
    size = tf.cast(sides, tf.float64)
    long = policy.policy == "resize" and policy.fit == "inside"
    factor = policy.side_px / (tf.reduce_max(size) if long else tf.reduce_min(size))
    if policy.policy == "resize":
        factor = tf.minimum(tf.constant(1.0, tf.float64), factor)
    return tf.maximum(tf.cast(tf.round(size * factor), tf.int32), 1)


def _cropped(pixels: tf.Tensor, size: tf.Tensor, policy: PixelOptions) -> tf.Tensor:
    """Returns the centre that the policy `raw` stores; everything of other policies."""
    if policy.policy != "raw":
        return pixels
    side = policy.side_px
    begin = (size - side) // 2
    return tf.ensure_shape(tf.slice(pixels, [begin[0], begin[1], 0], [side, side, 3]), [side, side, 3])


def _resized(pixels: tf.Tensor, covered: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Does what `beam_jobs.images.resize` does: the area average from a factor of 2 on, else bilinear.

    Args:
      pixels: uint8[height, width, 3].
      covered: float64[2], rows and columns of it that the image takes up.
      size: int32[2], height and width to return.
    """
    factors = tf.cast(size, tf.float64) / covered
    sides = tf.shape(pixels)[:2]
    # OpenCV copies an image whose size does not change, whatever the factors.
    unchanged = tf.reduce_all(tf.cast(tf.round(tf.cast(sides, tf.float64) * factors), tf.int32) == sides)
    resized = tf.cond(
        tf.reduce_max(factors) <= 0.5,
        lambda: _area(pixels, 1 / factors, size),
        lambda: tf.cond(unchanged, lambda: pixels, lambda: _linear(pixels, 1 / factors, size)),
    )
    return resized[: size[0], : size[1]]


def _area(pixels: tf.Tensor, scales: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns the mean over the input pixels that each output pixel covers, a share of a pixel by its area."""
    # Over whole pixels OpenCV adds up levels and divides once; elsewhere it adds up shares.
    whole = tf.reduce_all(tf.abs(scales - tf.round(scales)) < _EPSILON)
    scales = tf.where(whole, tf.round(scales), scales)
    means = tf.cast(pixels, tf.float32)
    for axis, equation in enumerate(("oi,ijc->ojc", "oi,jic->joc")):
        scale, length = scales[axis], tf.cast(tf.shape(pixels)[axis], tf.float64)
        first = tf.cast(tf.range(size[axis]), tf.float64)[:, None] * scale
        cells = tf.range(length, dtype=tf.float64)[None]
        overlap = tf.minimum(first + scale, cells + 1) - tf.maximum(first, cells)
        overlap = tf.where(overlap > _LEAST_OVERLAP, overlap, tf.zeros_like(overlap))
        weights = tf.where(whole, overlap, overlap / tf.minimum(scale, length - first))
        means = tf.einsum(equation, tf.cast(weights, tf.float32), means)
    means = tf.where(whole, means * tf.cast(1 / tf.reduce_prod(scales), tf.float32), means)
    # Halves go to the even level, but for 2 x 2 pixels OpenCV has code of its own, which rounds them up.
    halves_up = tf.reduce_all(scales == 2)
    return tf.cast(tf.where(halves_up, tf.floor(means + 0.5), tf.round(means)), tf.uint8)


def _linear(pixels: tf.Tensor, scales: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns the bilinear interpolation of OpenCV, in its fixed point arithmetic."""
    values = tf.cast(pixels, tf.int32)
    left, right, of_left, of_right = _neighbours(scales[1], size[1], tf.shape(pixels)[1], at_edge=0.0)
    rows = tf.gather(values, left, axis=1) * of_left[:, None] + tf.gather(values, right, axis=1) * of_right[:, None]
    rows = rows // _ROW_SHIFT
    upper, lower, of_upper, of_lower = _neighbours(scales[0], size[0], tf.shape(pixels)[0], at_edge=None)
    above = tf.gather(rows, upper) * of_upper[:, None, None] // _COLUMN_SHIFT
    below = tf.gather(rows, lower) * of_lower[:, None, None] // _COLUMN_SHIFT
    return tf.cast((above + below + 2) // 4, tf.uint8)


def _neighbours(scale: tf.Tensor, size: tf.Tensor, length: tf.Tensor, at_edge: float | None) -> list[tf.Tensor]:
    """Returns the two input pixels of each output pixel and their weights, int32[size] each.

    Args:
      scale: input pixels an output pixel.
      size: output pixels.
      length: input pixels.
      at_edge: share of the second one where there is none; as it comes out when None.
    """
    place = tf.cast((tf.range(tf.cast(size, tf.float64), dtype=tf.float64) + 0.5) * scale - 0.5, tf.float32)
    first = tf.floor(place)
    share = place - first
    first = tf.cast(first, tf.int32)
    if at_edge is not None:
        share = tf.where((first < 0) | (first >= length - 1), at_edge, share)
    weights = [tf.cast(tf.round(part * _WEIGHT), tf.int32) for part in (1 - share, share)]
    return [tf.clip_by_value(first, 0, length - 1), tf.clip_by_value(first + 1, 0, length - 1), *weights]
