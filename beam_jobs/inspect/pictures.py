"""The images of foreign records, as far as it is safe to look at them, and how they are drawn with characters.

The header is judged first, and decoding happens in a process of its own with bounded time and memory, as in the ingest:
what a hostile file does there costs its own picture and a remark. The upper half block shows two pixels, one in its own
colour and one behind it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from beam_jobs.dataset import record
from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.images import headers, sandbox
from beam_jobs.inspect.summary import FeatureRoles
from beam_jobs.options import ImageLimits, PixelOptions

# Looser than the ingest where that costs nothing, tighter where it costs time: somebody waits before a terminal.
_LIMITS = ImageLimits(min_side_px=1, max_aspect=10_000.0, max_bytes=64 << 20, max_seconds=10.0)
_AT_A_TIME = 16  # images sent to a decoder together
_CHANNELS = {"RGB": 3, "L": 1}
_SUFFIXES = {"jpeg": "jpg"}

NO_IMAGE = "no image"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What can be seen of a record.

    Attributes:
      image: in RGB, small; None when it cannot or must not be decoded.
      remark: why there is none.
    """

    image: Image.Image | None = None
    remark: str = ""


def image_file(values: Mapping[str, list], roles: FeatureRoles) -> tuple[str, bytes]:
    """Returns the image of a record as a file, undecoded; bare pixels become a PNG.

    Args:
      values: the record.
      roles: of its features.

    Returns:
      the suffix that fits its content, and its bytes.

    Raises:
      BadImage: it has none.
    """
    data = image_bytes(values, roles)
    pixels = _bare(data, values)
    if pixels is not None:
        out = io.BytesIO()
        pixels.save(out, "png")
        return "png", out.getvalue()
    name = headers.sniff(data)
    return _SUFFIXES.get(name, name), data


def image_bytes(values: Mapping[str, list], roles: FeatureRoles) -> bytes:
    """Returns what a record holds in the feature of the image; of several images the first.

    Raises:
      BadImage: that is nothing, or no bytes.
    """
    found = next((values[name] for name in roles.image if values.get(name)), None)
    if not found or not isinstance(found[0], bytes):
        raise BadImage(RejectReason.NOT_AN_IMAGE, NO_IMAGE)
    return found[0]


def pictures(records: Sequence[Mapping[str, list]], roles: FeatureRoles, side_px: int) -> Iterator[Picture]:
    """Yields what can be seen of each record.

    Args:
      records: feature name -> values.
      roles: of their features.
      side_px: long side of a picture at most; smaller ones keep their size.
    """
    for start in range(0, len(records), _AT_A_TIME):
        yield from _some(records[start : start + _AT_A_TIME], roles, side_px)


def _some(records: Sequence[Mapping[str, list]], roles: FeatureRoles, side_px: int) -> list[Picture]:
    found: dict[int, Picture] = {}
    files: dict[int, bytes] = {}
    for place, values in enumerate(records):
        one = _undecoded(values, roles, side_px)
        if isinstance(one, Picture):
            found[place] = one
        else:
            files[place] = one
    policy = PixelOptions(policy="resize", fit="inside", side_px=side_px)
    answers = sandbox.examine(list(files.values()), _LIMITS, policy, "basic", processes=1) if files else []
    for place, answer in zip(files, answers, strict=True):
        found[place] = Picture(remark=str(answer)) if isinstance(answer, BadImage) else _opened(answer[0], side_px)
    return [found[place] for place in range(len(records))]


def _undecoded(values: Mapping[str, list], roles: FeatureRoles, side_px: int) -> Picture | bytes:
    """Returns the file that is to be decoded; a picture where there is nothing to decode."""
    try:
        data = image_bytes(values, roles)
        pixels = _bare(data, values)
        if pixels is not None:
            return _small(pixels, side_px)
        headers.sniff(data)
    except BadImage as bad:
        return Picture(remark=bad.detail)
    return data


def _bare(data: bytes, values: Mapping[str, list]) -> Image.Image | None:
    """Returns the image of bare pixels; None for anything else. Sizes must fit the bytes before any is read."""
    if values.get(record.FORMAT) != [b"raw"]:
        return None
    height, width = ((values.get(side) or [0])[0] for side in (record.HEIGHT, record.WIDTH))
    if not (isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0):
        return None
    mode = next((mode for mode, channels in _CHANNELS.items() if len(data) == height * width * channels), None)
    return Image.frombytes(mode, (width, height), data) if mode else None


def _opened(data: bytes, side_px: int) -> Picture:
    """Returns the picture of a file that was decoded once, in another process."""
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            return _small(image, side_px)
    except Exception as error:  # noqa: BLE001 - Pillow need not like what TensorFlow could decode
        return Picture(remark=f"undecodable: {error}")


def _small(image: Image.Image, side_px: int) -> Picture:
    small = image.convert("RGB")
    small.thumbnail((side_px, side_px))
    return Picture(image=small)


BLOCK = "\N{UPPER HALF BLOCK}"

_RESET = "\x1b[0m"
_CUBE = np.array([0, 95, 135, 175, 215, 255])  # levels of the colours 16 to 231 of xterm
_GREYS = np.arange(8, 239, 10)  # levels of the colours 232 to 255


def half_blocks(image: Image.Image, columns: int, rows: int, true_colour: bool) -> str:
    """Returns the lines that show an image.

    Args:
      image: in RGB.
      columns: characters that are there in a line.
      rows: lines that are there.
      true_colour: whether the terminal takes colours of 24 bits; otherwise the nearest of the 256 of xterm are used.

    Returns:
      lines, each ending in the colours of the terminal. A character is taken to be twice as high as wide.
    """
    factor = min(columns / image.width, 2 * rows / image.height)
    if factor > 1:
        factor = int(factor)  # so that all pixels are enlarged alike
    width, height = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BOX if factor < 1 else Image.Resampling.NEAREST))
    if height % 2:
        pixels = np.concatenate([pixels, pixels[-1:]])  # the last line shows it twice
    codes = _true_colour(pixels) if true_colour else _nearest_colour(pixels)
    lines = []
    for upper, lower in zip(codes[::2], codes[1::2], strict=True):
        cells = (f"\x1b[38;{one};48;{other}m{BLOCK}" for one, other in zip(upper, lower, strict=True))
        lines.append("".join(cells) + _RESET)
    return os.linesep.join(lines)


def _true_colour(pixels: np.ndarray) -> list[list[str]]:
    return [[f"2;{red};{green};{blue}" for red, green, blue in row] for row in pixels.tolist()]


def _nearest_colour(pixels: np.ndarray) -> list[list[str]]:
    return [[f"5;{number}" for number in row] for row in nearest_256(pixels).tolist()]


def nearest_256(pixels: np.ndarray) -> np.ndarray:
    """Returns the nearest of the 256 colours of xterm, of its cube and its greys.

    Args:
      pixels: uint8[..., 3], RGB.

    Returns:
      int64[...], 16-255.
    """
    values = pixels.astype(np.int64)
    steps = np.abs(values[..., None] - _CUBE).argmin(-1)
    cube = _CUBE[steps]
    greys = np.abs(values.mean(-1)[..., None] - _GREYS).argmin(-1)
    grey = _GREYS[greys][..., None]
    closer = ((values - grey) ** 2).sum(-1) < ((values - cube) ** 2).sum(-1)
    return np.where(closer, 232 + greys, 16 + steps @ np.array([36, 6, 1]))
