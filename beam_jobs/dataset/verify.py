"""Verify: read a published dataset back, every byte of it, and compare it with what its manifest promises.

Of each record: whether it holds an image of this format, and what its dataset says of it.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO

from beam_jobs import storage
from beam_jobs.common.system import chunks_by_size, map_ordered
from beam_jobs.dataset import lookup, manifest, record, schemas, shards, tfrecord
from beam_jobs.dataset.manifest import Manifest, Shard
from beam_jobs.errors import BadImage, CorruptDataset
from beam_jobs.images import sandbox
from beam_jobs.options import STORED_LIMITS

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


def check_record(payloads: Sequence[bytes], dataset: Manifest, sizes: Sizes) -> list[Seen]:
    """Checks types, labels, image and masks of records. Nothing in a payload makes it raise.

    Args:
      payloads: of the records, whose checksums were right.
      dataset: what they belong to.
      sizes: decodes the images and masks of all of them in one go.
    """
    read = [_read_record(payload, dataset) for payload in payloads]
    decoded = iter(sizes([data for _, images, masks in read for data in (*images, *masks)]))
    checked = []
    for seen, images, masks in read:
        sizes_of_files = [(what, next(decoded)) for what, files in (("image", images), ("mask", masks)) for _ in files]
        checked.append(replace(seen, problem=seen.problem or _size_problem(seen, sizes_of_files)))
    return checked


def _read_record(payload: bytes, dataset: Manifest) -> tuple[Seen, list[bytes], list[bytes]]:
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
            return unreadable_record(f"not a record of this format: {wrong}"), [], []
        extra = {name: found for name, found in values.items() if name.startswith(record.EXTRA_PREFIX)}
        key, sha256 = values[record.FILENAME][0].decode(), values[record.SHA256][0].decode()
        labels = tuple(text.decode() for text in values.get(record.TEXT, ()))
        size = (values[record.HEIGHT][0], values[record.WIDTH][0])
        problem = _label_problem(values, labels, dataset) or _image_problem(values, key, sha256)
        images, masks = ([], []) if problem else _record_files(values)
    except (DecodeError, KeyError, IndexError, UnicodeDecodeError) as error:
        problem = f"not a record of this format: {error!r}"
    return Seen(key=key, labels=labels, sha256=sha256, extra=extra, size=size, problem=problem), images, masks


def unreadable_record(problem: str) -> Seen:
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


def _record_files(values: dict[str, list]) -> tuple[list[bytes], list[bytes]]:
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


_OTHER_SHA256 = f"its sha256 is not the one in {manifest.MANIFEST_NAME}"


@dataclass(kw_only=True)
class Verification:
    """What was read and what was wrong.

    Examples:
      >>> from beam_jobs import verify_dataset
      >>> found = verify_dataset("dataset")
      >>> found.records, found.shards
      (48, 2)

    Attributes:
      shards: shards read.
      records: records read and decoded.
      bytes: bytes read.
      problems: one line per problem; empty when the dataset is sound.
      leaks: one line per set of images that belong together, as copies, a group or grouped near duplicates, and lie in
        several splits. The dataset is sound all the same.
    """

    shards: int = 0
    records: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)


def verify(directory: str, threads: int = 1) -> Verification:
    """Checks every checksum, every count and a decode of every record.

    Examples:
      >>> from pathlib import Path
      >>> from beam_jobs import verify_dataset
      >>> verify_dataset("dataset").problems
      []
      >>> size = Path("dataset/rejects.parquet").write_bytes(b"")
      >>> verify_dataset("dataset").problems
      ['dataset/rejects.parquet has changed since it was published: its sha256 is not the one in dataset.json']

    Args:
      directory: of a published dataset.
      threads: threads that decode, at least 1.

    Returns:
      what was found. Problems are collected, not raised, so that one run names them all.

    Raises:
      SourceError: the directory is not a dataset.
      CorruptDataset: `dataset.json` itself cannot be used.
    """
    dataset = manifest.load(directory)
    result = Verification()
    result.problems.extend(_check_manifest(directory))
    result.problems.extend(_check_tables(directory, dataset))
    result.problems.extend(_check_counts(dataset))
    result.problems.extend(_stray_splits(directory, dataset))
    result.leaks.extend(_leaks(directory, dataset))
    try:
        rows = _rows_by_shard(directory)
    except CorruptDataset as error:
        rows = None
        if not any(manifest.IMAGES_NAME in problem for problem in result.problems):
            result.problems.append(str(error))
    for split, info in dataset.splits.items():
        result.problems.extend(_strays(directory, split, {shard.name for shard in info.shards}))
        labels: Counter[str] = Counter()
        for index, shard in enumerate(info.shards):
            path = storage.join(directory, shards.split_dir(split), shard.name)
            expected = rows.get((split, index), []) if rows is not None else None
            result.problems.extend(_check_shard(path, shard, dataset, expected, labels, threads, result))
            result.shards += 1
        if not result.problems and dict(labels) != dict(info.classes):
            result.problems.append(
                f"{split}: the class histogram of {manifest.MANIFEST_NAME} is not that of its records"
            )
    return result


def _check_manifest(directory: str) -> Iterator[str]:
    # Its checksum is over what it says; spaces and line ends say nothing, and can change as well.
    path = storage.join(directory, manifest.MANIFEST_NAME)
    found = storage.read_bytes(path)
    expected = manifest.serialise(json.loads(found))
    if found != expected:
        place = next((n for n, (one, other) in enumerate(zip(found, expected, strict=False)) if one != other), -1)
        where = f"at byte {place}" if place >= 0 else f"after byte {min(len(found), len(expected))}"
        yield f"{path} has changed since it was published: {where} it is not as Feedline writes it"


def _check_tables(directory: str, dataset: Manifest) -> Iterator[str]:
    for name, expected in dataset.tables.items():
        path = storage.join(directory, name)
        try:
            if storage.digest(path)[1] != expected:
                yield f"{path} has changed since it was published: {_OTHER_SHA256}"
        except OSError as error:
            yield f"{path} cannot be read: {error.strerror or error}"


def _check_counts(dataset: Manifest) -> Iterator[str]:
    counts = dataset.counts
    written = sum(info.records for info in dataset.splits.values())
    if counts.written != written:
        yield f"{manifest.MANIFEST_NAME} counts {counts.written} images written, its shards hold {written}"
    if counts.found != counts.written + counts.rejected + counts.dropped:
        yield f"{manifest.MANIFEST_NAME} counts {counts.found} images found, which is not written + rejected + dropped"


def _rows_by_shard(directory: str) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Returns the rows of the image table by split and shard.

    Raises:
      CorruptDataset: it is missing, damaged or over a limit.
    """
    path = storage.join(directory, manifest.IMAGES_NAME)
    try:
        table = schemas.read_published(path).select(["key", "split", "shard", "offset", "sha256", "extra"])
        found = table.to_pylist()
    except (KeyError, UnicodeDecodeError) as error:
        raise CorruptDataset(f"{path} cannot be read: {error}; write the dataset again") from error
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in found:
        rows.setdefault((row["split"], row["shard"]), []).append(row)
    return rows


def _leaks(directory: str, dataset: Manifest) -> list[str]:
    kinds = lookup.leak_kinds_of(dataset.options.get("near_duplicates", "off"))
    try:
        images = schemas.read_published(storage.join(directory, manifest.IMAGES_NAME)).select(["key", "split", *kinds])
        return [str(leak) for leak in lookup.find_leaks(images, kinds)]
    except (CorruptDataset, KeyError, UnicodeDecodeError):
        return []  # `_rows_by_shard` says so


def _stray_splits(directory: str, dataset: Manifest) -> Iterator[str]:
    known = {shards.split_dir(split) for split in dataset.splits}
    for name in storage.list_dirs(directory):
        if name.startswith(shards.SPLIT_PREFIX) and name not in known:
            yield f"{name} is not a split of the dataset, but looks like one to readers that glob"


def _strays(directory: str, split: str, known: set[str]) -> Iterator[str]:
    for name in storage.list_files(storage.join(directory, shards.split_dir(split))):
        if name not in known:
            yield f"{shards.split_dir(split)}/{name} is not part of the dataset, but readers that glob would read it"


def _check_shard(
    path: str,
    shard: Shard,
    dataset: Manifest,
    rows: list[dict[str, Any]] | None,
    labels: Counter[str],
    threads: int,
    result: Verification,
) -> Iterator[str]:
    try:
        yield from _check_file(path, shard)
        with storage.open_read(path) as stream:
            found = _records(stream, path, rows or [])
            sizes = partial(sandbox.sizes, limits=STORED_LIMITS, processes=threads)
            lot = partial(_seen, dataset=dataset, sizes=sizes)
            checked = itertools.chain.from_iterable(map_ordered(lot, chunks_by_size(found, _size), threads))
            count, last, whole = 0, -1, True
            for one, seen in checked:
                last = one.number
                if isinstance(one.payload, CorruptDataset):
                    whole = False
                    yield f"{one.payload}{_image_at(rows, one)}"
                    continue
                count += 1
                labels.update(seen.labels)
                if seen.problem:
                    yield f"{path} offset {one.offset}: {seen.problem}"
                if problem := _row_problem(rows, one, seen):
                    yield f"{path} offset {one.offset}: {problem}"
                result.bytes += len(one.payload) + tfrecord.OVERHEAD
        result.records += count
        if whole and count != shard.records:
            yield f"{path} holds {count} records, {manifest.MANIFEST_NAME} says {shard.records}"
        if not whole and rows and last + 1 < len(rows):
            yield f"{path} ends before {len(rows) - last - 1} more records that {manifest.IMAGES_NAME} has for it"
        if whole and rows is not None and count < len(rows):
            yield f"{path} holds {count} records, {manifest.IMAGES_NAME} has {len(rows)} rows for it"
    except OSError as error:
        yield f"{path} cannot be read: {error.strerror or error}"


@dataclass(frozen=True, kw_only=True)
class _Record:
    """A record of a shard: its place among them, where it begins, and its payload or what is wrong with it."""

    number: int
    offset: int
    payload: bytes | CorruptDataset


def _records(stream: BinaryIO, path: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[_Record]:
    """Yields every record; past a damaged length it goes on where a row says that another record begins."""
    starts = sorted({row["offset"] for row in rows if isinstance(row["offset"], int) and row["offset"] >= 0})
    number = offset = 0
    while True:
        try:
            payload = tfrecord.read_record(stream, path, offset)
        except CorruptDataset as error:
            yield _Record(number=number, offset=offset, payload=error)
            behind = stream.tell()
            if behind > offset + tfrecord.HEADER:  # its length is sound
                number, offset = number + 1, behind
                continue
            number = bisect.bisect_right(starts, offset)
            if number == len(starts):
                return
            offset = starts[number]
            stream.seek(offset)
            continue
        if payload is None:
            return
        yield _Record(number=number, offset=offset, payload=payload)
        number, offset = number + 1, offset + len(payload) + tfrecord.OVERHEAD


def _size(one: _Record) -> int:
    return len(one.payload) if isinstance(one.payload, bytes) else 0


def _seen(lot: Sequence[_Record], dataset: Manifest, sizes: Sizes) -> list[tuple[_Record, Seen]]:
    checked = iter(check_record([one.payload for one in lot if isinstance(one.payload, bytes)], dataset, sizes))
    return [
        (one, next(checked) if isinstance(one.payload, bytes) else unreadable_record(str(one.payload))) for one in lot
    ]


def _image_at(rows: list[dict[str, Any]] | None, one: _Record) -> str:
    """Returns which image a damaged record holds, as far as it is known."""
    if not rows or one.number >= len(rows) or rows[one.number]["offset"] != one.offset:
        return ""
    return f" (the image {rows[one.number]['key']!r})"


def _check_file(path: str, shard: Shard) -> Iterator[str]:
    size, sha256 = storage.digest(path)
    if size != shard.bytes:
        yield f"{path} has {size} bytes, {manifest.MANIFEST_NAME} says {shard.bytes}"
    elif sha256 != shard.sha256:
        yield f"{path} has changed since it was published: {_OTHER_SHA256}"


def _row_problem(rows: Sequence[Mapping[str, Any]] | None, one: _Record, seen: Seen) -> str:
    """Returns where a record and its row differ; empty when they agree, or there is no image table."""
    if rows is None:
        return ""
    row = rows[one.number] if one.number < len(rows) else {}
    if (row.get("offset"), row.get("key"), row.get("sha256")) != (one.offset, seen.key, seen.sha256):
        return f"{manifest.IMAGES_NAME} has no row for {seen.key!r} there"
    different = schemas.column_mismatch(row["extra"], seen.extra)
    return f"{manifest.IMAGES_NAME} differs from the record of {seen.key!r}: {different}" if different else ""
