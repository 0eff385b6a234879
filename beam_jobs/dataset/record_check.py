"""Check of records: types, labels, image and masks of a record must agree with each other and with the manifest."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from beam_jobs.dataset import record
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import BadImage

# Decodes files and returns the height and width of each in pixels, or an error; see `sandbox.sizes`.
DecodeSizes = Callable[[Sequence[bytes]], Sequence[tuple[int, int] | BadImage]]


@dataclass(frozen=True, kw_only=True)
class RecordCheck:
    """Values of a record and the result of its check.

    Attributes:
      key: identity of the image; empty when the record cannot be read.
      labels: class names.
      sha256: sha256 of the stored image, hex, according to the record.
      extra: feature name -> values of the user columns.
      size: height and width of the image in pixels, according to the record.
      problem: description of the first problem; empty if there is none.
    """

    key: str
    labels: tuple[str, ...]
    sha256: str
    extra: Mapping[str, list]
    size: tuple[int, int]
    problem: str


def check_records(payloads: Sequence[bytes], dataset: Manifest, decode_sizes: DecodeSizes) -> list[RecordCheck]:
    """Returns the checks of the types, labels, image and masks of records. No payload causes an exception.

    Args:
      payloads: payloads of records with correct checksums.
      dataset: manifest of their dataset.
      decode_sizes: function that decodes the images and masks of all records in one call.
    """
    parsed_records = [_read_record(payload, dataset) for payload in payloads]
    sizes = iter(decode_sizes([data for _, images, masks in parsed_records for data in (*images, *masks)]))
    checks = []
    for check, images, masks in parsed_records:
        file_sizes = [(kind, next(sizes)) for kind, files in (("image", images), ("mask", masks)) for _ in files]
        checks.append(replace(check, problem=check.problem or _size_problem(check, file_sizes)))
    return checks


def _read_record(payload: bytes, dataset: Manifest) -> tuple[RecordCheck, list[bytes], list[bytes]]:
    """Returns the values of a record, and its image and masks to decode; no image or mask if it has a problem."""
    from google.protobuf.message import DecodeError

    key = sha256 = ""
    labels: tuple[str, ...] = ()
    extra: dict[str, list] = {}
    size = (0, 0)
    images: list[bytes] = []
    masks: list[bytes] = []
    try:
        values = record.decode(payload)
        if problem := record.type_problem(values):
            return unreadable_record(f"not a record of this format: {problem}"), [], []
        extra = {name: column for name, column in values.items() if name.startswith(record.EXTRA_PREFIX)}
        key, sha256 = values[record.FILENAME][0].decode(), values[record.SHA256][0].decode()
        labels = tuple(text.decode() for text in values.get(record.TEXT, ()))
        size = (values[record.HEIGHT][0], values[record.WIDTH][0])
        problem = _label_problem(values, labels, dataset) or _image_problem(values, key, sha256)
        images, masks = ([], []) if problem else _record_files(values)
    except (DecodeError, KeyError, IndexError, UnicodeDecodeError) as error:
        problem = f"not a record of this format: {error!r}"
    return RecordCheck(key=key, labels=labels, sha256=sha256, extra=extra, size=size, problem=problem), images, masks


def unreadable_record(problem: str) -> RecordCheck:
    """Returns the check of a record that cannot be parsed."""
    return RecordCheck(key="", labels=(), sha256="", extra={}, size=(0, 0), problem=problem)


def _label_problem(values: dict[str, list], labels: tuple[str, ...], dataset: Manifest) -> str:
    indices = values.get(record.LABEL, [])
    if dataset.label_kind == "single" and len(indices) != 1:
        return f"it has {len(indices)} labels instead of one"
    indices = [*indices, *values.get(record.OBJECT_LABEL, [])]
    texts = [*labels, *(text.decode() for text in values.get(record.OBJECT_TEXT, []))]
    for index, text in itertools.zip_longest(indices, texts):
        if index not in range(len(dataset.labels)) or dataset.labels[index] != text:
            return f"label {index} is not {text!r}"
    return ""


def _image_problem(values: dict[str, list], key: str, sha256: str) -> str:
    encoded = values[record.ENCODED][0]
    if hashlib.sha256(encoded).hexdigest() != sha256:
        return f"the image of {key!r} does not have the sha256 in its record"
    height, width = values[record.HEIGHT][0], values[record.WIDTH][0]
    if values[record.FORMAT][0] == b"raw" and len(encoded) != height * width * 3:
        return f"{key!r} has {len(encoded)} bytes of pixels, not {width}x{height} pixels of 3 bytes as in its record"
    return ""


def _record_files(values: dict[str, list]) -> tuple[list[bytes], list[bytes]]:
    """Returns the image, unless it is raw pixels, and the masks of a record."""
    images = [] if values[record.FORMAT][0] == b"raw" else [values[record.ENCODED][0]]
    object_masks = values.get(record.OBJECT_PREFIX + "mask", [])  # empty for an object without a segmentation
    return images, [*values.get(record.MASK, []), *filter(None, object_masks)]


def _size_problem(check: RecordCheck, file_sizes: Sequence[tuple[str, tuple[int, int] | BadImage]]) -> str:
    height, width = check.size
    for kind, size in file_sizes:
        if isinstance(size, BadImage):
            return f"{check.key!r} cannot be decoded: {size.detail}"
        if size == check.size:
            continue
        if kind == "image":
            return f"{check.key!r} decodes to {size[1]}x{size[0]} pixels instead of {width}x{height} as in its record"
        return f"a mask of {check.key!r} has {size[1]}x{size[0]} pixels, its image has {width}x{height}"
    return ""
