"""Verify one record: whether it holds an image of this format, and what its dataset says of it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from beam_jobs import record
from beam_jobs.decode import decode_checked
from beam_jobs.errors import BadImage
from beam_jobs.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a record says of itself.

    Attributes:
      key: identity of its image; empty when it cannot be read.
      labels: class names.
      sha256: of the stored image, hex, as the record has it.
      extra: feature name -> values of its user columns.
      problem: what is wrong with the record; empty for nothing.
    """

    key: str
    labels: tuple[str, ...]
    sha256: str
    extra: Mapping[str, list]
    problem: str


def check(payload: bytes, dataset: Manifest) -> Seen:
    """Checks types, labels, image and masks of a record. Nothing in the payload makes it raise.

    Args:
      payload: of the record, whose checksum was right.
      dataset: what it belongs to.
    """
    from google.protobuf.message import DecodeError

    key = sha256 = ""
    labels: tuple[str, ...] = ()
    extra: dict[str, list] = {}
    try:
        values = record.decode(payload)
        if wrong := record.type_problem(values):
            return unreadable(f"not a record of this format: {wrong}")
        extra = {name: found for name, found in values.items() if name.startswith(record.EXTRA_PREFIX)}
        key, sha256 = values[record.FILENAME][0].decode(), values[record.SHA256][0].decode()
        labels = tuple(text.decode() for text in values.get(record.TEXT, ()))
        problem = _label_problem(values, labels, dataset) or _image_problem(values, key, sha256)
        problem = problem or _mask_problem(values, key)
    except (DecodeError, KeyError, IndexError, UnicodeDecodeError) as error:
        problem = f"not a record of this format: {error!r}"
    except BadImage as bad:
        problem = f"{key!r} cannot be decoded: {bad.detail}"
    return Seen(key=key, labels=labels, sha256=sha256, extra=extra, problem=problem)


def unreadable(problem: str) -> Seen:
    """Returns what is known of a record that cannot be read."""
    return Seen(key="", labels=(), sha256="", extra={}, problem=problem)


def _label_problem(values: dict[str, list], labels: tuple[str, ...], dataset: Manifest) -> str:
    indices = values.get(record.LABEL, [])
    if dataset.label_kind == "single" and len(indices) != 1:
        return f"it has {len(indices)} labels instead of one"
    objects = record.OBJECT_PREFIX + "class/"
    indices = [*indices, *values.get(objects + "label", [])]
    texts = [*labels, *(text.decode() for text in values.get(objects + "text", []))]
    for index, text in itertools.zip_longest(indices, texts):
        if index not in range(len(dataset.labels)) or dataset.labels[index] != text:
            return f"label {index} is not {text!r}"
    return ""


def _image_problem(values: dict[str, list], key: str, sha256: str) -> str:
    encoded = values[record.ENCODED][0]
    if hashlib.sha256(encoded).hexdigest() != sha256:
        return f"the image of {key!r} is not the one its sha256 was taken of"
    said = (values[record.HEIGHT][0], values[record.WIDTH][0])
    if values[record.FORMAT][0] == b"raw":
        if len(encoded) != said[0] * said[1] * 3:
            return f"{key!r} has {len(encoded)} bytes of pixels, its record says {said[1]}x{said[0]} of three each"
        return ""
    height, width = decode_checked(encoded).shape[:2]
    if (height, width) != said:
        return f"{key!r} decodes to {width}x{height} pixels, its record says otherwise"
    return ""


def _mask_problem(values: dict[str, list], key: str) -> str:
    said = (values[record.HEIGHT][0], values[record.WIDTH][0])
    of_objects = values.get(record.OBJECT_PREFIX + "mask", [])
    for mask in (*values.get(record.MASK, []), *filter(None, of_objects)):  # an object without one has an empty one
        height, width = decode_checked(mask).shape[:2]
        if (height, width) != said:
            return f"a mask of {key!r} has {width}x{height} pixels, its image {said[1]}x{said[0]}"
    return ""
