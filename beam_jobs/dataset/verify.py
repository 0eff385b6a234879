"""Verify: read a published dataset back, every byte of it, and compare it with what its manifest promises."""

from __future__ import annotations

import bisect
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

from beam_jobs import storage
from beam_jobs.common.concurrency import lots, map_ordered
from beam_jobs.dataset import leaks, manifest, schemas, shards, tfrecord, user_columns, verify_record
from beam_jobs.dataset.manifest import Manifest, Shard
from beam_jobs.dataset.verify_record import Seen, Sizes
from beam_jobs.errors import CorruptDataset
from beam_jobs.images import sandbox
from beam_jobs.options import STORED_LIMITS

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
    kinds = leaks.kinds_of(dataset.options.get("near_duplicates", "off"))
    try:
        images = schemas.read_published(storage.join(directory, manifest.IMAGES_NAME)).select(["key", "split", *kinds])
        return [str(leak) for leak in leaks.find(images, kinds)]
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
            checked = itertools.chain.from_iterable(map_ordered(lot, lots(found, _size), threads))
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
    checked = iter(verify_record.check([one.payload for one in lot if isinstance(one.payload, bytes)], dataset, sizes))
    return [
        (one, next(checked) if isinstance(one.payload, bytes) else verify_record.unreadable(str(one.payload)))
        for one in lot
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
    different = user_columns.mismatch(row["extra"], seen.extra)
    return f"{manifest.IMAGES_NAME} differs from the record of {seen.key!r}: {different}" if different else ""
