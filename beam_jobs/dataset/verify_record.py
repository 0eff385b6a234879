"""Verify one record: whether it holds an image of this format, and what its dataset says of it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from beam_jobs.dataset import record
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import BadImage

# Files -> for each height and width of its pixels, or why it cannot be decoded; `decoders.sizes` with its limits.
Sizes = Callable[[Sequence[bytes]], Sequence[tuple[int, int] | BadImage]]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a record says of itself.

    Attributes:
      key: identity of its image; empty when it cannot be read.
      labels: class names.
      sha256: of the stored image, hex, as the record has it.
      extra: feature name -> values of its user columns.
      size: height and width of its image, in pixels.
      problem: what is wrong with the record; empty for nothing.
    """

    key: str
    labels: tuple[str, ...]
    sha256: str
    extra: Mapping[str, list]
    size: tuple[int, int]
    problem: str


def check(payloads: Sequence[bytes], dataset: Manifest, sizes: Sizes) -> list[Seen]:
    """Checks types, labels, image and masks of records. Nothing in a payload makes it raise.

    Args:
      payloads: of the records, whose checksums were right.
      dataset: what they belong to.
      sizes: decodes the images and masks of all of them in one go.
    """
    read = [_read(payload, dataset) for payload in payloads]
    decoded = iter(sizes([data for _, images, masks in read for data in (*images, *masks)]))
    checked = []
    for seen, images, masks in read:
        sizes_of_files = [(what, next(decoded)) for what, files in (("image", images), ("mask", masks)) for _ in files]
        checked.append(replace(seen, problem=seen.problem or _size_problem(seen, sizes_of_files)))
    return checked


def _read(payload: bytes, dataset: Manifest) -> tuple[Seen, list[bytes], list[bytes]]:
    """Returns what a record says of itself, and the image and masks to be decoded; none when it has a problem."""
    from google.protobuf.message import DecodeError

    key = sha256 = ""
    labels: tuple[str, ...] = ()
    extra: dict[str, list] = {}
    size = (0, 0)
    images: list[bytes] = []
    masks: list[bytes] = []
    try:
        values = record.decode(payload)
        if wrong := record.type_problem(values):
            return unreadable(f"not a record of this format: {wrong}"), [], []
        extra = {name: found for name, found in values.items() if name.startswith(record.EXTRA_PREFIX)}
        key, sha256 = values[record.FILENAME][0].decode(), values[record.SHA256][0].decode()
        labels = tuple(text.decode() for text in values.get(record.TEXT, ()))
        size = (values[record.HEIGHT][0], values[record.WIDTH][0])
        problem = _label_problem(values, labels, dataset) or _image_problem(values, key, sha256)
        images, masks = ([], []) if problem else _files(values)
    except (DecodeError, KeyError, IndexError, UnicodeDecodeError) as error:
        problem = f"not a record of this format: {error!r}"
    return Seen(key=key, labels=labels, sha256=sha256, extra=extra, size=size, problem=problem), images, masks


def unreadable(problem: str) -> Seen:
    """Returns what is known of a record that cannot be read."""
    return Seen(key="", labels=(), sha256="", extra={}, size=(0, 0), problem=problem)


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
    height, width = values[record.HEIGHT][0], values[record.WIDTH][0]
    if values[record.FORMAT][0] == b"raw" and len(encoded) != height * width * 3:
        return f"{key!r} has {len(encoded)} bytes of pixels, its record says {width}x{height} of three each"
    return ""


def _files(values: dict[str, list]) -> tuple[list[bytes], list[bytes]]:
    """Returns the image, unless it is raw pixels, and the masks of a record."""
    images = [] if values[record.FORMAT][0] == b"raw" else [values[record.ENCODED][0]]
    of_objects = values.get(record.OBJECT_PREFIX + "mask", [])
    return images, [*values.get(record.MASK, []), *filter(None, of_objects)]  # an object without one has an empty one


def _size_problem(seen: Seen, decoded: Sequence[tuple[str, tuple[int, int] | BadImage]]) -> str:
    height, width = seen.size
    for what, size in decoded:
        if isinstance(size, BadImage):
            return f"{seen.key!r} cannot be decoded: {size.detail}"
        if size == seen.size:
            continue
        if what == "image":
            return f"{seen.key!r} decodes to {size[1]}x{size[0]} pixels, its record says otherwise"
        return f"a mask of {seen.key!r} has {size[1]}x{size[0]} pixels, its image {width}x{height}"
    return ""
