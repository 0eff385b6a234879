"""Images made plain, upright, 8 bit, grey or RGB, where the trainer's decoder could not read them; and their resize.

A resize is a decode that is scaled inside the JPEG transform, then one resize to the exact size.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator

import cv2
import numpy as np
from PIL import Image

from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.images.decode import decode_alpha, decode_checked
from beam_jobs.images.geometry import Geometry
from beam_jobs.images.headers import UPRIGHT, Header, open_image

STORED_FORMATS = ("jpeg", "png")  # what the trainer's decoder reads on every code path
_LOSSY = ("jpeg", "webp")  # re-encoding these as PNG would multiply their size for nothing
_GREYS = ("1", "L", "LA", "I;16")
# EXIF orientation -> flip left to right first, then quarter turns clockwise. EXIF 2.32, tag 0x0112.
_TURNS = {2: (True, 0), 3: (False, 2), 4: (True, 2), 5: (True, 3), 6: (False, 1), 7: (True, 1), 8: (False, 3)}
_ROTATIONS = {1: cv2.ROTATE_90_CLOCKWISE, 2: cv2.ROTATE_180, 3: cv2.ROTATE_90_COUNTERCLOCKWISE}
_BAND = 1 << 18  # pixels made plain at a time, so that of every intermediate image only a strip exists
_BMP_CODING = 30  # byte of the header
_RUNS = (1, 2)  # RLE8, RLE4
_TIFF_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0


def reasons(data: bytes, header: Header) -> tuple[str, ...]:
    """Returns why an image cannot be stored as it is; empty when it can.

    Raises:
      BadImage: transparency has to be looked for, and the image cannot be decoded.
    """
    found = []
    if header.format not in STORED_FORMATS:
        found.append("format")
    if header.orientation != UPRIGHT:
        found.append("exif_orientation")
    if header.mode in ("CMYK", "LAB", "YCbCr"):
        found.append("colour_space")
    if header.bit_depth > 8:
        found.append("sixteen_bit")
    if header.frames > 1:
        found.append("animated")
    if header.has_alpha and (found or not _opaque(data)):
        found.append("alpha")
    return tuple(found)


def plain_pixels(data: bytes, header: Header) -> np.ndarray:
    """Decodes any supported image: first frame, upright, transparency over white.

    JPEG and PNG go through the trainer's decoder: no other decoder promises to agree with it about colours and damage.

    Returns:
      uint8[height, width] for grey images, uint8[height, width, 3] for all others.

    Raises:
      BadImage: it cannot be decoded.
    """
    if header.format == "jpeg" or (header.format == "png" and not header.has_alpha):
        return upright(grey_or_rgb(decode_checked(data), header), header.orientation)
    if header.format == "png":
        pixels = decode_alpha(data)
        return upright(_on_white(pixels[..., ::3] if header.mode in _GREYS else pixels), header.orientation)
    with _decoder_errors(header):
        return (_with_cv2 if _is_for_cv2(data, header) else _with_pillow)(data, header)


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Returns the pixels of an image turned upright.

    Args:
      pixels: uint8[height, width] or uint8[height, width, 3].
      orientation: EXIF orientation, 1-8.
    """
    mirrored, turns = _TURNS.get(orientation, (False, 0))
    if mirrored:
        pixels = cv2.flip(pixels, 1)
    return cv2.rotate(pixels, _ROTATIONS[turns]) if turns else pixels


def grey_or_rgb(pixels: np.ndarray, header: Header) -> np.ndarray:
    """Returns uint8[height, width] of the decoded RGB when the file was grey, the pixels themselves when not."""
    return np.ascontiguousarray(pixels[..., 0]) if header.mode in _GREYS else pixels


def encode(pixels: np.ndarray, source_format: str, quality: int, subsample: bool = False) -> bytes:
    """Encodes pixels without metadata: as JPEG when they come from a lossy format, else as PNG. Deterministic.

    Args:
      pixels: uint8[height, width] or uint8[height, width, 3].
      source_format: format of the file they were read from.
      quality: of JPEG, 1-100.
      subsample: whether a JPEG stores its chroma at half the resolution (4:2:0).
    """
    if source_format in _LOSSY:
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


def _opaque(data: bytes) -> bool:
    return decode_alpha(data)[..., 3].min() == 255


def _is_for_cv2(data: bytes, header: Header) -> bool:
    """Whether OpenCV decodes an image as Pillow does, but with much less.

    Of a still WebP Pillow keeps four copies. A BMP of runs it decodes in Python, 4 MB a second.
    """
    return (header.format == "webp" and header.frames == 1) or (header.format == "bmp" and data[_BMP_CODING] in _RUNS)


def _with_cv2(data: bytes, header: Header) -> np.ndarray:
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION)
    if pixels is None:
        raise BadImage(RejectReason.UNDECODABLE, f"{header.format}: the pixels cannot be decoded")
    if pixels.ndim == 2:
        return pixels
    has_alpha = pixels.shape[2] == 4
    cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGBA if has_alpha else cv2.COLOR_BGR2RGB, dst=pixels)
    return upright(_on_white(pixels) if has_alpha else pixels, header.orientation)


def _with_pillow(data: bytes, header: Header) -> np.ndarray:
    with open_image(data, header.format) as image:
        tags = getattr(image, "tag_v2", {})
        inverted = header.bit_depth > 8 and tags.get(_TIFF_PHOTOMETRIC) == _WHITE_IS_ZERO
        image.load()
        has_alpha = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
        if image.mode.startswith("I"):
            pixels = _in_bands(image, (), lambda band: _eight_bits(band, header.bit_depth, inverted))
        elif image.mode == "LA":
            pixels = _in_bands(image, (), lambda band: _on_white(np.asarray(band)))
        elif has_alpha:
            pixels = _in_bands(image, (3,), lambda band: _on_white(np.asarray(band.convert("RGBA"))))
        elif image.mode in ("1", "L"):
            pixels = _in_bands(image, (), lambda band: np.asarray(band.convert("L")))
        else:
            pixels = _in_bands(image, (3,), lambda band: np.asarray(band.convert("RGB")))
    # Pillow has turned a TIFF already.
    return pixels if header.format == "tiff" else upright(pixels, header.orientation)


def _in_bands(image: Image.Image, channels: tuple[int, ...], plain: Callable[[Image.Image], np.ndarray]) -> np.ndarray:
    """Returns the pixels of an image, each strip of it made plain on its own."""
    pixels = np.empty((image.height, image.width, *channels), np.uint8)
    rows = max(1, _BAND // image.width)
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        pixels[top:bottom] = plain(image.crop((0, top, image.width, bottom)))
    return pixels


def _eight_bits(band: Image.Image, bits: int, inverted: bool) -> np.ndarray:
    """Scales 12 or 16 bits to 8; Pillow's own conversion clips instead."""
    values = (np.asarray(band) >> (bits - 8)).astype(np.uint8)
    return 255 - values if inverted else values


def _on_white(pixels: np.ndarray) -> np.ndarray:
    """Returns grey or RGB of pixels whose last channel is alpha, laid on white."""
    colours = np.empty((*pixels.shape[:2], pixels.shape[2] - 1), np.uint8)
    rows = max(1, _BAND // pixels.shape[1])
    for top in range(0, len(pixels), rows):
        band = pixels[top : top + rows].astype(np.uint16)
        alpha = band[..., -1:]
        colours[top : top + rows] = (band[..., :-1] * alpha + 255 * (255 - alpha) + 127) // 255
    return colours if colours.shape[2] == 3 else colours[..., 0]


@contextlib.contextmanager
def _decoder_errors(header: Header) -> Iterator[None]:
    try:
        yield
    except BadImage:
        raise
    except Exception as error:  # decoders raise whatever they run into
        raise BadImage(RejectReason.UNDECODABLE, f"{header.format}: {error}") from error


_RATIOS = (8, 4, 2)  # what the decoder can divide height and width by at no cost


def upright_size(header: Header) -> tuple[int, int]:
    """Returns height and width of the image once it is turned upright."""
    turned = header.orientation >= 5
    return (header.width, header.height) if turned else (header.height, header.width)


def decode_ratio(room: float) -> int:
    """Returns what a decode of a JPEG may divide height and width by: 1, 2, 4 or 8, at most `room`."""
    return next((ratio for ratio in _RATIOS if room >= ratio), 1)


def resized_pixels(data: bytes, header: Header, reasons: tuple[str, ...], plan: Geometry) -> np.ndarray:
    """Decodes an image and moves it, upright, to where the geometry says.

    A JPEG is decoded by the trainer's decoder at 1/2, 1/4 or 1/8 of its size where that is still enough, which
    filters out what the smaller image cannot show and costs less than a whole decode.

    Returns:
      uint8[height, width] for grey images, uint8[height, width, 3] for all others, of the size that is stored.

    Raises:
      BadImage: it cannot be decoded.
    """
    if header.format == "jpeg":
        pixels = _resized_jpeg(data, header, plan)
    elif reasons:
        pixels = _resize(plain_pixels(data, header), plan.source, plan.resized)
    else:
        pixels = _resize(grey_or_rgb(decode_checked(data), header), plan.source, plan.resized)
    rows, columns = plan.stored
    return np.ascontiguousarray(pixels[plan.top : plan.top + rows, plan.left : plan.left + columns])


def _resized_jpeg(data: bytes, header: Header, plan: Geometry) -> np.ndarray:
    ratio = decode_ratio(min(size / wanted for size, wanted in zip(plan.source, plan.resized, strict=True)))
    pixels = grey_or_rgb(decode_checked(data, ratio), header)
    # What the decoder rounds up lies at the end of the rows as stored, so they are resized before they are turned.
    size = plan.resized[::-1] if header.orientation >= 5 else plan.resized
    pixels = _resize(pixels, (header.height / ratio, header.width / ratio), size)
    return upright(pixels, header.orientation)


def _resize(pixels: np.ndarray, covered: tuple[float, float], size: tuple[int, int]) -> np.ndarray:
    """Returns the pixels resized.

    The mean of all that an output pixel covers where that is two input pixels or more. Below it is bilinear: there the
    exact mean takes four times as long, and brings a photograph nearer to the best by up to 2.4 of 255 levels.

    Args:
      pixels: uint8[height, width] or uint8[height, width, 3].
      covered: rows and columns of it that the image takes up, which need not be whole.
      size: height and width to return.
    """
    factors = [wanted / room for wanted, room in zip(size, covered, strict=True)]
    if pixels.shape[:2] == size and factors == [1, 1]:
        return pixels
    kind = cv2.INTER_AREA if max(factors) <= 0.5 else cv2.INTER_LINEAR
    # Given factors instead of a size, OpenCV lets the last row and column reach over the edge of the image.
    resized = cv2.resize(pixels, None, fx=factors[1], fy=factors[0], interpolation=kind)
    return resized[: size[0], : size[1]]


def as_rgb(pixels: np.ndarray) -> np.ndarray:
    """Returns uint8[height, width, 3] of grey or coloured pixels."""
    return pixels if pixels.ndim == 3 else cv2.cvtColor(pixels, cv2.COLOR_GRAY2RGB)
