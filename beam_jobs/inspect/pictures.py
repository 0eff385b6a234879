"""The images of foreign records, as far as it is safe to look at them.

The header is judged first, and decoding happens in a process of its own with bounded time and memory, as in the ingest:
what a hostile file does there costs its own picture and a remark.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from PIL import Image

from beam_jobs import decoders, headers, record
from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.inspect.guess import Guess, channels_of
from beam_jobs.options import ImageLimits, PixelOptions

# Looser than the ingest where that costs nothing, tighter where it costs time: somebody waits before a terminal.
_LIMITS = ImageLimits(min_side_px=1, max_aspect=10_000.0, max_bytes=64 << 20, max_seconds=10.0)
_TINY_PX = 64  # up to here the pixels themselves are shown, stored without loss
_QUALITY = 80
_AT_A_TIME = 16  # images sent to a decoder together
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
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

    @property
    def url(self) -> str:
        """`data:` URL of a JPEG or PNG file; empty without an image."""
        if self.image is None:
            return ""
        kind = "png" if max(self.image.size) <= _TINY_PX else "jpeg"
        encoded = base64.b64encode(_file(self.image, kind)).decode()
        return f"data:image/{kind};base64,{encoded}"


def image_file(values: Mapping[str, list], guessed: Guess) -> tuple[str, bytes]:
    """Returns the image of a record as a file, undecoded; bare pixels become a PNG.

    Args:
      values: the record.
      guessed: what its features are.

    Returns:
      the suffix that fits its content, and its bytes.

    Raises:
      BadImage: it has none.
    """
    data = image_bytes(values, guessed)
    pixels = _bare(data, values, guessed)
    if pixels is not None:
        return "png", _file(pixels, "png")
    name = headers.sniff(data)
    return _SUFFIXES.get(name, name), data


def image_bytes(values: Mapping[str, list], guessed: Guess) -> bytes:
    """Returns what a record holds in the feature of the image; of several images the first.

    Raises:
      BadImage: that is nothing, or no bytes.
    """
    found = values.get(guessed.image)
    if not found or not isinstance(found[0], bytes):
        raise BadImage(RejectReason.NOT_AN_IMAGE, NO_IMAGE)
    return found[0]


def pictures(records: Sequence[Mapping[str, list]], guessed: Guess, side_px: int) -> Iterator[Picture]:
    """Yields what can be seen of each record.

    Args:
      records: feature name -> values.
      guessed: what their features are.
      side_px: long side of a picture at most; smaller ones keep their size.
    """
    for start in range(0, len(records), _AT_A_TIME):
        yield from _some(records[start : start + _AT_A_TIME], guessed, side_px)


def _some(records: Sequence[Mapping[str, list]], guessed: Guess, side_px: int) -> list[Picture]:
    found: dict[int, Picture] = {}
    files: dict[int, bytes] = {}
    for place, values in enumerate(records):
        one = _undecoded(values, guessed, side_px)
        if isinstance(one, Picture):
            found[place] = one
        else:
            files[place] = one
    policy = PixelOptions(policy="resize", fit="inside", side_px=side_px)
    answers = decoders.examine(list(files.values()), _LIMITS, policy, "basic", processes=1) if files else []
    for place, answer in zip(files, answers, strict=True):
        found[place] = Picture(remark=str(answer)) if isinstance(answer, BadImage) else _opened(answer[0], side_px)
    return [found[place] for place in range(len(records))]


def _undecoded(values: Mapping[str, list], guessed: Guess, side_px: int) -> Picture | bytes:
    """Returns the file that is to be decoded; a picture where there is nothing to decode."""
    try:
        data = image_bytes(values, guessed)
        pixels = _bare(data, values, guessed)
        if pixels is not None:
            return _small(pixels, side_px)
        headers.sniff(data)
    except BadImage as bad:
        return Picture(remark=bad.detail)
    return data


def _bare(data: bytes, values: Mapping[str, list], guessed: Guess) -> Image.Image | None:
    """Returns the image of bare pixels; None for anything else. Sizes are held against the bytes before all else."""
    if values.get(record.FORMAT, [b"raw"]) != [b"raw"]:
        return None
    channels = channels_of(data, values, guessed.sides)
    if not channels:
        return None
    height, width = (values[guessed.sides[side]][0] for side in ("height", "width"))
    return Image.frombytes(_MODES[channels], (width, height), data)


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


def _file(image: Image.Image, kind: str) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **({"quality": _QUALITY} if kind == "jpeg" else {}))
    return out.getvalue()
