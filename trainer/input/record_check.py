"""What is wrong with the content of a record whose checksums are right."""

from __future__ import annotations

from beam_jobs.dataset import record
from beam_jobs.errors import BadImage
from beam_jobs.images.decode import decode_checked

_NEEDED = (record.FILENAME, record.ENCODED)
_NEEDED_OF_RAW = (record.HEIGHT, record.WIDTH)


def content_problem(payload: bytes, key: str, decode: bool) -> str:
    """Returns what is wrong, to be read after "the record"; empty for nothing. Nothing in the payload makes it raise.

    Args:
      payload: of the record.
      key: of the image that must be in it.
      decode: whether the image is decoded too.
    """
    from google.protobuf.message import DecodeError

    try:
        values = record.decode(payload)
    except DecodeError:
        return "is not a tf.train.Example"
    if wrong := record.type_problem(values):
        return f"is not of this format: {wrong}"
    if missing := _missing(values, _NEEDED):
        return missing
    if values[record.FILENAME][0] != key.encode():
        return f"is that of {values[record.FILENAME][0]!r}"
    return _image_problem(values) if decode else ""


def _image_problem(values: dict[str, list]) -> str:
    encoded = values[record.ENCODED][0]
    if values.get(record.FORMAT) == [b"raw"]:
        if missing := _missing(values, _NEEDED_OF_RAW):
            return missing
        wanted = values[record.HEIGHT][0] * values[record.WIDTH][0] * 3
        return "" if len(encoded) == wanted else f"has {len(encoded)} bytes of pixels instead of {wanted}"
    try:
        decode_checked(encoded)
    except BadImage as bad:
        return f"cannot be decoded: {bad.detail}"
    return ""


def _missing(values: dict[str, list], names: tuple[str, ...]) -> str:
    return next((f"has no {name}" for name in names if not values.get(name)), "")
