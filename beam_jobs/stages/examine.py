"""Examine: one bucket of references -> a table of facts and a table of rejects. One unit of work, without Beam.

The spool contains converted and downloaded images. Other images are read again from the source, so a local source that
needs no conversion is not copied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, BinaryIO

import google_crc32c

from beam_jobs import storage
from beam_jobs.common.system import Progress, chunk_size, chunks_by_size, local_progress, map_chunks, map_ordered
from beam_jobs.dataset import schemas, shards
from beam_jobs.errors import BadImage, Fault, Unreadable
from beam_jobs.images import sandbox
from beam_jobs.images.annotations import check_annotations
from beam_jobs.images.normalise import geometry
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.rejects import Reject, RejectReason
from beam_jobs.sources import http_fetch
from beam_jobs.sources.image_reader import SPOOL, Reader, Slice
from beam_jobs.stages import resume
from beam_jobs.stages.scan import Bucket
from beam_jobs.types import ImageFacts, ImageRef


class SpoolWriter:
    """Writes a spool file atomically; the first `add` creates it."""

    def __init__(self, work: str, name: str) -> None:
        """Sets the path; creates no file.

        Args:
          work: work directory of the ingest.
          name: path of the file, relative to the work directory.
        """
        self._path = storage.join(work, name)
        self._name = name
        self._stack = contextlib.ExitStack()
        self._stream: BinaryIO | None = None
        self._position = 0

    def add(self, data: bytes) -> str:
        """Appends bytes and returns the text of their slice."""
        if self._stream is None:
            self._stream = self._stack.enter_context(storage.atomic_writer(self._path))
        self._stream.write(data)
        added = Slice(method=SPOOL, offset=self._position, length=len(data), path=self._name)
        self._position += len(data)
        return added.text

    @property
    def size(self) -> int:
        """Number of bytes added; if 0, there is no file."""
        return self._position

    def __enter__(self) -> SpoolWriter:
        """Returns itself; opens no file."""
        return self

    def __exit__(self, *error: Any) -> None:
        """Completes the file, or removes it when an error ends the block."""
        self._stack.__exit__(*error)


DIRECTORY = "examined"  # in the work directory
_FACTS, _REJECTS, _SPOOL = "facts-", "rejects-", "spool-"  # prefixes of file names in it
UNREAD = "unread"  # in the work directory: notes about buckets with unreadable images
# Reasons that another attempt, or other permissions, may remove.
_TRANSIENT = frozenset(
    reason.value
    for reason in (
        *(RejectReason.NOT_FETCHED, RejectReason.UNREADABLE),
        *(RejectReason.ADDRESS_REFUSED, RejectReason.OPTED_OUT),
    )
)


@dataclass(frozen=True, kw_only=True)
class ExamineTask:
    """Parameters for examining buckets; small and picklable.

    Attributes:
      reader: reads the images; its work directory receives the results.
      limits: limits of images.
      pixels: conversion of the pixels.
      facts: `all` or `basic`.
      threads: number of threads; 0, until a worker has it, lets the worker decide.
      seed: seed of the hashes in the facts.
      reject_unreadable: whether unreadable images are rejected, until the next run.
    """

    reader: Reader
    limits: ImageLimits
    pixels: PixelOptions
    facts: str
    threads: int
    seed: int = 0
    reject_unreadable: bool = False


@dataclass(frozen=True, kw_only=True)
class Examined:
    """Outcome of one bucket.

    Attributes:
      good: number of images with facts.
      rejected: number of rejected images.
      bytes: number of bytes read.
      resumed: whether an earlier run or another attempt examined the bucket.
    """

    good: int
    rejected: int
    bytes: int
    resumed: bool


@dataclass(frozen=True, kw_only=True)
class _GoodImage:
    """A good image; `spooled_image` and `spooled_mask` are the bytes for the spool, None where the source is stored."""

    facts: ImageFacts
    spooled_image: bytes | None
    spooled_mask: bytes | None
    mask_values: tuple[int, ...]


_File = tuple[ImageRef, bytes | BadImage | Unreadable]  # content of the file, or why it could not be read
_Outcome = tuple[ImageRef, _GoodImage | Reject | Unreadable]


def facts_path(work: str, bucket: Bucket) -> str:
    """Returns the path of the facts of a finished bucket; see `_sealed_path`."""
    return _sealed_path(work, bucket, _FACTS)


def rejects_path(work: str, bucket: Bucket) -> str:
    """Returns the path of the rejects of a finished bucket; see `_sealed_path`."""
    return _sealed_path(work, bucket, _REJECTS)


def _sealed_path(work: str, bucket: Bucket, kind: str) -> str:
    """Returns the path of the file that the marker of a bucket names.

    Raises:
      OSError: the bucket is not finished.
      ValueError: its marker is damaged.
    """
    files = resume.read_checked(_marker_path(work, bucket))["files"]
    return storage.join(work, DIRECTORY, next(name for name in files if name.startswith(kind)))


def examine_bucket(bucket: Bucket, task: ExamineTask) -> Examined:
    """Examines every image of a bucket, unless the bucket is finished.

    Idempotent: of several attempts, concurrent or successive, one is sealed, and all return its outcome.

    Raises:
      Unreadable: images could not be read, and `reject_unreadable` is not set.
      OSError: the results cannot be written.
    """
    work = task.reader.work
    if sealed := _load_outcome(work, bucket):
        local_progress.add(Progress(sealed.good + sealed.rejected, 0, sealed.rejected))
        return sealed
    good: list[dict[str, Any]] = []
    rejects: list[dict[str, Any]] = []
    faults: list[Fault] = []
    read = 0
    with resume.Attempt(_marker_path(work, bucket)) as attempt:
        spool_name = attempt.name(f"{_SPOOL}{bucket.name}", ".bin")
        with SpoolWriter(work, f"{DIRECTORY}/{spool_name}") as spool:
            for ref, outcome in _readable_outcomes(bucket, task, faults):
                if isinstance(outcome, Reject):
                    progress = Progress(1, outcome.bytes, 1)
                    rejects.append(schemas.reject_row(outcome))
                else:
                    progress = Progress(1, ref.bytes, 0)
                    slices = _stored_slices(ref, outcome, spool)
                    good.append(schemas.examined_row(ref, outcome.facts, slices, outcome.mask_values))
                read += progress.bytes
                local_progress.add(progress)
        if faults:
            error = Unreadable(faults[0].cause, tuple(faults))
            if not task.reject_unreadable:
                raise error
            write_unread_note(bucket, task, error)  # before the seal, for the next run
        add_hashes(good, task.seed)
        files = {spool_name: spool.size} if spool.size else {}
        for kind, rows, schema in ((_FACTS, good, schemas.EXAMINED), (_REJECTS, rejects, schemas.REJECTS)):
            name = attempt.name(f"{kind}{bucket.name}", ".parquet")
            files[name] = schemas.write(storage.join(work, DIRECTORY, name), rows, schema)
        counts = {"good": len(good), "rejected": len(rejects), "bytes": read}
        winner = attempt.seal({**counts, "files": files}, partial(_load_outcome, work, bucket))
    return winner or Examined(**counts, resumed=False)


def add_hashes(rows: list[dict[str, Any]], seed: int) -> None:
    """Adds to `EXAMINED` rows the hashes that decide the order of the images and their splits."""
    for name, purpose, text in (("order_hash", shards.ORDER, "key"), ("content_hash", shards.SPLIT, "sha256")):
        hashes = shards.hashes64(purpose, seed, (row[text] for row in rows))
        for row, value in zip(rows, hashes.tolist(), strict=True):
            row[name] = value


def count_good(work: str, bucket: Bucket) -> int:
    """Returns the number of images with facts of a finished bucket; see `_sealed_path` for errors."""
    return int(resume.read_checked(_marker_path(work, bucket))["good"])


def sweep(work: str) -> None:
    """Removes the files of killed attempts; see `resume.sweep_unsealed`."""
    resume.sweep_unsealed(storage.join(work, DIRECTORY), itemgetter("files"))


def write_unread_note(bucket: Bucket, task: ExamineTask, error: Unreadable | OSError) -> None:
    """Writes a note in `UNREAD` about the unreadable images of a bucket, or the error of its results. Idempotent."""
    faults = error.faults if isinstance(error, Unreadable) else (Fault(bucket.name, error.strerror or str(error)),)
    resume.write_fault_note(storage.join(task.reader.work, UNREAD), bucket.name, faults)


def invalidate_transient(work: str, bucket: Bucket) -> None:
    """Invalidates a finished bucket with rejects for transient reasons, for example because a server was down."""
    if _TRANSIENT & set(schemas.read(rejects_path(work, bucket))["reason"].to_pylist()):
        invalidate(work, bucket)


def invalidate(work: str, bucket: Bucket) -> None:
    """Removes the marker of a bucket, so that it is examined again."""
    storage.remove(_marker_path(work, bucket))


def is_finished(work: str, bucket: Bucket) -> bool:
    """Returns whether a bucket is examined, and all its files are complete."""
    return _load_outcome(work, bucket) is not None


def marker_name(bucket: Bucket) -> str:
    """Returns the name, in `DIRECTORY`, of the marker of a finished bucket."""
    return f"done-{bucket.name}.json"


def parse_progress(marker: bytes) -> Progress | None:
    """Returns the progress in the content of a marker; None if it is damaged."""
    try:
        counts = resume.parse_checked(marker)
    except ValueError:  # a damaged marker of an earlier run: its bucket is examined again
        return None
    return Progress(counts["good"] + counts["rejected"], counts["bytes"], counts["rejected"])


def _load_outcome(work: str, bucket: Bucket) -> Examined | None:
    """Returns the outcome of the sealed attempt at a bucket; None without one, or if its files are not complete."""
    if not storage.exists(_marker_path(work, bucket)):
        return None
    try:
        counts = resume.read_checked(_marker_path(work, bucket))
        files = counts.pop("files")
        is_complete = all(_check_value(work, name) == value for name, value in files.items())
    except (OSError, ValueError):
        return None
    return Examined(**counts, resumed=True) if is_complete else None


def _check_value(work: str, name: str) -> int:
    """Returns the crc32c of a table, or the size of a spool in bytes.

    A spool may be as large as the source; writing compares the checksum of each of its images.
    """
    path = storage.join(work, DIRECTORY, name)
    return storage.size(path) if name.startswith(_SPOOL) else storage.checksum(path)


def _marker_path(work: str, bucket: Bucket) -> str:
    return storage.join(work, DIRECTORY, marker_name(bucket))


def _readable_outcomes(
    bucket: Bucket, task: ExamineTask, faults: list[Fault]
) -> Iterator[tuple[ImageRef, _GoodImage | Reject]]:
    """Yields the outcome of each image of a bucket; appends unreadable images to `faults`, at most `MAX_FAULTS`."""
    for ref, outcome in _outcomes(bucket, task):
        if not isinstance(outcome, Unreadable):
            yield ref, outcome
            continue
        faults.append(Fault(ref.key, str(outcome)))
        if task.reject_unreadable:
            yield ref, _reject(ref, BadImage(RejectReason.UNREADABLE, str(outcome)), 0)
        elif len(faults) == resume.MAX_FAULTS:
            return


def _outcomes(bucket: Bucket, task: ExamineTask) -> Iterator[_Outcome]:
    rows = schemas.read(bucket.path).to_pylist()
    refs = map(schemas.parse_ref, rows)
    if task.reader.any_remote(rows):
        return _examine_remote(refs, task.reader.threads(rows, task.threads), task)
    chunk = chunk_size(sum(row["bytes"] for row in rows) / max(1, len(rows)))
    return map_chunks(lambda lot: _examine([_read(ref, task) for ref in lot], task), refs, task.threads, chunk)


def _examine_remote(refs: Iterable[ImageRef], fetch_threads: int, task: ExamineTask) -> Iterator[_Outcome]:
    """Fetches with many threads and examines with `task.threads`.

    If each fetching thread sent its own images to a decoder, an ingest would take a third to two thirds longer.
    """
    files = map_ordered(partial(_read, task=task), refs, fetch_threads)
    try:
        for outcomes in map_ordered(lambda lot: list(_examine(lot, task)), chunks_by_size(files, _size), task.threads):
            yield from outcomes
    except KeyboardInterrupt as interrupt:
        files.throw(interrupt)  # closing it would wait for the running downloads


def _size(file: _File) -> int:
    return len(file[1]) if isinstance(file[1], bytes) else 0


def _stored_slices(ref: ImageRef, image: _GoodImage, spool: SpoolWriter) -> tuple[str, str]:
    """Returns the slices of the stored image and mask; empty where the source file itself is stored."""
    image_slice = ref.slice if image.spooled_image is None else spool.add(image.spooled_image)
    return image_slice, "" if image.spooled_mask is None else spool.add(image.spooled_mask)


def _examine(files: list[_File], task: ExamineTask) -> Iterator[_Outcome]:
    """Examines images with one call of the decoder."""
    contents = [data for _, data in files if isinstance(data, bytes)]
    results = iter(sandbox.examine(contents, task.limits, task.pixels, task.facts, task.threads))
    for ref, data in files:
        if not isinstance(data, bytes):
            yield ref, data if isinstance(data, Unreadable) else _reject(ref, data, 0)
            continue
        try:
            yield _good_image(ref, data, next(results), task)
        except BadImage as bad:
            yield ref, _reject(ref, bad, len(data))
        except Unreadable as fault:  # the mask is unreadable
            yield ref, fault


def _read(ref: ImageRef, task: ExamineTask) -> _File:
    try:
        return ref, task.reader.read(ref.uri, ref.slice)
    except (BadImage, Unreadable) as error:
        return ref, error


def _good_image(
    ref: ImageRef, data: bytes, result: tuple[bytes, ImageFacts] | BadImage, task: ExamineTask
) -> tuple[ImageRef, _GoodImage]:
    if isinstance(result, BadImage):
        raise result
    encoded, facts = result
    facts, mask, values = _process_annotations(ref, facts, task)
    if not ref.bytes:  # the size of a URL is unknown before the download
        ref = replace(ref, bytes=len(data))
    spooled = None if encoded is data and not http_fetch.is_url(ref.uri) else encoded
    return ref, _GoodImage(facts=facts, spooled_image=spooled, spooled_mask=mask, mask_values=values)


def _reject(ref: ImageRef, bad: BadImage, read: int) -> Reject:
    return Reject(key=ref.key, uri=ref.uri, stage="examine", reason=bad.reason.value, detail=bad.detail, bytes=read)


def _process_annotations(
    ref: ImageRef, facts: ImageFacts, task: ExamineTask
) -> tuple[ImageFacts, bytes | None, tuple[int, ...]]:
    """Checks the annotations of an image against its size, and reads its mask.

    Returns:
      the facts with the checksum of the mask, the mask if it must be spooled, and its values.
    """
    annotations = ref.annotations
    if annotations is None:
        return facts, None, ()
    check_annotations(annotations, facts.source_height, facts.source_width)
    if annotations.mask is None:
        return facts, None, ()
    data = _read_mask(annotations.mask, task)
    plan = geometry(task.pixels, facts.source_height, facts.source_width)
    mask, values = sandbox.normalise_mask(data, plan, task.limits, task.threads)
    is_source = mask is data and not http_fetch.is_url(annotations.mask)
    return replace(facts, mask_crc32c=google_crc32c.value(mask)), None if is_source else mask, values


def _read_mask(uri: str, task: ExamineTask) -> bytes:
    try:
        data = task.reader.read(uri)
    except BadImage as bad:  # name the mask, because the caller reports the image
        raise BadImage(bad.reason, f"mask {http_fetch.unsigned(uri)}: {bad.detail}") from bad
    except Unreadable as fault:
        raise Unreadable(f"mask {http_fetch.unsigned(uri)}: {fault}") from fault
    if len(data) > task.limits.max_bytes:
        raise BadImage(
            RejectReason.BAD_MASK,
            f"mask {http_fetch.unsigned(uri)}: {len(data)} bytes; max_bytes is {task.limits.max_bytes}",
        )
    return data
