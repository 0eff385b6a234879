"""The images of foreign records, decoded safely, and their display in a terminal.

As in the ingest, the header is checked first, and decoding runs in a separate process with limited time and memory, so
that a hostile file prevents only its own picture. In a terminal, an upper half block shows two pixels: one in the
foreground colour and one in the background colour.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from beam_jobs.dataset import record
from beam_jobs.errors import BadImage
from beam_jobs.images import header_check, sandbox
from beam_jobs.inspect.summary import FeatureRoles
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.rejects import RejectReason

# Looser limits than in the ingest where that is cheap; but less time, because a user waits for the result.
_LIMITS = ImageLimits(min_side_px=1, max_aspect=10_000.0, max_bytes=64 << 20, max_seconds=10.0)
_BATCH_IMAGES = 16  # sent to a decoder together
_CHANNELS = {"RGB": 3, "L": 1}
_SUFFIXES = {"jpeg": "jpg"}  # format -> suffix of its files, where they differ
NO_IMAGE = "no image"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The picture of a record.

    Attributes:
      image: a small image in RGB; None when the record has no image that can be decoded.
      remark: the reason why `image` is None; else empty.
    """

    image: Image.Image | None = None
    remark: str = ""


def image_file(values: Mapping[str, list], roles: FeatureRoles) -> tuple[str, bytes]:
    """Returns the image of a record as a file, undecoded; raw pixels become a PNG.

    Args:
      values: feature name -> values of the record.
      roles: roles of the features.

    Returns:
      the file suffix for the content, and the bytes.

    Raises:
      BadImage: the record has no image.
    """
    data = image_bytes(values, roles)
    pixels = _raw_image(data, values)
    if pixels is not None:
        stream = io.BytesIO()
        pixels.save(stream, "png")
        return "png", stream.getvalue()
    image_format = header_check.sniff(data)
    return _SUFFIXES.get(image_format, image_format), data


def image_bytes(values: Mapping[str, list], roles: FeatureRoles) -> bytes:
    """Returns the bytes in the image feature of a record; for several images, the first.

    Raises:
      BadImage: the record has no image, or a value that is not bytes.
    """
    images = next((values[name] for name in roles.image if values.get(name)), None)
    if not images or not isinstance(images[0], bytes):
        raise BadImage(RejectReason.NOT_AN_IMAGE, NO_IMAGE)
    return images[0]


def pictures(records: Sequence[Mapping[str, list]], roles: FeatureRoles, side_px: int) -> Iterator[Picture]:
    """Yields the picture of each record.

    Args:
      records: feature name -> values of each record.
      roles: roles of the features.
      side_px: maximum length of the longer side, in pixels; smaller images keep their size.
    """
    for start in range(0, len(records), _BATCH_IMAGES):
        yield from _draw_batch(records[start : start + _BATCH_IMAGES], roles, side_px)


def _draw_batch(records: Sequence[Mapping[str, list]], roles: FeatureRoles, side_px: int) -> list[Picture]:
    pictures_by_index: dict[int, Picture] = {}
    files: dict[int, bytes] = {}
    for index, values in enumerate(records):
        content = _file_or_picture(values, roles, side_px)
        if isinstance(content, Picture):
            pictures_by_index[index] = content
        else:
            files[index] = content
    pixel_options = PixelOptions(policy="resize", fit="inside", side_px=side_px)
    results = sandbox.examine(list(files.values()), _LIMITS, pixel_options, "basic", processes=1) if files else []
    for (index, data), result in zip(files.items(), results, strict=True):
        if isinstance(result, Exception):
            pictures_by_index[index] = Picture(remark=str(result))
        else:
            pictures_by_index[index] = _open_picture(result.stored or data, side_px)
    return [pictures_by_index[index] for index in range(len(records))]


def _file_or_picture(values: Mapping[str, list], roles: FeatureRoles, side_px: int) -> Picture | bytes:
    """Returns the image file to decode; the picture of a record with raw pixels, or without an image."""
    try:
        data = image_bytes(values, roles)
        pixels = _raw_image(data, values)
        if pixels is not None:
            return _shrink(pixels, side_px)
        header_check.sniff(data)
    except BadImage as bad:
        return Picture(remark=bad.detail)
    return data


def _raw_image(data: bytes, values: Mapping[str, list]) -> Image.Image | None:
    """Returns the image of raw pixels; None for other data, and for sizes that do not match the number of bytes."""
    if values.get(record.FORMAT) != [b"raw"]:
        return None
    height, width = ((values.get(side) or [0])[0] for side in (record.HEIGHT, record.WIDTH))
    if not (isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0):
        return None
    mode = next((mode for mode, channels in _CHANNELS.items() if len(data) == height * width * channels), None)
    return Image.frombytes(mode, (width, height), data) if mode else None


def _open_picture(data: bytes, side_px: int) -> Picture:
    """Returns the picture of a file that another process has decoded successfully."""
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            return _shrink(image, side_px)
    except Exception as error:  # noqa: BLE001 - Pillow may reject a file that TensorFlow decodes
        return Picture(remark=f"undecodable: {error}")


def _shrink(image: Image.Image, side_px: int) -> Picture:
    small = image.convert("RGB")
    small.thumbnail((side_px, side_px))
    return Picture(image=small)


BLOCK = "\N{UPPER HALF BLOCK}"
_CUBE = np.array([0, 95, 135, 175, 215, 255])  # levels of the colours 16 to 231 of xterm
_GREYS = np.arange(8, 239, 10)  # levels of the colours 232 to 255


def half_blocks(image: Image.Image, columns: int, rows: int, true_colour: bool) -> str:
    """Returns an image as lines of text for a terminal whose characters are twice as high as wide.

    Args:
      image: an image in RGB.
      columns: characters per line that are available.
      rows: lines that are available.
      true_colour: whether the terminal supports 24-bit colours; otherwise the nearest 256 colours of xterm are used.

    Returns:
      the lines; each resets the colours at its end.
    """
    factor = min(columns / image.width, 2 * rows / image.height)
    if factor > 1:
        factor = int(factor)  # enlarge all pixels equally
    width, height = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BOX if factor < 1 else Image.Resampling.NEAREST))
    if height % 2:
        pixels = np.concatenate([pixels, pixels[-1:]])  # the last line of text shows this row twice
    if true_colour:
        codes = [[f"2;{red};{green};{blue}" for red, green, blue in row] for row in pixels.tolist()]
    else:
        codes = [[f"5;{number}" for number in row] for row in nearest_256(pixels).tolist()]
    lines = []
    for upper, lower in zip(codes[::2], codes[1::2], strict=True):
        cells = (f"\x1b[38;{front};48;{back}m{BLOCK}" for front, back in zip(upper, lower, strict=True))
        lines.append("".join(cells) + "\x1b[0m")
    return os.linesep.join(lines)


def nearest_256(pixels: np.ndarray) -> np.ndarray:
    """Returns the nearest colours in the cube and the greys of the 256 colours of xterm.

    Args:
      pixels: uint8[..., 3], RGB.

    Returns:
      int64[...], 16-255.
    """
    values = pixels.astype(np.int64)
    cube_indices = np.abs(values[..., None] - _CUBE).argmin(-1)
    cube_colours = _CUBE[cube_indices]
    grey_indices = np.abs(values.mean(-1)[..., None] - _GREYS).argmin(-1)
    nearest_greys = _GREYS[grey_indices][..., None]
    is_grey_nearer = ((values - nearest_greys) ** 2).sum(-1) < ((values - cube_colours) ** 2).sum(-1)
    return np.where(is_grey_nearer, 232 + grey_indices, 16 + cube_indices @ np.array([36, 6, 1]))
