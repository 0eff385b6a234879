"""Class masks: any lossless file of class indices -> the one-channel PNG that is stored. Pure functions.

A mask holds numbers, not colours. So nothing here scales, blends, converts or interpolates: a value is kept, or the
mask is refused.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageOps

from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.images.decode import decode_checked
from beam_jobs.images.geometry import Geometry
from beam_jobs.images.header.read import UPRIGHT, Header, open_image, read_header
from beam_jobs.images.resize import upright_size
from beam_jobs.options import ImageLimits

_FORMATS = ("png", "tiff", "bmp")
_INTEGERS = ("I", "I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes of more than 8 bits
_GREYS = {2: 85, 4: 17}  # bits a pixel of a grey PNG -> what Pillow multiplies its values by
_TIFF_BITS, _TIFF_COMPRESSION, _TIFF_PHOTOMETRIC = 258, 259, 262  # TIFF 6.0
_TIFF_JPEG = (6, 7)
_TIFF_WHITE_IS_ZERO = 0
_WHITE = 255
_SHOWN = 8
BINARY_OR_IGNORED = (
    "write 1 for 255 if these are binary masks, saved as black and white; give --mask-ignore 255 if it marks pixels to "
    "ignore"
)


def normalise_mask(data: bytes, geometry: Geometry, limits: ImageLimits) -> tuple[bytes, tuple[int, ...]]:
    """Checks a mask, moves it through the geometry of its image, and makes it what training reads. Deterministic.

    Args:
      data: the file as read: PNG, TIFF or BMP, of the size of the upright source image. A palette means its indices.
      geometry: what becomes of the image.
      limits: how many pixels are decoded, and which class indices there are.

    Returns:
      an 8-bit PNG of one channel, of the size of the stored image, `data` itself when it already is that; and the
      class indices that occur in `data`, 0-255, ascending.

    Raises:
      BadImage: it is no mask of this image; the reason is `BAD_MASK`.
    """
    try:
        header = _gate(data, geometry, limits.max_pixels)
        plain = _is_plain(header)
        # What is stored untouched has to pass the trainer's own decoder.
        pixels = decode_checked(data)[..., 0] if plain else _indices(data, header)
        values = _values(pixels)
        _check_classes(values, limits)
    except BadImage as bad:
        raise BadImage(RejectReason.BAD_MASK, f"mask: {bad.detail}") from bad
    return data if plain and geometry.is_identity else encode(move(pixels, geometry)), values


def move(pixels: np.ndarray, geometry: Geometry) -> np.ndarray:
    """Returns a mask resized, to the nearest pixel, and cropped like its image.

    Args:
      pixels: [height, width] of `geometry.source`.
      geometry: what becomes of the image.

    Returns:
      [height, width] of `geometry.stored`; `pixels` itself when nothing moves.
    """
    if geometry.is_identity:
        return pixels
    rows = _nearest(geometry.source[0], geometry.resized[0], geometry.top, geometry.stored[0])
    columns = _nearest(geometry.source[1], geometry.resized[1], geometry.left, geometry.stored[1])
    return pixels[rows[:, None], columns]


def encode(pixels: np.ndarray) -> bytes:
    """Returns a mask as a PNG of one channel; equal masks give equal bytes.

    Args:
      pixels: uint8[height, width].
    """
    out = io.BytesIO()
    # Runs are all there is to find in a mask: smaller than the default and a third faster.
    Image.fromarray(pixels).save(out, "PNG", compress_type=zlib.Z_RLE)
    return out.getvalue()


def _nearest(source: int, resized: int, start: int, count: int) -> np.ndarray:
    # The source pixel under the centre of each pixel, in whole numbers, so that no rounding depends on a machine.
    return (2 * np.arange(start, start + count, dtype=np.int64) + 1) * source // (2 * resized)


def _gate(data: bytes, geometry: Geometry, max_pixels: int) -> Header:
    """Judges a mask by its header, before anything is decoded."""
    header = read_header(data)
    if header.format not in _FORMATS:
        raise _bad(f"it is a {header.format} file; masks are read from {', '.join(_FORMATS)}, which keep every value")
    height, width = upright_size(header)
    if height * width > max_pixels:
        raise _bad(f"{width}x{height} pixels; max_pixels is {max_pixels}")
    if (height, width) != geometry.source:
        raise _bad(f"{width}x{height} pixels; the image has {geometry.source[1]}x{geometry.source[0]}")
    if header.frames > 1:
        raise _bad(f"it has {header.frames} frames; it must have one")
    return header


def _values(pixels: np.ndarray) -> tuple[int, ...]:
    seen = np.zeros(256, bool)
    for row in pixels:  # all at once, the indices would take eight times the memory of the mask
        seen[row] = True
    return tuple(np.flatnonzero(seen).tolist())


def _check_classes(values: Sequence[int], limits: ImageLimits) -> None:
    if not limits.mask_classes:
        return
    undeclared = [value for value in values if value >= limits.mask_classes and value != limits.mask_ignore]
    if undeclared:
        shown = ", ".join(map(str, undeclared[:_SHOWN])) + ", ..." * (len(undeclared) > _SHOWN)
        advice = f"; {BINARY_OR_IGNORED}" if undeclared == [_WHITE] else ""
        raise _bad(
            f"it holds {shown}; mask_classes {limits.mask_classes} allows 0 to {limits.mask_classes - 1}{advice}"
        )


def _is_plain(header: Header) -> bool:
    kind = (header.format, header.mode, header.bit_depth, header.orientation)
    return kind == ("png", "L", 8, UPRIGHT) and not header.has_alpha


def _indices(data: bytes, header: Header) -> np.ndarray:
    """Decodes the values as they are written in the file, upright: uint8[height, width]."""
    try:
        with open_image(data, header.format) as image:
            if header.format == "tiff":
                _check_tiff(image)
            image.load()
            # Only an orientation that the gate has seen: it has judged the size by it.
            upright = image if header.orientation == UPRIGHT else ImageOps.exif_transpose(image)
            values = np.asarray(upright)
    except BadImage:
        raise
    except Exception as error:  # Pillow's decoders raise whatever they run into
        raise _bad(f"the {header.format} file cannot be decoded: {error}") from error
    if values.ndim == 3:
        values = _one_channel(values, header)
    elif header.mode in _INTEGERS:
        _check_range(values)
    elif header.mode not in ("1", "L", "P"):
        raise _bad(f"pixels of mode {header.mode}; masks hold class indices, whole numbers from 0 to 255")
    elif header.mode == "L" and header.format == "png":
        values = values // _GREYS.get(header.bit_depth, 1)
    return values.astype(np.uint8)


def _one_channel(values: np.ndarray, header: Header) -> np.ndarray:
    """Takes class indices that some tool wrote into every channel apart."""
    colours, has_alpha = {"LA": (1, True), "RGB": (3, False), "RGBA": (3, True)}.get(header.mode, (0, False))
    if not colours or header.bit_depth == 16:
        raise _bad(f"{header.bit_depth}-bit pixels of mode {header.mode}; masks hold class indices, not colours")
    if has_alpha and values[..., -1].min() < 255:
        raise _bad(f"the least opaque pixel has alpha {values[..., -1].min()}; transparent pixels have no class")
    first = values[..., 0]
    if not all(np.array_equal(first, values[..., channel]) for channel in range(1, colours)):
        row, column = np.argwhere((values[..., :colours] != first[..., None]).any(axis=-1))[0]
        found = tuple(values[row, column, :colours].tolist())
        raise _bad(f"row {row}, column {column} has the colour {found}; masks hold class indices, not colours")
    return first


def _check_range(values: np.ndarray) -> None:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 255:
        raise _bad(f"values from {low} to {high}; class indices go from 0 to 255")


def _check_tiff(image: Image.Image) -> None:
    """Refuses what Pillow would invert or scale, or what is not stored exactly."""
    tags = image.tag_v2  # type: ignore[attr-defined]
    if tags.get(_TIFF_COMPRESSION) in _TIFF_JPEG:
        raise _bad("a tiff file with JPEG inside; masks must be stored without loss")
    if tags.get(_TIFF_PHOTOMETRIC) == _TIFF_WHITE_IS_ZERO:
        raise _bad("a tiff file in which 0 means white, so its values are inverted; write it as PNG")
    bits = tags.get(_TIFF_BITS, (1,))[0]
    if bits not in (1, 8, 16, 32):
        raise _bad(f"a tiff file of {bits} bits a pixel; write it as PNG")


def _bad(detail: str) -> BadImage:
    return BadImage(RejectReason.BAD_MASK, detail)
