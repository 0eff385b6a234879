"""Verify: read every byte of a published dataset and compare it with its manifest.

Each record is decoded and compared with its format, its row of the image table and the labels of the dataset.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, BinaryIO, NamedTuple

import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.common.system import chunks_by_size, map_ordered
from beam_jobs.dataset import lookup, manifest, record, schemas, shards, tfrecord
from beam_jobs.dataset.manifest import Manifest, Shard, TablePart
from beam_jobs.errors import BadImage, CorruptDataset
from beam_jobs.images import sandbox
from beam_jobs.options import STORED_LIMITS

# Decodes files: height and width of each in pixels, or its error; `sandbox.sizes` with its limits.
Sizes = Callable[[Sequence[bytes]], Sequence[tuple[int, int] | BadImage]]


@dataclass(frozen=True, kw_only=True)
class RecordCheck:
    """Values of a record and the result of its check.

    Attributes:
      key: identity of the image; empty when the record cannot be read.
      labels: class names.
      sha256: sha256 of the stored image, hex, as the record gives it.
      extra: feature name -> values of the user columns.
      size: height and width of the image as the record gives them, in pixels.
      problem: description of the first problem; empty for a sound record.
    """

    key: str
    labels: tuple[str, ...]
    sha256: str
    extra: Mapping[str, list]
    size: tuple[int, int]
    problem: str


def check_record(payloads: Sequence[bytes], dataset: Manifest, sizes: Sizes) -> list[RecordCheck]:
    """Checks types, labels, image and masks of records. No payload makes it raise.

    Args:
      payloads: payloads of records with right checksums.
      dataset: manifest of their dataset.
      sizes: decodes the images and masks of all records in one call.
    """
    parsed = [_read_record(payload, dataset) for payload in payloads]
    decoded = iter(sizes([data for _, images, masks in parsed for data in (*images, *masks)]))
    checks = []
    for check, images, masks in parsed:
        file_sizes = [(kind, next(decoded)) for kind, files in (("image", images), ("mask", masks)) for _ in files]
        checks.append(replace(check, problem=check.problem or _size_problem(check, file_sizes)))
    return checks


def _read_record(payload: bytes, dataset: Manifest) -> tuple[RecordCheck, list[bytes], list[bytes]]:
    """Returns the values of a record, and its image and masks to decode; no files when it has a problem."""
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
            return _unreadable_record(f"not a record of this format: {problem}"), [], []
        extra = {name: column for name, column in values.items() if name.startswith(record.EXTRA_PREFIX)}
        key, sha256 = values[record.FILENAME][0].decode(), values[record.SHA256][0].decode()
        labels = tuple(text.decode() for text in values.get(record.TEXT, ()))
        size = (values[record.HEIGHT][0], values[record.WIDTH][0])
        problem = _label_problem(values, labels, dataset) or _image_problem(values, key, sha256)
        images, masks = ([], []) if problem else _record_files(values)
    except (DecodeError, KeyError, IndexError, UnicodeDecodeError) as error:
        problem = f"not a record of this format: {error!r}"
    return RecordCheck(key=key, labels=labels, sha256=sha256, extra=extra, size=size, problem=problem), images, masks


def _unreadable_record(problem: str) -> RecordCheck:
    return RecordCheck(key="", labels=(), sha256="", extra={}, size=(0, 0), problem=problem)


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
        return f"the image of {key!r} does not have the sha256 in its record"
    height, width = values[record.HEIGHT][0], values[record.WIDTH][0]
    if values[record.FORMAT][0] == b"raw" and len(encoded) != height * width * 3:
        return f"{key!r} has {len(encoded)} bytes of pixels, its record says {width}x{height} pixels of 3 bytes"
    return ""


def _record_files(values: dict[str, list]) -> tuple[list[bytes], list[bytes]]:
    """Returns the image, unless it is raw pixels, and the masks of a record."""
    images = [] if values[record.FORMAT][0] == b"raw" else [values[record.ENCODED][0]]
    object_masks = values.get(record.OBJECT_PREFIX + "mask", [])  # empty for an object without a segmentation
    return images, [*values.get(record.MASK, []), *filter(None, object_masks)]


def _size_problem(check: RecordCheck, decoded: Sequence[tuple[str, tuple[int, int] | BadImage]]) -> str:
    height, width = check.size
    for kind, size in decoded:
        if isinstance(size, BadImage):
            return f"{check.key!r} cannot be decoded: {size.detail}"
        if size == check.size:
            continue
        if kind == "image":
            return f"{check.key!r} decodes to {size[1]}x{size[0]} pixels, its record says {width}x{height}"
        return f"a mask of {check.key!r} has {size[1]}x{size[0]} pixels, its image {width}x{height}"
    return ""


_ROW_COLUMNS = ("key", "offset", "sha256", "extra")
_SHA256_DIFFERS = f"its sha256 is not the one in {manifest.MANIFEST_NAME}"


@dataclass(kw_only=True)
class Verification:
    """Result of `verify_dataset`.

    Examples:
      >>> from beam_jobs import verify_dataset
      >>> result = verify_dataset("dataset")
      >>> result.records, result.shards
      (48, 2)

    Attributes:
      shards: number of shards read.
      records: number of records read and decoded.
      bytes: number of bytes read.
      problems: one line per problem; empty when the dataset is sound.
      leaks: one line per set of images that belong together (copies, a group or grouped near duplicates) and lie in
        several splits. Leaks are no problems of the dataset.
    """

    shards: int = 0
    records: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)


class Unit(NamedTuple):
    """A unit of the work: a shard, or, without a split, a file of the image table.

    Attributes:
      split: name of the split; empty for a file of the image table.
      number: index of the shard, or of the file.
    """

    split: str
    number: int

    @property
    def name(self) -> str:
        """Name of a file for the result of the unit."""
        return f"{self.split or '_images'}-{self.number:05d}"


@dataclass(kw_only=True)
class UnitReport:
    """Result of the check of a unit; the attributes are those of `Verification`, and `classes` of `SplitInfo`."""

    records: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    classes: dict[str, int] = field(default_factory=dict)


# Checks the units of a dataset, and yields a report for each, in their order.
CheckUnits = Callable[[Manifest, Sequence[Unit]], Iterable[UnitReport]]


def verify(directory: str, threads: int = 1, check_units: CheckUnits | None = None) -> Verification:
    """Checks every checksum and every count, and decodes every record.

    Examples:
      >>> from pathlib import Path
      >>> from beam_jobs import verify_dataset
      >>> verify_dataset("dataset").problems
      []
      >>> size = Path("dataset/rejects.parquet").write_bytes(b"")
      >>> verify_dataset("dataset").problems
      ['dataset/rejects.parquet has changed since it was published: its sha256 is not the one in dataset.json']

    Args:
      directory: directory of a published dataset.
      threads: number of threads that decode, at least 1.
      check_units: checks the shards and the image table elsewhere; see `verify_job.verify`.

    Returns:
      counts and problems. Problems are collected, not raised, so that one run names all of them.

    Raises:
      SourceError: the directory is not a dataset.
      CorruptDataset: `dataset.json` cannot be used.
    """
    dataset = manifest.load(directory)
    result = Verification()
    result.problems.extend(_check_manifest(directory))
    result.problems.extend(_check_tables(directory, _other_tables(dataset)))
    result.problems.extend(_check_counts(dataset))
    result.problems.extend(_find_stray_splits(directory, dataset))
    if dataset.images:
        result.problems.extend(_find_stray_files(directory, manifest.IMAGES_DIR, dataset.images))
    for split, info in dataset.splits.items():
        result.problems.extend(_find_stray_files(directory, shards.split_dir(split), info.shards))
    units = list_units(dataset)
    check = UnitChecker(directory, dataset, threads).check
    classes: dict[str, Counter[str]] = {split: Counter() for split in dataset.splits}
    for unit, report in zip(units, check_units(dataset, units) if check_units else map(check, units), strict=True):
        result.records += report.records
        result.bytes += report.bytes
        result.problems.extend(report.problems)
        if unit.split:
            result.shards += 1
            classes[unit.split].update(report.classes)
    if not result.problems:
        result.problems.extend(
            f"{split}: the class histogram of {manifest.MANIFEST_NAME} is not that of its records"
            for split, info in dataset.splits.items()
            if classes[split] != info.classes
        )
    result.leaks.extend(_find_leaks(directory, dataset))
    return result


def list_units(dataset: Manifest) -> list[Unit]:
    """Returns the files of the image table and the shards of a dataset."""
    tables = [Unit("", index) for index in range(len(dataset.image_digests))]
    return tables + [Unit(split, index) for split, info in dataset.splits.items() for index in range(len(info.shards))]


def _find_leaks(directory: str, dataset: Manifest) -> list[str]:
    kinds = lookup.select_leak_kinds(dataset.options.get("near_duplicates", "off"))
    try:
        with lookup.open_images(directory, dataset, ("key", "split", *kinds)) as images:
            return list(map(str, lookup.find_leaks(images, kinds)))
    except CorruptDataset:
        return []  # the check of the file names it


def _check_manifest(directory: str) -> Iterator[str]:
    # The checksum covers the values; this check covers spaces and line ends too.
    path = storage.join(directory, manifest.MANIFEST_NAME)
    content = storage.read_bytes(path)
    expected = manifest.serialise(json.loads(content))
    if content != expected:
        position = next((n for n, (one, other) in enumerate(zip(content, expected, strict=False)) if one != other), -1)
        where = f"at byte {position}" if position >= 0 else f"after byte {min(len(content), len(expected))}"
        yield f"{path} has changed since it was published: {where} it differs from what Feedline writes"


def _check_tables(directory: str, digests: Mapping[str, str]) -> Iterator[str]:
    for name, expected in digests.items():
        path = storage.join(directory, name)
        try:
            if storage.digest(path)[1] != expected:
                yield f"{path} has changed since it was published: {_SHA256_DIFFERS}"
        except OSError as error:
            yield f"{path} cannot be read: {error.strerror or error}"


def _other_tables(dataset: Manifest) -> dict[str, str]:
    return {name: digest for name, digest in dataset.tables.items() if name not in dataset.image_digests}


def _check_counts(dataset: Manifest) -> Iterator[str]:
    counts = dataset.counts
    written = sum(info.records for info in dataset.splits.values())
    if counts.written != written:
        yield f"{manifest.MANIFEST_NAME} counts {counts.written} images written, its shards hold {written}"
    rows = sum(part.rows for part in dataset.images)
    if dataset.images and rows != counts.written + counts.dropped:
        images = counts.written + counts.dropped
        yield f"the image table has {rows} rows, {manifest.MANIFEST_NAME} counts {images} images written or dropped"
    if counts.found != counts.written + counts.rejected + counts.dropped:
        yield f"{manifest.MANIFEST_NAME} counts {counts.found} images found, which is not written + rejected + dropped"


def _read_part(path: str, seed: int) -> tuple[int, tuple[str, str]]:
    """Reads every column of a file of the image table; returns the number of rows and the limits of `order_hash`."""
    rows, limits = 0, [0]
    for table in filter(len, schemas.read_images([path], schemas.IMAGES.names)):
        hashes = shards.hashes64(shards.ORDER, seed, table["key"].to_pylist())
        limits = [int(hashes.min()), int(hashes.max()), *(limits if rows else ())]
        limits = [min(limits), max(limits)]
        rows += len(table)
    return rows, (f"{limits[0]:016x}", f"{limits[-1]:016x}")


def _find_stray_splits(directory: str, dataset: Manifest) -> Iterator[str]:
    split_dirs = {shards.split_dir(split) for split in dataset.splits}
    for name in storage.list_dirs(directory):
        if name.startswith(shards.SPLIT_PREFIX) and name not in split_dirs:
            yield f"{name} is not a split of the dataset, but looks like one to readers that glob"


def _find_stray_files(directory: str, folder: str, files: Sequence[Shard | TablePart]) -> Iterator[str]:
    names = {file.name for file in files}
    for name in storage.list_files(storage.join(directory, folder)):
        if name not in names:
            yield f"{folder}/{name} is not part of the dataset, but readers that glob would read it"


@dataclass(frozen=True)
class UnitChecker:
    """Checks units of a dataset.

    Attributes:
      directory: directory of the dataset.
      dataset: its manifest.
      threads: number of threads that decode, at least 1.
    """

    directory: str
    dataset: Manifest
    threads: int

    def check(self, unit: Unit) -> UnitReport:
        """Reads a shard, or a file of the image table, and compares it with the manifest and the image table."""
        report = UnitReport()
        report.problems.extend(self._check_shard(unit, report) if unit.split else self._check_images(unit.number))
        return report

    @cached_property
    def _image_digests(self) -> dict[str, str]:
        return self.dataset.image_digests

    @cached_property
    def _shared_files(self) -> list[str]:
        """Paths of the files of the image table that have rows of several shards, or of none."""
        own = {
            f"{manifest.IMAGES_DIR}/{shards.part_name(unit.split, unit.number)}" for unit in list_units(self.dataset)
        }
        return [storage.join(self.directory, name) for name in self._image_digests if name not in own]

    def _check_images(self, index: int) -> list[str]:
        (name, digest), part = list(self._image_digests.items())[index], (*self.dataset.images, None)[index]
        path = storage.join(self.directory, name)
        problems = list(_check_tables(self.directory, {name: digest}))
        try:
            rows, hashes = _read_part(path, self.dataset.options.get("seed", 0))
        except CorruptDataset as error:
            return problems or [str(error)]
        if part and rows != part.rows:
            problems.append(f"{path} has {rows} rows, {manifest.MANIFEST_NAME} says {part.rows}")
        if part and rows and part.order_hashes not in (None, hashes):
            problems.append(f"{path} has other keys than {manifest.MANIFEST_NAME} says")
        return problems

    def _read_rows(self, unit: Unit, most: int) -> list[dict[str, Any]] | None:
        """Returns the first rows of a shard in the image table; None if a file that may have them is damaged."""
        own = f"{manifest.IMAGES_DIR}/{shards.part_name(unit.split, unit.number)}"
        paths = [storage.join(self.directory, own)] if own in self._image_digests else self._shared_files
        rows: list[dict[str, Any]] = []
        try:
            for table in schemas.read_images(paths, (*_ROW_COLUMNS, "split", "shard"), unit):
                is_of_shard = pc.and_(pc.equal(table["split"], unit.split), pc.equal(table["shard"], unit.number))
                rows += table.filter(is_of_shard).slice(0, most - len(rows)).select(_ROW_COLUMNS).to_pylist()
        except CorruptDataset:
            return None  # the check of the file names it
        return rows

    def _check_shard(self, unit: Unit, report: UnitReport) -> Iterator[str]:
        shard = self.dataset.splits[unit.split].shards[unit.number]
        path = storage.join(self.directory, shards.split_dir(unit.split), shard.name)
        rows = self._read_rows(unit, shard.records + 1)
        classes: Counter[str] = Counter()
        try:
            yield from _check_file(path, shard)
            with storage.open_read(path) as stream:
                batches = chunks_by_size(_read_shard(stream, path, rows or []), _payload_size)
                sizes = partial(sandbox.sizes, limits=STORED_LIMITS, processes=self.threads)
                check_batch = partial(_check_batch, dataset=self.dataset, sizes=sizes)
                count, last, is_intact = 0, -1, True
                for stored, check in itertools.chain.from_iterable(map_ordered(check_batch, batches, self.threads)):
                    last = stored.number
                    if isinstance(stored.payload, CorruptDataset):
                        is_intact = False
                        yield f"{stored.payload}{_name_image(rows, stored)}"
                        continue
                    count += 1
                    classes.update(check.labels)
                    if check.problem:
                        yield f"{path} offset {stored.offset}: {check.problem}"
                    if problem := _row_problem(rows, stored, check):
                        yield f"{path} offset {stored.offset}: {problem}"
                    report.bytes += len(stored.payload) + tfrecord.OVERHEAD
            report.records, report.classes = count, dict(classes)
            if is_intact and count != shard.records:
                yield f"{path} holds {count} records, {manifest.MANIFEST_NAME} says {shard.records}"
            if not is_intact and rows and last + 1 < len(rows):
                yield f"{path} ends before {len(rows) - last - 1} more records that the image table has for it"
            if is_intact and rows is not None and count < len(rows):
                yield f"{path} holds {count} records, the image table has {len(rows)} rows for it"
        except OSError as error:
            yield f"{path} cannot be read: {error.strerror or error}"


@dataclass(frozen=True, kw_only=True)
class _Record:
    """A record of a shard: its index, its offset in bytes, and its payload or the error of reading it."""

    number: int
    offset: int
    payload: bytes | CorruptDataset


def _read_shard(stream: BinaryIO, path: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[_Record]:
    """Yields every record; after a damaged length it continues at the next offset in the rows."""
    starts = sorted({row["offset"] for row in rows if isinstance(row["offset"], int) and row["offset"] >= 0})
    number = offset = 0
    while True:
        try:
            payload = tfrecord.read_record(stream, path, offset)
        except CorruptDataset as error:
            yield _Record(number=number, offset=offset, payload=error)
            end = stream.tell()
            if end > offset + tfrecord.HEADER:  # the length was right, so the next record begins here
                number, offset = number + 1, end
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


def _payload_size(stored: _Record) -> int:
    return len(stored.payload) if isinstance(stored.payload, bytes) else 0


def _check_batch(batch: Sequence[_Record], dataset: Manifest, sizes: Sizes) -> list[tuple[_Record, RecordCheck]]:
    checks = iter(check_record([one.payload for one in batch if isinstance(one.payload, bytes)], dataset, sizes))
    return [
        (one, next(checks) if isinstance(one.payload, bytes) else _unreadable_record(str(one.payload))) for one in batch
    ]


def _name_image(rows: list[dict[str, Any]] | None, one: _Record) -> str:
    """Returns the key of the image of a damaged record in brackets; empty when no row gives it."""
    if not rows or one.number >= len(rows) or rows[one.number]["offset"] != one.offset:
        return ""
    return f" (the image {rows[one.number]['key']!r})"


def _check_file(path: str, shard: Shard) -> Iterator[str]:
    size, sha256 = storage.digest(path)
    if size != shard.bytes:
        yield f"{path} has {size} bytes, {manifest.MANIFEST_NAME} says {shard.bytes}"
    elif sha256 != shard.sha256:
        yield f"{path} has changed since it was published: {_SHA256_DIFFERS}"


def _row_problem(rows: Sequence[Mapping[str, Any]] | None, stored: _Record, check: RecordCheck) -> str:
    """Returns the difference between a record and its row; empty when they agree, or without an image table."""
    if rows is None:
        return ""
    row = rows[stored.number] if stored.number < len(rows) else {}
    if (row.get("offset"), row.get("key"), row.get("sha256")) != (stored.offset, check.key, check.sha256):
        return f"the image table has no row for {check.key!r} at this offset"
    different = schemas.column_mismatch(row["extra"], check.extra)
    return f"the image table differs from the record of {check.key!r}: {different}" if different else ""
