"""Examine: one bucket of references -> a table of facts and a table of rejects. One unit of work, no Beam in sight.

The spool holds images that were changed, and images that cost a download. Everything else is read again where it lies,
so it holds no second copy of a source that needs none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from types import TracebackType
from typing import Any, BinaryIO

import google_crc32c

from beam_jobs import storage
from beam_jobs.common.system import Progress, chunk_size, chunks_by_size, local_progress, map_chunks, map_ordered
from beam_jobs.dataset import schemas
from beam_jobs.errors import BadImage, Fault, RejectReason, Unreadable
from beam_jobs.images import sandbox
from beam_jobs.images.annotations import check_annotations
from beam_jobs.images.normalise import geometry
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.sources import http_fetch
from beam_jobs.sources.image_reader import SPOOL, Reader, Slice
from beam_jobs.stages import work_units
from beam_jobs.stages.scan import Bucket
from beam_jobs.types import ImageFacts, ImageRef, Reject


class SpoolWriter:
    """Writes a spool file, complete under its name or not there; made when something is first added."""

    def __init__(self, work: str, name: str) -> None:
        """Names the file.

        Args:
          work: work directory of the ingest.
          name: of the file, relative to it.
        """
        self._path = storage.join(work, name)
        self._name = name
        self._stack = contextlib.ExitStack()
        self._stream: BinaryIO | None = None
        self._position = 0

    def add(self, data: bytes) -> str:
        """Appends bytes and returns the text of the slice that they are."""
        if self._stream is None:
            self._stream = self._stack.enter_context(storage.atomic_writer(self._path))
        self._stream.write(data)
        piece = Slice(method=SPOOL, offset=self._position, length=len(data), path=self._name)
        self._position += len(data)
        return piece.text

    @property
    def size(self) -> int:
        """Bytes added so far; there is no file while there are none."""
        return self._position

    def __enter__(self) -> SpoolWriter:
        """Opens nothing yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Completes the file, or removes it when an error ends the block."""
        self._stack.__exit__(kind, error, trace)


DIRECTORY = "examined"  # in the work directory
_FACTS, _REJECTS, _SPOOL = "facts-", "rejects-", "spool-"  # what the names of files in it begin with
UNREAD = "unread"  # in the work directory: notes of the buckets with images that could not be read
# What another attempt, or another answer to who may be asked, can undo.
_TRANSIENT = (RejectReason.NOT_FETCHED.value, RejectReason.ADDRESS_REFUSED.value, RejectReason.UNREADABLE.value)


@dataclass(frozen=True, kw_only=True)
class ExamineTask:
    """What a worker needs to know to examine buckets; small and picklable.

    Attributes:
      reader: reads the images; its work directory is where the results go.
      limits: what an image may be.
      pixels: what becomes of the pixels.
      facts: `all` or `basic`.
      threads: threads to use.
      reject_unreadable: whether images that cannot be read are rejected, for one run.
    """

    reader: Reader
    limits: ImageLimits
    pixels: PixelOptions
    facts: str
    threads: int
    reject_unreadable: bool = False


@dataclass(frozen=True, kw_only=True)
class Examined:
    """Outcome of one bucket.

    Attributes:
      good: images with facts.
      rejected: images rejected.
      bytes: bytes read.
      resumed: whether an earlier run, or another attempt, has done it.
    """

    good: int
    rejected: int
    bytes: int
    resumed: bool


@dataclass(frozen=True, kw_only=True)
class _Good:
    """A good image; `changed` and `mask` are what cannot be read again where it lies, None for the rest."""

    facts: ImageFacts
    changed: bytes | None
    mask: bytes | None
    mask_values: tuple[int, ...]


_File = tuple[ImageRef, bytes | BadImage | Unreadable]  # what was read of an image
_Verdict = tuple[ImageRef, _Good | Reject]
_Outcome = tuple[ImageRef, _Good | Reject | Unreadable]


def facts_path(work: str, bucket: Bucket) -> str:
    """Returns the file of facts of a bucket that is done; see `_sealed_path`."""
    return _sealed_path(work, bucket, _FACTS)


def rejects_path(work: str, bucket: Bucket) -> str:
    """Returns the file of rejects of a bucket that is done; see `_sealed_path`."""
    return _sealed_path(work, bucket, _REJECTS)


def _sealed_path(work: str, bucket: Bucket, kind: str) -> str:
    """Returns the file that the marker of a bucket names.

    Raises:
      OSError: the bucket is not done.
      ValueError: its marker is damaged.
    """
    files = work_units.read_checked(_marker_path(work, bucket))["files"]
    return storage.join(work, DIRECTORY, next(name for name in files if name.startswith(kind)))


def examine_bucket(bucket: Bucket, task: ExamineTask) -> Examined:
    """Examines every image of a bucket, unless it is done.

    Idempotent: of several attempts, at once or one after the other, one counts, and all return its outcome.

    Raises:
      Unreadable: images could not be read, and are not to be rejected.
      OSError: the results cannot be written.
    """
    work = task.reader.work
    if earlier := _earlier(work, bucket):
        local_progress.add(Progress(earlier.good + earlier.rejected, 0, earlier.rejected))
        return earlier
    good: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    faults: list[Fault] = []
    read = 0
    with work_units.Attempt(_marker_path(work, bucket)) as attempt:
        spool_name = attempt.name(f"{_SPOOL}{bucket.name}", ".bin")
        with SpoolWriter(work, f"{DIRECTORY}/{spool_name}") as spool:
            for ref, outcome in _verdicts(bucket, task, faults):
                if isinstance(outcome, Reject):
                    done = Progress(1, outcome.bytes, 1)
                    bad.append(schemas.reject_row(outcome))
                else:
                    done = Progress(1, ref.bytes, 0)
                    places = _places(ref, outcome, spool)
                    good.append(schemas.examined_row(ref, outcome.facts, places, outcome.mask_values))
                read += done.bytes
                local_progress.add(done)
        if faults:
            unread = Unreadable(faults[0].cause, tuple(faults))
            if not task.reject_unreadable:
                raise unread
            note_unread(bucket, task, unread)  # before the seal, for the next run
        files = {spool_name: spool.size} if spool.size else {}
        for kind, rows, schema in ((_FACTS, good, schemas.EXAMINED), (_REJECTS, bad, schemas.REJECTS)):
            name = attempt.name(f"{kind}{bucket.name}", ".parquet")
            files[name] = schemas.write(storage.join(work, DIRECTORY, name), rows, schema)
        counts = {"good": len(good), "rejected": len(bad), "bytes": read}
        winner = attempt.seal({**counts, "files": files}, partial(_earlier, work, bucket))
    return winner or Examined(**counts, resumed=False)


def sweep(work: str) -> None:
    """Removes what attempts that were killed have left; see `sealed.sweep`."""
    work_units.sweep_unsealed(storage.join(work, DIRECTORY), itemgetter("files"))


def note_unread(bucket: Bucket, task: ExamineTask, error: Unreadable | OSError) -> None:
    """Leaves a note in `UNREAD` of what could not be read of a bucket, or of what its results met. Idempotent."""
    faults = error.faults if isinstance(error, Unreadable) else (Fault(bucket.name, error.strerror or str(error)),)
    work_units.note_faults(storage.join(task.reader.work, UNREAD), bucket.name, faults)


def forget_transient(work: str, bucket: Bucket) -> None:
    """Has a finished bucket examined again if what it rejected may be good in the next run: a server was down, say."""
    if set(_TRANSIENT) & set(schemas.read(rejects_path(work, bucket))["reason"].to_pylist()):
        forget(work, bucket)


def forget(work: str, bucket: Bucket) -> None:
    """Has a bucket examined again, whatever an earlier run found."""
    storage.remove(_marker_path(work, bucket))


def is_done(work: str, bucket: Bucket) -> bool:
    """Returns whether a bucket is examined, and all that was written of it is there."""
    return _earlier(work, bucket) is not None


def marker_name(bucket: Bucket) -> str:
    """Returns the name, in `DIRECTORY`, of the file that says that a bucket is done."""
    return f"done-{bucket.name}.json"


def done_by(marker: bytes) -> Progress | None:
    """Returns what the content of such a file says was done; None when it is damaged."""
    try:
        counts = work_units.parse_checked(marker)
    except ValueError:  # of an earlier run: its bucket is being examined again
        return None
    return Progress(counts["good"] + counts["rejected"], counts["bytes"], counts["rejected"])


def _earlier(work: str, bucket: Bucket) -> Examined | None:
    """Returns what the attempt that counts found in a bucket; None without one, or when its files are not whole."""
    if not storage.exists(_marker_path(work, bucket)):
        return None
    try:
        counts = work_units.read_checked(_marker_path(work, bucket))
        files = counts.pop("files")
        whole = all(_check(work, name) == check for name, check in files.items())
    except (OSError, ValueError):
        return None
    return Examined(**counts, resumed=True) if whole else None


def _check(work: str, name: str) -> int:
    """Returns the crc32c of a table, and the bytes of a spool.

    A spool may be as large as the source, and each image in it has a checksum that is compared when it is written.
    """
    path = storage.join(work, DIRECTORY, name)
    return storage.size(path) if name.startswith(_SPOOL) else storage.checksum(path)


def _marker_path(work: str, bucket: Bucket) -> str:
    return storage.join(work, DIRECTORY, marker_name(bucket))


def _verdicts(bucket: Bucket, task: ExamineTask, faults: list[Fault]) -> Iterator[_Verdict]:
    """Yields what became of the images of a bucket; those that cannot be read go to the faults, which are bounded."""
    for ref, outcome in _outcomes(bucket, task):
        if not isinstance(outcome, Unreadable):
            yield ref, outcome
            continue
        faults.append(Fault(ref.key, str(outcome)))
        if task.reject_unreadable:
            yield ref, _reject(ref, BadImage(RejectReason.UNREADABLE, str(outcome)), 0)
        elif len(faults) == work_units.MOST_FAULTS:
            return


def _outcomes(bucket: Bucket, task: ExamineTask) -> Iterator[_Outcome]:
    rows = schemas.read(bucket.path).to_pylist()
    refs = map(schemas.parse_ref, rows)
    if task.reader.any_remote(rows):
        return _from_servers(refs, task.reader.threads(rows, task.threads), task)
    chunk = chunk_size(sum(row["bytes"] for row in rows) / max(1, len(rows)))
    return map_chunks(partial(_from_disk, task=task), refs, task.threads, chunk)


def _from_disk(refs: list[ImageRef], task: ExamineTask) -> Iterator[_Outcome]:
    return _examine([_read(ref, task) for ref in refs], task)


def _from_servers(refs: Iterable[ImageRef], waiting: int, task: ExamineTask) -> Iterator[_Outcome]:
    """Fetches by many threads, which wait, and examines by as many as compute.

    Were each of the many to hand its own image to a decoder, an ingest would take a third to two thirds longer.
    """
    fetched = map_ordered(partial(_read, task=task), refs, waiting)
    try:
        for outcomes in map_ordered(partial(_examine_all, task=task), chunks_by_size(fetched, _size), task.threads):
            yield from outcomes
    except KeyboardInterrupt as stop:
        fetched.throw(stop)  # or it would be closed, and wait for what it fetches


def _examine_all(files: list[_File], task: ExamineTask) -> list[_Outcome]:
    return list(_examine(files, task))


def _size(file: _File) -> int:
    return len(file[1]) if isinstance(file[1], bytes) else 0


def _places(ref: ImageRef, outcome: _Good, spool: SpoolWriter) -> tuple[str, str]:
    """Returns the slices of the stored image and mask; empty where the file itself is stored."""
    image = ref.slice if outcome.changed is None else spool.add(outcome.changed)
    return image, "" if outcome.mask is None else spool.add(outcome.mask)


def _examine(files: list[_File], task: ExamineTask) -> Iterator[_Outcome]:
    """Has a decoder look at some images in one go."""
    read = [data for _, data in files if isinstance(data, bytes)]
    answers = iter(sandbox.examine(read, task.limits, task.pixels, task.facts, task.threads))
    for ref, data in files:
        if not isinstance(data, bytes):
            yield ref, data if isinstance(data, Unreadable) else _reject(ref, data, 0)
            continue
        try:
            yield _outcome(ref, data, next(answers), task)
        except BadImage as bad:
            yield ref, _reject(ref, bad, len(data))
        except Unreadable as fault:  # of its mask
            yield ref, fault


def _read(ref: ImageRef, task: ExamineTask) -> _File:
    try:
        return ref, task.reader.read(ref.uri, ref.slice)
    except (BadImage, Unreadable) as failed:
        return ref, failed


def _outcome(
    ref: ImageRef, data: bytes, answer: tuple[bytes, ImageFacts] | BadImage, task: ExamineTask
) -> tuple[ImageRef, _Good]:
    if isinstance(answer, BadImage):
        raise answer
    encoded, facts = answer
    facts, mask, values = _annotated(ref, facts, task)
    if not ref.bytes:  # of a URL nothing is known before
        ref = replace(ref, bytes=len(data))
    changed = None if encoded is data and not http_fetch.is_url(ref.uri) else encoded
    return ref, _Good(facts=facts, changed=changed, mask=mask, mask_values=values)


def _reject(ref: ImageRef, bad: BadImage, read: int) -> Reject:
    return Reject(key=ref.key, uri=ref.uri, stage="examine", reason=bad.reason.value, detail=bad.detail, bytes=read)


def _annotated(ref: ImageRef, facts: ImageFacts, task: ExamineTask) -> tuple[ImageFacts, bytes | None, tuple[int, ...]]:
    """Checks the annotations of an image against the image itself, and reads its mask.

    Returns:
      the facts with the checksum of the mask, the mask if it cannot be read again as it is, and its values.
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
    except BadImage as bad:  # or the image would seem to be the one that cannot be read
        raise BadImage(bad.reason, f"mask {http_fetch.unsigned(uri)}: {bad.detail}") from bad
    except Unreadable as fault:
        raise Unreadable(f"mask {http_fetch.unsigned(uri)}: {fault}") from fault
    if len(data) > task.limits.max_bytes:
        raise BadImage(
            RejectReason.BAD_MASK,
            f"mask {http_fetch.unsigned(uri)}: {len(data)} bytes; max_bytes is {task.limits.max_bytes}",
        )
    return data
