"""Conversion of images that the trainer's decoder cannot decode correctly to upright 8-bit grey or RGB, and the resize.

A JPEG is resized in two steps: a decode that scales in the JPEG transform, and a resize to the exact size.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image

from beam_jobs.errors import BadImage
from beam_jobs.images.decode import decode_alpha, decode_checked
from beam_jobs.images.header_check import UPRIGHT, Header, open_image
from beam_jobs.options import PixelOptions
from beam_jobs.rejects import RejectReason

STORED_FORMATS = ("jpeg", "png")  # formats that the trainer's decoder reads on every code path
_LOSSY_FORMATS = ("jpeg", "webp")  # encoded as JPEG, because PNG would multiply their size without any gain
_GREY_MODES = ("1", "L", "LA", "I;16")
# EXIF orientation -> whether to flip left to right first, then quarter turns clockwise. EXIF 2.32, tag 0x0112.
_TURNS = {2: (True, 0), 3: (False, 2), 4: (True, 2), 5: (True, 3), 6: (False, 1), 7: (True, 1), 8: (False, 3)}
_ROTATIONS = {1: cv2.ROTATE_90_CLOCKWISE, 2: cv2.ROTATE_180, 3: cv2.ROTATE_90_COUNTERCLOCKWISE}
_BAND = 1 << 18  # pixels converted at a time, so that intermediate images are small
_BMP_CODING = 30  # offset of the coding in the header
_RLE = (1, 2)  # codings of a BMP: RLE8, RLE4
_TIFF_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """A resize followed by a crop, which is applied to an image, its masks and its boxes.

    Attributes:
      source: height and width of the upright source image, in pixels.
      resized: height and width after the resize.
      top: number of rows cut off at the top, after the resize.
      left: number of columns cut off on the left, after the resize.
      stored: height and width of the stored image.
    """

    source: tuple[int, int]
    resized: tuple[int, int]
    top: int
    left: int
    stored: tuple[int, int]

    @property
    def is_identity(self) -> bool:
        """Whether the stored image has the pixels of the source image, unchanged."""
        return self.source == self.resized == self.stored


def geometry(pixels: PixelOptions, height: int, width: int) -> Geometry:
    """Returns the resize and crop that a policy requires for an upright image.

    `resize` never enlarges. `raw` stores all images in the same size and may enlarge: it resizes the short side to
    `side_px` and crops to the centre.

    Args:
      pixels: the policy.
      height: rows of the upright image, in pixels, at least 1.
      width: columns of the upright image, in pixels, at least 1.
    """
    source = (height, width)
    if pixels.policy == "raw":
        side = pixels.side_px
        resized = _scaled_size(source, side / min(source))
        top, left = (resized[0] - side) // 2, (resized[1] - side) // 2
        return Geometry(source=source, resized=resized, top=top, left=left, stored=(side, side))
    resized = source
    if pixels.policy == "resize":
        fitted_side = min(source) if pixels.fit == "short" else max(source)
        resized = _scaled_size(source, min(1.0, pixels.side_px / fitted_side))
    return Geometry(source=source, resized=resized, top=0, left=0, stored=resized)


def _scaled_size(size: tuple[int, int], factor: float) -> tuple[int, int]:
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def conversion_reasons(data: bytes, header: Header) -> tuple[str, ...]:
    """Returns the reasons why an image cannot be stored unchanged; empty when it can.

    Raises:
      BadImage: the image may be transparent and cannot be decoded.
    """
    reasons = []
    if header.format not in STORED_FORMATS:
        reasons.append("format")
    if header.orientation != UPRIGHT:
        reasons.append("exif_orientation")
    if header.mode in ("CMYK", "LAB", "YCbCr"):
        reasons.append("colour_space")
    if header.bit_depth > 8:
        reasons.append("sixteen_bit")
    if header.frames > 1:
        reasons.append("animated")
    if header.has_alpha and (reasons or decode_alpha(data)[..., 3].min() < 255):
        reasons.append("alpha")
    return tuple(reasons)


def decode_converted(data: bytes, header: Header) -> np.ndarray:
    """Decodes any supported image: its first frame, upright, with transparent pixels blended over white.

    The trainer's decoder decodes JPEG and PNG, because another one may return other colours or accept other files.

    Returns:
      uint8[height, width] for grey images, uint8[height, width, 3] for all others.

    Raises:
      BadImage: the image cannot be decoded.
    """
    if header.format == "jpeg" or (header.format == "png" and not header.has_alpha):
        return upright(grey_or_rgb(decode_checked(data, header=header), header), header.orientation)
    if header.format == "png":
        pixels = decode_alpha(data)
        return upright(_blend_on_white(pixels[..., ::3] if header.mode in _GREY_MODES else pixels), header.orientation)
    with _decoder_errors(header):
        return (_decode_with_cv2 if _is_faster_with_cv2(data, header) else _decode_with_pillow)(data, header)


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Returns the pixels of an image turned upright.

    Args:
      pixels: uint8[height, width] or uint8[height, width, 3].
      orientation: EXIF orientation, 1-8.
    """
    is_mirrored, turns = _TURNS.get(orientation, (False, 0))
    if is_mirrored:
        pixels = cv2.flip(pixels, 1)
    return cv2.rotate(pixels, _ROTATIONS[turns]) if turns else pixels


def grey_or_rgb(pixels: np.ndarray, header: Header) -> np.ndarray:
    """Returns one channel of the decoded RGB, uint8[height, width], when the file is grey; else the pixels as given."""
    return np.ascontiguousarray(pixels[..., 0]) if header.mode in _GREY_MODES else pixels


def encode(pixels: np.ndarray, source_format: str, quality: int, subsample: bool = False) -> bytes:
    """Encodes pixels without metadata: as JPEG when they come from a lossy format, else as PNG. Deterministic.

    Args:
      pixels: uint8[height, width] or uint8[height, width, 3].
      source_format: format of the source file.
      quality: quality of a JPEG, 1-100.
      subsample: whether a JPEG stores its chroma at half the resolution (4:2:0).
    """
    if source_format in _LOSSY_FORMATS:
        return _encode_jpeg(pixels, quality, subsample)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def _encode_jpeg(pixels: np.ndarray, quality: int, subsample: bool) -> bytes:
    # OpenCV's encoder is a quarter faster than Pillow's, on the same libjpeg-turbo.
    sampling = cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420 if subsample else cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444
    options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling]
    encoded = cv2.imencode(".jpg", pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), options)[1]
    return encoded.tobytes()


def _is_faster_with_cv2(data: bytes, header: Header) -> bool:
    """Returns whether OpenCV decodes an image to the pixels of Pillow at a much lower cost.

    Pillow keeps four copies of a still WebP and decodes a run-length encoded BMP in Python, at 4 MB per second.
    """
    return (header.format == "webp" and header.frames == 1) or (header.format == "bmp" and data[_BMP_CODING] in _RLE)


def _decode_with_cv2(data: bytes, header: Header) -> np.ndarray:
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION)
    if pixels is None:
        raise BadImage(RejectReason.UNDECODABLE, f"{header.format}: the pixels cannot be decoded")
    if pixels.ndim == 2:
        return pixels
    has_alpha = pixels.shape[2] == 4
    cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGBA if has_alpha else cv2.COLOR_BGR2RGB, dst=pixels)
    return upright(_blend_on_white(pixels) if has_alpha else pixels, header.orientation)


def _decode_with_pillow(data: bytes, header: Header) -> np.ndarray:
    with open_image(data, header.format) as image:
        tags = getattr(image, "tag_v2", {})
        is_inverted = header.bit_depth > 8 and tags.get(_TIFF_PHOTOMETRIC) == _WHITE_IS_ZERO
        image.load()
        has_alpha = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
        if image.mode.startswith("I"):
            pixels = _convert_strips(image, (), lambda strip: _to_eight_bits(strip, header.bit_depth, is_inverted))
        elif image.mode == "LA":
            pixels = _convert_strips(image, (), lambda strip: _blend_on_white(np.asarray(strip)))
        elif has_alpha:
            pixels = _convert_strips(image, (3,), lambda strip: _blend_on_white(np.asarray(strip.convert("RGBA"))))
        elif image.mode in ("1", "L"):
            pixels = _convert_strips(image, (), lambda strip: np.asarray(strip.convert("L")))
        else:
            pixels = _convert_strips(image, (3,), lambda strip: np.asarray(strip.convert("RGB")))
    # Pillow has already rotated a TIFF.
    return pixels if header.format == "tiff" else upright(pixels, header.orientation)


def _convert_strips(
    image: Image.Image, channels: tuple[int, ...], convert: Callable[[Image.Image], np.ndarray]
) -> np.ndarray:
    """Returns the pixels of an image, converted one strip of rows at a time."""
    pixels = np.empty((image.height, image.width, *channels), np.uint8)
    rows = max(1, _BAND // image.width)
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        pixels[top:bottom] = convert(image.crop((0, top, image.width, bottom)))
    return pixels


def _to_eight_bits(strip: Image.Image, bits: int, is_inverted: bool) -> np.ndarray:
    """Scales 12 or 16 bits to 8; Pillow's own conversion clips instead."""
    values = (np.asarray(strip) >> (bits - 8)).astype(np.uint8)
    return 255 - values if is_inverted else values


def _blend_on_white(pixels: np.ndarray) -> np.ndarray:
    """Returns grey or RGB pixels, blended over white by their last channel, which is alpha."""
    colours = np.empty((*pixels.shape[:2], pixels.shape[2] - 1), np.uint8)
    rows = max(1, _BAND // pixels.shape[1])
    for top in range(0, len(pixels), rows):
        strip = pixels[top : top + rows].astype(np.uint16)
        alpha = strip[..., -1:]
        colours[top : top + rows] = (strip[..., :-1] * alpha + 255 * (255 - alpha) + 127) // 255
    return colours if colours.shape[2] == 3 else colours[..., 0]


@contextlib.contextmanager
def _decoder_errors(header: Header) -> Iterator[None]:
    try:
        yield
    except BadImage:
        raise
    except Exception as error:  # decoders raise exceptions of any type
        raise BadImage(RejectReason.UNDECODABLE, f"{header.format}: {error}") from error


_RATIOS = (8, 4, 2)  # the divisors of height and width that the decoder applies at no cost


def upright_size(header: Header) -> tuple[int, int]:
    """Returns height and width of the upright image, in pixels."""
    is_on_its_side = header.orientation >= 5
    return (header.width, header.height) if is_on_its_side else (header.height, header.width)


def decode_ratio(limit: float) -> int:
    """Returns the largest divisor of height and width, 1, 2, 4 or 8, of a JPEG decode that is at most `limit`."""
    return next((ratio for ratio in _RATIOS if limit >= ratio), 1)


def resized_pixels(data: bytes, header: Header, conversion_reasons: tuple[str, ...], geometry: Geometry) -> np.ndarray:
    """Decodes an image, turns it upright, and resizes and crops it.

    The trainer's decoder decodes a JPEG at 1/2, 1/4 or 1/8 of its size when that is at least the resized size. This
    removes detail that the smaller image cannot represent, and costs less than a full decode.

    Returns:
      the stored image: uint8[height, width] for grey images, uint8[height, width, 3] for all others.

    Raises:
      BadImage: the image cannot be decoded.
    """
    if header.format == "jpeg":
        pixels = _decode_resized_jpeg(data, header, geometry)
    elif conversion_reasons:
        pixels = _resize(decode_converted(data, header), geometry.source, geometry.resized)
    else:
        pixels = _resize(grey_or_rgb(decode_checked(data), header), geometry.source, geometry.resized)
    rows, columns = geometry.stored
    return np.ascontiguousarray(pixels[geometry.top : geometry.top + rows, geometry.left : geometry.left + columns])


def _decode_resized_jpeg(data: bytes, header: Header, geometry: Geometry) -> np.ndarray:
    ratio = decode_ratio(min(size / target for size, target in zip(geometry.source, geometry.resized, strict=True)))
    pixels = grey_or_rgb(decode_checked(data, ratio, header), header)
    # Rounding up adds pixels at the right and the bottom of the stored image, so it is resized before it is rotated.
    size = geometry.resized[::-1] if header.orientation >= 5 else geometry.resized
    pixels = _resize(pixels, (header.height / ratio, header.width / ratio), size)
    return upright(pixels, header.orientation)


def _resize(pixels: np.ndarray, covered: tuple[float, float], size: tuple[int, int]) -> np.ndarray:
    """Returns the pixels resized.

    A reduction by two or more averages the input pixels that an output pixel covers. Any other resize is bilinear: the
    exact mean takes four times as long and improves a photograph by at most 2.4 of 255 levels.

    Args:
      pixels: uint8[height, width] or uint8[height, width, 3].
      covered: rows and columns that the image takes up in `pixels`; may be fractions.
      size: height and width of the result, in pixels.
    """
    factors = [target / extent for target, extent in zip(size, covered, strict=True)]
    if pixels.shape[:2] == size and factors == [1, 1]:
        return pixels
    interpolation = cv2.INTER_AREA if max(factors) <= 0.5 else cv2.INTER_LINEAR
    # With factors instead of a size, OpenCV lets the last row and column extend over the edge of the image.
    resized = cv2.resize(pixels, None, fx=factors[1], fy=factors[0], interpolation=interpolation)
    return resized[: size[0], : size[1]]


def as_rgb(pixels: np.ndarray) -> np.ndarray:
    """Returns grey or RGB pixels as uint8[height, width, 3]."""
    return pixels if pixels.ndim == 3 else cv2.cvtColor(pixels, cv2.COLOR_GRAY2RGB)
