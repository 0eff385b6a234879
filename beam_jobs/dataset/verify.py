"""Verification: reads every byte of a published dataset and compares it with its manifest.

Each record is decoded and compared with its format, its row of the image table and the labels of the dataset.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.common.system import chunks_by_size, map_ordered
from beam_jobs.dataset import lookup, manifest, schemas, shards, tfrecord
from beam_jobs.dataset.manifest import Manifest, Shard, TablePart
from beam_jobs.dataset.record_check import DecodeSizes, RecordCheck, check_records, unreadable_record
from beam_jobs.errors import CorruptDataset
from beam_jobs.images import sandbox
from beam_jobs.options import STORED_LIMITS

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
      problems: one line per problem; empty if the dataset is intact.
      leaks: one line per set of images that belong together (copies, a group or grouped near duplicates) and lie in
        several splits. Leaks do not count as problems.
    """

    shards: int = 0
    records: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)


class Unit(NamedTuple):
    """A unit of work: a shard, or a file of the image table.

    Attributes:
      split: name of the split; empty for a file of the image table.
      number: index of the shard in the split, or of the file.
    """

    split: str
    number: int

    @property
    def name(self) -> str:
        """Name of the file with the report of the unit."""
        return f"{self.split or '@images'}-{self.number:05d}"  # names of splits have no @


@dataclass(kw_only=True)
class UnitReport:
    """Result of the check of a unit.

    Attributes:
      records, bytes, problems: as in `Verification`.
      classes: class name -> number of its labels.
      row_error: why rows of the shard in the image table could not be read; empty if they could.
    """

    records: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    classes: dict[str, int] = field(default_factory=dict)
    row_error: str = ""


# Function that checks the units of a dataset and yields a report for each, in order.
RunChecks = Callable[[Manifest, Sequence[Unit]], Iterable[UnitReport]]


def verify(directory: str, threads: int = 1, check_units: RunChecks | None = None) -> Verification:
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
      check_units: function that checks shards and image table in other processes; see `verify_job.verify_on_runner`.

    Returns:
      counts and problems. Problems are collected, not raised, so that one run reports all of them.

    Raises:
      SourceError: the directory is not a dataset.
      CorruptDataset: `dataset.json` cannot be used.
    """
    dataset = manifest.load(directory)
    result = Verification()
    result.leaks, row_error = _find_leaks(directory, dataset)
    result.problems.extend(_check_manifest(directory))
    other_tables = {name: digest for name, digest in dataset.tables.items() if name not in dataset.image_digests}
    result.problems.extend(_check_tables(directory, other_tables))
    result.problems.extend(_check_counts(dataset))
    result.problems.extend(_find_stray_splits(directory, dataset))
    if dataset.images:
        result.problems.extend(_find_stray_files(directory, manifest.IMAGES_DIR, dataset.images))
    for split, info in dataset.splits.items():
        result.problems.extend(_find_stray_files(directory, shards.split_dir(split), info.shards))
    units = list_units(dataset)
    check_unit = UnitChecker(directory, dataset, threads).check
    classes: dict[str, Counter[str]] = {split: Counter() for split in dataset.splits}
    for unit, report in zip(units, check_units(dataset, units) if check_units else map(check_unit, units), strict=True):
        result.records += report.records
        result.bytes += report.bytes
        result.problems.extend(report.problems)
        row_error = row_error or report.row_error
        if unit.split:
            result.shards += 1
            classes[unit.split].update(report.classes)
    if not result.problems:
        result.problems.extend(
            f"{split}: the class histogram in {manifest.MANIFEST_NAME} does not match the records"
            for split, info in dataset.splits.items()
            if classes[split] != info.classes
        )
    # The check of the damaged file has usually reported it already.
    if row_error and not any(path in text for path in dataset.image_paths(directory) for text in result.problems):
        result.problems.append(row_error)
    return result


def list_units(dataset: Manifest) -> list[Unit]:
    """Returns the files of the image table and the shards of a dataset."""
    tables = [Unit("", index) for index in range(len(dataset.image_digests))]
    return tables + [Unit(split, index) for split, info in dataset.splits.items() for index in range(len(info.shards))]


def _find_leaks(directory: str, dataset: Manifest) -> tuple[list[str], str]:
    """Returns the leaks, and why the image table could not be read; empty if it could."""
    kinds = lookup.select_leak_kinds(dataset.options.get("near_duplicates", "off"))
    try:
        with lookup.open_images(directory, dataset, ("key", "split", *kinds)) as images:
            return list(map(str, lookup.find_leaks(images, kinds))), ""
    except CorruptDataset as error:
        return [], str(error)


def _check_manifest(directory: str) -> Iterator[str]:
    # The checksum covers the values; this check covers spaces and line ends too.
    path = storage.join(directory, manifest.MANIFEST_NAME)
    content = storage.read_bytes(path)
    expected = manifest.serialise(json.loads(content))
    if content != expected:
        position = next((n for n, pair in enumerate(zip(content, expected, strict=False)) if pair[0] != pair[1]), -1)
        place = f"at byte {position}" if position >= 0 else f"after byte {min(len(content), len(expected))}"
        yield f"{path} has changed since it was published: it differs from the output of Feedline {place}"


def _check_tables(directory: str, digests: Mapping[str, str]) -> Iterator[str]:
    for name, expected in digests.items():
        path = storage.join(directory, name)
        try:
            if storage.digest(path)[1] != expected:
                yield f"{path} has changed since it was published: {_SHA256_DIFFERS}"
        except OSError as error:
            yield f"{path} cannot be read: {error.strerror or error}"


def _check_counts(dataset: Manifest) -> Iterator[str]:
    counts = dataset.counts
    written = sum(info.records for info in dataset.splits.values())
    if counts.written != written:
        yield f"{manifest.MANIFEST_NAME} has {counts.written} written images, its shards have {written}"
    rows = sum(part.rows for part in dataset.images)
    if dataset.images and rows != counts.written + counts.dropped:
        images = counts.written + counts.dropped
        yield f"the image table has {rows} rows, {manifest.MANIFEST_NAME} has {images} written or dropped images"
    if counts.found != counts.written + counts.rejected + counts.dropped:
        yield f"{manifest.MANIFEST_NAME} has {counts.found} found images, which is not written + rejected + dropped"


def _read_part(path: str, seed: int) -> tuple[int, tuple[str, str]]:
    """Reads every column of a file of the image table; returns the row count and the range of order hashes."""
    row_count, hash_range = 0, [0]  # 0 for a file without rows
    for table in filter(len, schemas.read_images([path], schemas.IMAGES.names)):
        hashes = shards.hashes64(shards.ORDER, seed, table["key"].to_pylist())
        hash_range = [int(hashes.min()), int(hashes.max()), *(hash_range if row_count else ())]
        hash_range = [min(hash_range), max(hash_range)]
        row_count += len(table)
    return row_count, (f"{hash_range[0]:016x}", f"{hash_range[-1]:016x}")


def _find_stray_splits(directory: str, dataset: Manifest) -> Iterator[str]:
    split_dirs = {shards.split_dir(split) for split in dataset.splits}
    for name in storage.list_dirs(directory):
        if name.startswith(shards.SPLIT_PREFIX) and name not in split_dirs:
            yield f"{name} is not a split of the dataset, but readers that glob would read it"


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
        """Compares a shard, or a file of the image table, with the manifest and the image table; returns the report."""
        report = UnitReport()
        report.problems.extend(self._check_shard(unit, report) if unit.split else self._check_images(unit.number))
        return report

    @cached_property
    def _image_digests(self) -> dict[str, str]:
        return self.dataset.image_digests

    @cached_property
    def _image_names(self) -> list[str]:
        return list(self._image_digests)

    def _check_images(self, index: int) -> list[str]:
        name, digest = self._image_names[index], self._image_digests[self._image_names[index]]
        file = self.dataset.images[index] if self.dataset.images else None
        path = storage.join(self.directory, name)
        problems = list(_check_tables(self.directory, {name: digest}))
        try:
            rows, order_hashes = _read_part(path, self.dataset.options.get("seed", 0))
        except CorruptDataset as error:
            return problems or [str(error)]  # a changed sha256 explains the error
        if file and rows != file.rows:
            problems.append(f"{path} has {rows} rows instead of {file.rows} as in {manifest.MANIFEST_NAME}")
        if file and rows and file.order_hashes not in (None, order_hashes):
            problems.append(f"{path} has keys that do not match order_hashes in {manifest.MANIFEST_NAME}")
        return problems

    @cached_property
    def _shared_groups(self) -> dict[tuple[str, int], dict[str, list[int]]]:
        """(split, index) of a shard -> path of a file with rows of several shards -> row groups for the shard."""
        one_shard_files = {
            f"{manifest.IMAGES_DIR}/{shards.part_name(unit.split, unit.number)}" for unit in list_units(self.dataset)
        }
        groups: dict[tuple[str, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for path in [storage.join(self.directory, name) for name in self._image_digests if name not in one_shard_files]:
            ends = np.cumsum(schemas.image_row_groups(path))
            row = 0
            for table in schemas.read_images([path], ["split", "shard"]):
                group_numbers = np.searchsorted(ends[:-1], np.arange(row, row + len(table)), side="right")
                shards_of_rows = table.append_column("group", pa.array(group_numbers))
                for values in shards_of_rows.group_by(shards_of_rows.column_names).aggregate([]).to_pylist():
                    shard_groups = groups[values["split"], values["shard"]][path]
                    if values["group"] not in shard_groups:
                        shard_groups.append(values["group"])
                row += len(table)
        return groups

    def _read_rows(self, unit: Unit, limit: int) -> list[dict[str, Any]]:
        """Returns the first `limit` rows of a shard in the image table.

        Raises:
          CorruptDataset: a file that may contain these rows is damaged, or cannot be read.
        """
        file_name = f"{manifest.IMAGES_DIR}/{shards.part_name(unit.split, unit.number)}"
        if file_name in self._image_digests:
            paths, groups = [storage.join(self.directory, file_name)], None
        else:
            groups = self._shared_groups.get(unit, {})
            paths = list(groups)
        rows: list[dict[str, Any]] = []
        for table in schemas.read_images(paths, (*_ROW_COLUMNS, "split", "shard"), groups):
            is_of_shard = pc.and_(pc.equal(table["split"], unit.split), pc.equal(table["shard"], unit.number))
            rows += table.filter(is_of_shard).slice(0, limit - len(rows)).select(_ROW_COLUMNS).to_pylist()
        return rows

    def _check_shard(self, unit: Unit, report: UnitReport) -> Iterator[str]:
        shard = self.dataset.splits[unit.split].shards[unit.number]
        path = storage.join(self.directory, shards.split_dir(unit.split), shard.name)
        rows = None
        try:
            rows = self._read_rows(unit, shard.records + 1)  # 1 more finds surplus rows
        except CorruptDataset as error:
            report.row_error = str(error)
        classes: Counter[str] = Counter()
        try:
            yield from _check_file(path, shard)
            with storage.open_read(path) as stream:
                batches = chunks_by_size(_read_shard(stream, path, rows or []), _payload_size)
                decode_sizes = partial(sandbox.sizes, limits=STORED_LIMITS, processes=self.threads)
                check_batch = partial(_check_batch, dataset=self.dataset, decode=decode_sizes)
                count, last_number, is_intact = 0, -1, True
                for stored, check in itertools.chain.from_iterable(map_ordered(check_batch, batches, self.threads)):
                    last_number = stored.number
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
                yield f"{path} has {count} records instead of {shard.records} as in {manifest.MANIFEST_NAME}"
            if not is_intact and rows and last_number + 1 < len(rows):
                yield f"{path} ends before the last {len(rows) - last_number - 1} of its records in the image table"
            if is_intact and rows is not None and count < len(rows):
                yield f"{path} has {count} records, the image table has {len(rows)} rows for it"
        except OSError as error:
            yield f"{path} cannot be read: {error.strerror or error}"


@dataclass(frozen=True, kw_only=True)
class _Record:
    """A record of a shard: its index, its offset in bytes, and its payload or the error of reading it."""

    number: int
    offset: int
    payload: bytes | CorruptDataset


def _read_shard(stream: BinaryIO, path: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[_Record]:
    """Yields every record; after a damaged length, continues at the next offset in the rows."""
    starts = sorted({row["offset"] for row in rows if isinstance(row["offset"], int) and row["offset"] >= 0})
    number = offset = 0
    while True:
        try:
            payload = tfrecord.read_record(stream, path, offset)
        except CorruptDataset as error:
            yield _Record(number=number, offset=offset, payload=error)
            end = stream.tell()
            if end > offset + tfrecord.HEADER_BYTES:  # the length was right, so the next record begins here
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


def _check_batch(batch: Sequence[_Record], dataset: Manifest, decode: DecodeSizes) -> list[tuple[_Record, RecordCheck]]:
    payloads = [stored.payload for stored in batch]
    checks = iter(check_records([data for data in payloads if isinstance(data, bytes)], dataset, decode))
    all_checks = [next(checks) if isinstance(data, bytes) else unreadable_record(str(data)) for data in payloads]
    return list(zip(batch, all_checks, strict=True))


def _name_image(rows: list[dict[str, Any]] | None, stored: _Record) -> str:
    """Returns the key of the image of a damaged record, in parentheses; empty if no row has its offset."""
    if not rows or stored.number >= len(rows) or rows[stored.number]["offset"] != stored.offset:
        return ""
    return f" (the image {rows[stored.number]['key']!r})"


def _check_file(path: str, shard: Shard) -> Iterator[str]:
    size, sha256 = storage.digest(path)
    if size != shard.bytes:
        yield f"{path} has {size} bytes instead of {shard.bytes} as in {manifest.MANIFEST_NAME}"
    elif sha256 != shard.sha256:
        yield f"{path} has changed since it was published: {_SHA256_DIFFERS}"


def _row_problem(rows: Sequence[Mapping[str, Any]] | None, stored: _Record, check: RecordCheck) -> str:
    """Returns the difference between a record and its row; empty if they agree, or if the rows could not be read."""
    if rows is None:
        return ""
    row = rows[stored.number] if stored.number < len(rows) else {}
    if (row.get("offset"), row.get("key"), row.get("sha256")) != (stored.offset, check.key, check.sha256):
        return f"the image table has no row for {check.key!r} at this offset"
    mismatch = schemas.column_mismatch(row["extra"], check.extra)
    return f"the image table differs from the record of {check.key!r}: {mismatch}" if mismatch else ""
