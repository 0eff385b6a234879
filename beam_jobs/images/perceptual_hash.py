"""The perceptual hash of an image, and the mean and variance of its channels.

Near duplicates are images whose hashes differ in few bits, see `beam_jobs.planning.near_duplicates`.
"""

from __future__ import annotations

import cv2
import numpy as np

Triple = tuple[float, float, float]


def difference_hash(pixels: np.ndarray) -> int:
    """Returns the 64-bit difference hash of an image as a signed integer.

    A bit is set when green increases from one cell to the next in a row of an 8 x 9 grid, so scale, compression and
    brightness hardly change the hash. Source: N. Krawetz, "Kind of Like That" (2013). Green contributes six tenths of
    brightness. Pixels are sampled before they are averaged: this takes a thirtieth of the time, and halving the image
    or a JPEG quality of 30 then changes 1.3 bits on average instead of 0.6.

    Args:
      pixels: uint8[height, width, 3].
    """
    return _hash_plane(np.ascontiguousarray(pixels[..., 1]))


def moments_and_dhash(pixels: np.ndarray) -> tuple[Triple, Triple, int]:
    """Returns mean and population variance of each channel, in levels of 0-255, and the difference hash.

    The image is split into channels once for all three results.

    Args:
      pixels: uint8[height, width, 3].
    """
    planes = cv2.split(pixels)
    red, green, blue = (cv2.meanStdDev(plane) for plane in planes)  # takes half the time of all channels at once
    mean = (red[0].item(), green[0].item(), blue[0].item())
    variance = (red[1].item() ** 2, green[1].item() ** 2, blue[1].item() ** 2)
    return mean, variance, _hash_plane(planes[1])


def _hash_plane(green: np.ndarray) -> int:
    sampled = cv2.resize(green, (72, 64), interpolation=cv2.INTER_LINEAR)  # 64 samples per cell
    cells = cv2.resize(sampled, (9, 8), interpolation=cv2.INTER_AREA)
    bits = np.packbits(cells[:, 1:] > cells[:, :-1])
    return int.from_bytes(bits.tobytes(), "big", signed=True)
