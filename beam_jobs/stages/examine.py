"""Examines one bucket of references, a unit of work, and writes a table of facts and a table of rejects.

A spool file contains converted and downloaded images. Other images are read from the source again when shards are
written, so a local source that needs no conversion is not copied. This module does not use Beam.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, BinaryIO, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from beam_jobs import storage
from beam_jobs.common.system import CHUNK_ITEMS, Progress, chunks_by_size, local_progress, map_ordered
from beam_jobs.dataset import schemas
from beam_jobs.errors import BadImage, Fault, Unreadable
from beam_jobs.images import sandbox
from beam_jobs.images.annotations import check_annotations
from beam_jobs.images.normalise import geometry
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.rejects import Reject, RejectReason
from beam_jobs.sources import fetchers, http_fetch
from beam_jobs.sources.image_reader import SPOOL, Reader, Slice
from beam_jobs.stages import resume
from beam_jobs.stages.scan import Bucket
from beam_jobs.types import Annotations


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
        spool_slice = Slice(method=SPOOL, offset=self._position, length=len(data), path=self._name)
        self._position += len(data)
        return spool_slice.text

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
_REQUEST_IMAGES = 64  # in one request to a decoder; with 16, this process uses 1.4 times as much CPU time
UNREAD = "unread"  # in the work directory: notes about buckets with unreadable images
# Reasons for rejects that another attempt, or other permissions, may remove.
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
      threads: number of threads; 0 lets the worker choose the number.
      seed: seed of the hashes in the facts.
      reject_unreadable: whether unreadable images are rejected in this run; the next run tries them again.
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


class _Image(NamedTuple):
    """Index of a row of a `REFS` table, and the columns of it that examining needs."""

    row: int
    key: str
    uri: str
    slice: str
    bytes: int
    annotations: str


class _GoodImage(NamedTuple):
    """A good image; `stored` and `mask` are bytes for the spool file, None if the source can be read again."""

    facts: bytes
    size: int
    stored: bytes | None
    annotations: Annotations | None = None
    mask: bytes | None = None
    mask_values: tuple[int, ...] = ()
    mask_crc32c: int = 0


_File = tuple[_Image, fetchers.Content | None]  # content, or the error of reading it; None: a decoder reads it
_Outcome = tuple[_Image, _GoodImage | Reject | Unreadable]


def facts_path(work: str, bucket: Bucket) -> str:
    """Returns the path of the facts of a finished bucket; see `_sealed_path`."""
    return _sealed_path(work, bucket, _FACTS)


def rejects_path(work: str, bucket: Bucket) -> str:
    """Returns the path of the rejects of a finished bucket; see `_sealed_path`."""
    return _sealed_path(work, bucket, _REJECTS)


def _sealed_path(work: str, bucket: Bucket, kind: str) -> str:
    """Returns the path of the file of a kind that the marker of a bucket lists.

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
    if sealed_outcome := _load_outcome(work, bucket):
        local_progress.add(Progress(sealed_outcome.good + sealed_outcome.rejected, 0, sealed_outcome.rejected))
        return sealed_outcome
    refs = schemas.read(bucket.path)
    good: list[tuple[int, _GoodImage, str, str]] = []
    rejects: list[dict[str, Any]] = []
    faults: list[Fault] = []
    read_bytes = 0
    with resume.Attempt(_marker_path(work, bucket)) as attempt:
        spool_name = attempt.name(f"{_SPOOL}{bucket.name}", ".bin")
        with SpoolWriter(work, f"{DIRECTORY}/{spool_name}") as spool:
            for image, outcome in _readable_outcomes(refs, task, faults):
                if isinstance(outcome, Reject):
                    progress = Progress(1, outcome.bytes, 1)
                    rejects.append(schemas.reject_row(outcome))
                else:
                    progress = Progress(1, outcome.size, 0)
                    image_slice = image.slice if outcome.stored is None else spool.add(outcome.stored)
                    mask_slice = "" if outcome.mask is None else spool.add(outcome.mask)
                    good.append((image.row, outcome._replace(stored=None, mask=None), image_slice, mask_slice))
                read_bytes += progress.bytes
                local_progress.add(progress)
        if faults:
            error = Unreadable(faults[0].cause, tuple(faults))
            if not task.reject_unreadable:
                raise error
            write_unread_note(bucket, task, error)  # before the seal: the next run needs the note
        files = {spool_name: spool.size} if spool.size else {}
        tables = {_FACTS: _facts_table(refs, good, task.seed), _REJECTS: pa.Table.from_pylist(rejects, schemas.REJECTS)}
        for kind, table in tables.items():
            name = attempt.name(f"{kind}{bucket.name}", ".parquet")
            files[name] = schemas.write(storage.join(work, DIRECTORY, name), table)
        counts = {"good": len(good), "rejected": len(rejects), "bytes": read_bytes}
        other_outcome = attempt.seal({**counts, "files": files}, partial(_load_outcome, work, bucket))
    return other_outcome or Examined(**counts, resumed=False)


def _facts_table(refs: pa.Table, good: list[tuple[int, _GoodImage, str, str]], seed: int) -> pa.Table:
    """Returns the `EXAMINED` table of good images, given with their row index and the slices of image and mask."""
    rows, images, slices, mask_slices = zip(*good, strict=True) if good else ((), (), (), ())
    facts = np.frombuffer(b"".join(image.facts for image in images), sandbox.FACTS)
    work_columns = {
        "slice": slices,
        "mask_slice": mask_slices,
        "mask_values": [" ".join(map(str, image.mask_values)) for image in images],
        "mask_crc32c": [image.mask_crc32c for image in images],
    }
    annotations = [image.annotations for image in images]
    return schemas.examined_rows(refs.take(pa.array(rows, pa.int64())), facts, annotations, work_columns, seed)


def count_good(work: str, bucket: Bucket) -> int:
    """Returns the number of images with facts of a finished bucket; see `_sealed_path` for errors."""
    return int(resume.read_checked(_marker_path(work, bucket))["good"])


def sweep(work: str) -> None:
    """Removes the files of killed attempts; see `resume.sweep_unsealed`."""
    resume.sweep_unsealed(storage.join(work, DIRECTORY), itemgetter("files"))


def write_unread_note(bucket: Bucket, task: ExamineTask, error: Unreadable | OSError) -> None:
    """Writes a note in `UNREAD` about unreadable images of a bucket, or an error of writing its results. Idempotent."""
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
    """Returns whether a bucket has been examined and all its files are complete."""
    return _load_outcome(work, bucket) is not None


def marker_name(bucket: Bucket) -> str:
    """Returns the name, in `DIRECTORY`, of the marker of a finished bucket, which is its seal (see `resume`)."""
    return f"done-{bucket.name}.json"


def parse_progress(marker: bytes) -> Progress | None:
    """Returns the progress in the content of a marker; None if it is damaged."""
    try:
        counts = resume.parse_checked(marker)
    except ValueError:  # a damaged marker of an earlier run: its bucket is examined again
        return None
    return Progress(counts["good"] + counts["rejected"], counts["bytes"], counts["rejected"])


def _load_outcome(work: str, bucket: Bucket) -> Examined | None:
    """Returns the outcome of the sealed attempt at a bucket; None if there is none, or its files are not complete."""
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

    A spool may be as large as the source, and the checksum of each of its images is compared when shards are written.
    """
    path = storage.join(work, DIRECTORY, name)
    return storage.size(path) if name.startswith(_SPOOL) else storage.checksum(path)


def _marker_path(work: str, bucket: Bucket) -> str:
    return storage.join(work, DIRECTORY, marker_name(bucket))


def _readable_outcomes(
    refs: pa.Table, task: ExamineTask, faults: list[Fault]
) -> Iterator[tuple[_Image, _GoodImage | Reject]]:
    """Yields the outcome of each image of a bucket; appends unreadable images to `faults`, at most `MAX_FAULTS`."""
    for image, outcome in _outcomes(refs, task):
        if not isinstance(outcome, Unreadable):
            yield image, outcome
            continue
        faults.append(Fault(image.key, str(outcome)))
        if task.reject_unreadable:
            yield image, _reject(image, BadImage(RejectReason.UNREADABLE, str(outcome)), 0)
        elif len(faults) == resume.MAX_FAULTS:
            return


def _outcomes(refs: pa.Table, task: ExamineTask) -> Iterator[_Outcome]:
    """Yields the outcome of each image; one decoder per thread reads local files, and receives other files as bytes.

    If each thread that fetches images sent them to a decoder itself, an ingest would take a third to two thirds longer.
    """
    columns = [refs[name].to_pylist() for name in ("key", "uri", "slice", "bytes", "annotations")]
    images = [_Image(*values) for values in zip(range(len(refs)), *columns, strict=True)]
    locations = [(image.uri, image.slice) for image in images]
    contents: Generator[fetchers.Content | None, None, None] = (None for _ in images)
    reader: Reader | None = task.reader
    batch_images = _REQUEST_IMAGES if task.pixels.policy == "copy" else CHUNK_ITEMS  # converted images need memory
    if not task.reader.are_directly_readable(locations):
        reader, batch_images = None, CHUNK_ITEMS  # because a batch waits for the slowest server
        annotations = map(schemas.parse_annotations, columns[-1])
        has_mask_urls = any(http_fetch.is_url(item.mask or "") for item in annotations if item)
        # This process fetches masks; with a second fetching process, the limit of requests to a host would double.
        contents = fetchers.read_all(task.reader, locations, 1 if has_mask_urls else task.threads)
    try:
        batches = chunks_by_size(zip(images, contents, strict=True), _file_size, batch_images)
        for outcomes in map_ordered(partial(_examine, task=task, reader=reader), batches, task.threads):
            yield from outcomes
    except KeyboardInterrupt as interrupt:
        contents.throw(interrupt)  # closing it would wait for the running downloads
    finally:
        contents.close()  # releases the fetching processes, also after an error


def _file_size(file: _File) -> int:
    return file[0].bytes if file[1] is None else len(file[1]) if isinstance(file[1], bytes) else 0


def _examine(files: list[_File], task: ExamineTask, reader: Reader | None) -> list[_Outcome]:
    """Examines images with one request to a decoder, and returns their outcomes."""
    readable = [file for file in files if not isinstance(file[1], Exception)]
    inputs = [(image.uri, image.slice) if reader else data for image, data in readable]
    results = iter(sandbox.examine(inputs, task.limits, task.pixels, task.facts, task.threads, reader))
    return [
        (image, _outcome(image, data, data if isinstance(data, Exception) else next(results), task))
        for image, data in files
    ]


def _outcome(
    image: _Image,
    data: bytes | BadImage | Unreadable | None,
    result: sandbox.Examination | BadImage | Unreadable,
    task: ExamineTask,
) -> _GoodImage | Reject | Unreadable:
    """Returns the outcome of an image, with its annotations."""
    size = len(data) if isinstance(data, bytes) else 0 if data else image.bytes
    try:
        if isinstance(result, Exception):
            raise result
        good = _GoodImage(result.facts, size, result.stored)
        if good.stored is None and isinstance(data, bytes) and http_fetch.is_url(image.uri):
            good = good._replace(stored=data)
        return _process_annotations(image, good, task) if image.annotations else good
    except BadImage as bad:
        return _reject(image, bad, size if bad.size is None else bad.size)
    except Unreadable as fault:
        return fault


def _reject(image: _Image, bad: BadImage, size: int) -> Reject:
    return Reject(key=image.key, uri=image.uri, stage="examine", reason=bad.reason.value, detail=bad.detail, bytes=size)


def _process_annotations(image: _Image, good: _GoodImage, task: ExamineTask) -> _GoodImage:
    """Checks the annotations of an image against its size, and reads its mask."""
    annotations = schemas.parse_annotations(image.annotations)
    if annotations is None:
        return good
    facts = sandbox.unpack_facts(good.facts)
    check_annotations(annotations, facts.source_height, facts.source_width)
    if annotations.mask is None:
        return good._replace(annotations=annotations)
    source_mask = _read_mask(annotations.mask, task)
    target_geometry = geometry(task.pixels, facts.source_height, facts.source_width)
    mask, values = sandbox.normalise_mask(source_mask, target_geometry, task.limits, task.threads)
    is_readable_again = mask is source_mask and not http_fetch.is_url(annotations.mask)
    return good._replace(
        annotations=annotations,
        mask=None if is_readable_again else mask,
        mask_values=values,
        mask_crc32c=google_crc32c.value(mask),
    )


def _read_mask(uri: str, task: ExamineTask) -> bytes:
    try:
        data = task.reader.read(uri)
    except BadImage as bad:  # name the mask, because the caller reports the image
        raise BadImage(bad.reason, f"mask {http_fetch.remove_signature(uri)}: {bad.detail}") from bad
    except Unreadable as fault:
        raise Unreadable(f"mask {http_fetch.remove_signature(uri)}: {fault}") from fault
    if len(data) > task.limits.max_bytes:
        raise BadImage(
            RejectReason.BAD_MASK,
            f"mask {http_fetch.remove_signature(uri)}: {len(data)} bytes; max_bytes is {task.limits.max_bytes}",
        )
    return data
