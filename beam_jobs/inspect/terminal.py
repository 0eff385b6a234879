"""Images drawn with characters: the upper half block shows two pixels, one in its own colour and one behind it."""

from __future__ import annotations

import os

import numpy as np
from PIL import Image

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
    codes = _true(pixels) if true_colour else _nearest(pixels)
    lines = []
    for upper, lower in zip(codes[::2], codes[1::2], strict=True):
        cells = (f"\x1b[38;{one};48;{other}m{BLOCK}" for one, other in zip(upper, lower, strict=True))
        lines.append("".join(cells) + _RESET)
    return os.linesep.join(lines)


def _true(pixels: np.ndarray) -> list[list[str]]:
    return [[f"2;{red};{green};{blue}" for red, green, blue in row] for row in pixels.tolist()]


def _nearest(pixels: np.ndarray) -> list[list[str]]:
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
