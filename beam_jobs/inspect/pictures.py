"""The images of foreign records, as far as it is safe to look at them.

The header is judged first, and decoding happens in a process of its own with bounded time and memory, as in the ingest:
what a hostile file does there costs its own picture and a remark.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from PIL import Image

from beam_jobs.dataset import record
from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.images import sandbox
from beam_jobs.images.header import read
from beam_jobs.inspect.feature_roles import FeatureRoles
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
    name = read.sniff(data)
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
        read.sniff(data)
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
