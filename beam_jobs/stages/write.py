"""Write: one planned shard -> one file, streamed, fsynced, sealed, renamed. One unit of work, no Beam in sight.

Its bytes are written, hashed and checksummed by a thread beside the one that makes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.common.system import Progress, chunk_size, local_progress, map_ordered
from beam_jobs.dataset import record, schemas, shards, tfrecord
from beam_jobs.errors import BadImage, DataError, Fault, FeedlineError, SourceChanged, Unreadable
from beam_jobs.images.annotations import record_objects
from beam_jobs.images.normalise import geometry
from beam_jobs.options import PixelOptions
from beam_jobs.planning.plan import Plan
from beam_jobs.sources.image_reader import SPOOL, Reader, Slice
from beam_jobs.stages import work_units
from beam_jobs.types import Annotations, ImageFacts, ImageRecord, RecordObject

# Long enough that the interpreter lock changes hands once in twenty images, short enough to stay in the cache.
_BLOCK_BYTES = 1 << 20
_PENDING = 2  # blocks in flight


class Sink:
    """Takes the pieces of records, in order, and writes them in blocks of about a megabyte.

    Making records holds the interpreter lock, writing and hashing blocks does not: so the two share two cores.

    Attributes:
      position: bytes taken.
      sha256: of what was written, hex; once the block is left.
      crc32c: of what was written; once the block is left.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.position = 0
        self.sha256 = ""
        self.crc32c = 0
        self._stream = stream
        self._hasher = hashlib.sha256()
        self._pieces: list[bytes] = []
        self._held = self._records = 0
        self._pending: deque[Future[None]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feedline-sink")

    def __enter__(self) -> Sink:
        """Returns itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        """Writes what is left, unless something went wrong, and waits for it.

        Raises:
          OSError: the stream does not take it.
        """
        try:
            if kind is None:
                self._hand_over()
                while self._pending:
                    self._pending.popleft().result()
                self.sha256 = self._hasher.hexdigest()
        finally:
            self._thread.shutdown(cancel_futures=True)

    def write(self, pieces: Sequence[bytes]) -> None:
        """Takes one record.

        Raises:
          OSError: the stream did not take an earlier one.
        """
        self._pieces += pieces
        length = sum(map(len, pieces))
        self._held += length
        self._records += 1
        self.position += length
        if self._held >= _BLOCK_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        block = b"".join(self._pieces)
        if len(self._pending) >= _PENDING:
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._put, block, self._records))
        self._pieces = []
        self._held = self._records = 0

    def _put(self, block: bytes, records: int) -> None:
        self._stream.write(block)
        self._hasher.update(block)
        self.crc32c = google_crc32c.extend(self.crc32c, block)
        local_progress.add(Progress(records, len(block), 0))


DIRECTORY = "written"  # in the work directory
# What decides the bytes of a record, besides the options.
_DIGESTED = (
    "key",
    "uri",
    "sha256",
    "source_sha256",
    "label",
    "label_index",
    "extra",
    "annotations",
    "mask_crc32c",
)


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """One shard to write.

    Attributes:
      split: name of the split.
      index: of the shard in its split.
      count: shards of the split.
      plan_path: Parquet file of its `PLANNED` rows.
      digest: of those rows and of what else decides its bytes.
    """

    split: str
    index: int
    count: int
    plan_path: str
    digest: str

    @property
    def name(self) -> str:
        """File name of the shard."""
        return shards.shard_name(self.index, self.count)


@dataclass(frozen=True, kw_only=True)
class WriteTask:
    """What a worker needs to know to write shards; small and picklable.

    Attributes:
      reader: reads the images; its work directory takes sidecars and temporary files.
      out: the dataset directory.
      label_kind: one of `types.LABEL_KINDS`.
      labels: class names; the index is the label.
      pixels: what became of the pixels.
      moments: whether the moments of the channels are known.
      threads: threads to use.
    """

    reader: Reader
    out: str
    label_kind: str = "single"
    labels: tuple[str, ...] = ()
    pixels: PixelOptions = field(default_factory=PixelOptions)
    moments: bool = True
    threads: int = 1

    @property
    def work(self) -> str:
        """The work directory of the ingest."""
        return self.reader.work


@dataclass(frozen=True, kw_only=True)
class Sidecar:
    """What is known of a written shard; kept beside the work files, never in the dataset.

    Attributes:
      digest: of the plan it was written from.
      file: name in the work directory, before it got the name that it has in the dataset.
      records: in the file.
      bytes: of the file.
      sha256: of the file, hex.
      crc32c: of the file; publishing compares this one, at a tenth of the cost.
      offsets: byte offset of each record.
    """

    digest: str
    file: str
    records: int
    bytes: int
    sha256: str
    crc32c: int
    offsets: tuple[int, ...]


class Failure(NamedTuple):
    """Why a shard could not be written.

    Attributes:
      unit: `SPLIT-INDEX` of the shard.
      key: of the image that it failed at; the name of the shard where it is no image.
      text: one line.
      passing: whether another attempt may fare better: the image could not be read, or the shard not be written.
    """

    unit: str
    key: str
    text: str
    passing: bool


def shard_tasks(plan: Plan, directory: str, salt: str, existing: Mapping[str, int] | None = None) -> list[ShardTask]:
    """Writes the rows of every planned shard into `directory` and returns the units of work.

    Args:
      plan: what will be written.
      directory: where the rows go.
      salt: what decides the bytes besides the rows: options and library versions.
      existing: split -> shards that are there already; the new ones are numbered after them.
    """
    tasks = []
    for split in plan.splits:
        first = (existing or {}).get(split.name, 0)
        count = first + split.shard_count
        for index in range(first, count):
            rows = split.shard(index - first)
            digest = _digest(rows, salt, plan.labels)
            # The name holds the digest, for workers of an earlier run may still read its plan.
            path = storage.join(directory, f"{split.name}-{index:05d}-{digest[:16]}.parquet")
            schemas.write_table(path, rows, durable=False)  # made again by every run
            tasks.append(ShardTask(split=split.name, index=index, count=count, plan_path=path, digest=digest))
    return tasks


def shard_path(out: str, shard: ShardTask) -> str:
    """Returns where a shard lies in the dataset."""
    return storage.join(out, shards.split_dir(shard.split), shard.name)


def sidecar_name(shard: ShardTask) -> str:
    """Returns the name, in `DIRECTORY`, of the sidecar, which is the seal of a shard; another plan has another."""
    return f"{_stem(shard)}{work_units.SEAL_SUFFIX}"


def sidecar_path(work: str, shard: ShardTask) -> str:
    """Returns where the sidecar of a shard lies."""
    return storage.join(work, DIRECTORY, sidecar_name(shard))


def _stem(shard: ShardTask) -> str:
    return f"{shard.split}-{shard.name}.{shard.digest[:16]}"


def sweep(work: str, tasks: list[ShardTask]) -> None:
    """Removes what other plans, and attempts that were killed, have left; see `sealed.sweep`."""
    work_units.sweep_unsealed(
        storage.join(work, DIRECTORY), lambda values: [values["file"]], {sidecar_name(task) for task in tasks}
    )


def write_shard(shard: ShardTask, task: WriteTask) -> bool:
    """Writes a shard, unless its sidecar says that it is written.

    Idempotent: of several attempts, at once or one after the other, one gives its file the name in the dataset.

    Returns:
      whether the shard is the one that this attempt wrote.

    Raises:
      SourceChanged: an image is not the one that was examined.
      Unreadable: an image may be there and cannot be read.
      OSError: what was kept of one between the stages is gone, or the disk takes no more.
    """
    if earlier := _written(shard, task):
        local_progress.add(Progress(earlier.records, 0, 0))
        return False
    table = schemas.read(shard.plan_path)
    rows = table.to_pylist()
    chunk = chunk_size(pc.mean(table["bytes"]).as_py())
    encode = partial(_record_pieces, task=task, indices={name: index for index, name in enumerate(task.labels)})
    offsets = []
    threads = task.reader.threads(rows, max(1, task.threads - 1))  # the sink is the other one
    with work_units.Attempt(sidecar_path(task.work, shard)) as attempt:
        name = attempt.name(_stem(shard), ".tfrecord")
        with storage.direct_writer(storage.join(task.work, DIRECTORY, name)) as stream, Sink(stream) as sink:
            for pieces in map_ordered(encode, rows, threads, chunk):
                offsets.append(sink.position)
                sink.write(pieces)
        sidecar = Sidecar(
            digest=shard.digest,
            file=name,
            records=len(rows),
            bytes=sink.position,
            sha256=sink.sha256,
            crc32c=sink.crc32c,
            offsets=tuple(offsets),
        )
        winner = attempt.seal(asdict(sidecar), partial(_written, shard, task))
    if winner:
        return False
    _put_in_place(shard, task, sidecar)
    return True


def load_sidecar(work: str, shard: ShardTask) -> Sidecar:
    """Reads the sidecar of a written shard.

    Raises:
      OSError: there is none.
      ValueError: it is damaged.
    """
    values = work_units.read_checked(sidecar_path(work, shard))
    return Sidecar(**{**values, "offsets": tuple(values["offsets"])})


def note_failure(shard: ShardTask, task: WriteTask, error: FeedlineError | OSError) -> None:
    """Leaves a note of why a shard could not be written, for `failures` to find. Idempotent."""
    key = (
        error.key if isinstance(error, SourceChanged) else error.faults[0].key if isinstance(error, Unreadable) else ""
    )
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    failure = Failure(unit_of(shard), key or shard.name, text, isinstance(error, (Unreadable, OSError)))
    work_units.write_checked(storage.join(task.work, "failed", f"{failure.unit}.json"), failure._asdict())


def failures(work: str) -> list[Failure]:
    """Returns the notes left by `note_failure`, in order of split and shard."""
    directory = storage.join(work, "failed")
    return [Failure(**work_units.read_checked(storage.join(directory, name))) for name in storage.list_files(directory)]


def forget_failures(work: str) -> None:
    """Removes the notes of earlier attempts."""
    storage.remove_tree(storage.join(work, "failed"))


def unit_of(shard: ShardTask) -> str:
    """Returns the name of a shard in its note."""
    return f"{shard.split}-{shard.index:05d}"


def is_written(shard: ShardTask, task: WriteTask) -> bool:
    """Returns whether a shard is written as it is planned."""
    return _written(shard, task) is not None


def _written(shard: ShardTask, task: WriteTask) -> Sidecar | None:
    """Returns the sidecar of a shard that another attempt has sealed."""
    try:
        sidecar = load_sidecar(task.work, shard)
        return sidecar if _put_in_place(shard, task, sidecar) else None
    except (OSError, ValueError):
        return None  # no sidecar, or a damaged one: the shard is written again


def _put_in_place(shard: ShardTask, task: WriteTask, sidecar: Sidecar) -> bool:
    """Gives a sealed shard the name that it has in the dataset, unless another attempt has done so.

    Returns:
      whether the file of that name has as many bytes as the sidecar says.
    """
    path, before = shard_path(task.out, shard), storage.join(task.work, DIRECTORY, sidecar.file)
    if storage.exists(before):
        with contextlib.suppress(FileNotFoundError):  # the other attempt does so at this moment
            storage.rename(before, path)
    return storage.size(path) == sidecar.bytes


def _record_pieces(row: Mapping[str, Any], task: WriteTask, indices: Mapping[str, int]) -> tuple[bytes, ...]:
    """Returns the pieces of the framed record of one `PLANNED` row."""
    facts = schemas.parse_facts(row)
    annotations = schemas.parse_annotations(row["annotations"])
    written = ImageRecord(
        key=row["key"],
        uri=row["uri"],
        encoded=_read(row["key"], row["uri"], row["slice"], facts.crc32c, task.reader),
        facts=facts,
        labels=_labels(row, annotations, task.label_kind, indices),
        objects=_objects(annotations, facts, task.pixels, indices),
        mask=_read_mask(row, annotations.mask, facts, task.reader) if annotations and annotations.mask else b"",
        weight=annotations.weight if annotations else None,
        extra=json.loads(row["extra"]) if row["extra"] != "{}" else {},
    )
    encoded = record.encode(written, task.moments)
    if len(encoded) > tfrecord.MAX_RECORD_BYTES:
        limit = f"{tfrecord.MAX_RECORD_BYTES} are allowed"
        raise DataError(f"{row['key']} makes a record of {len(encoded)} bytes; {limit}; lower max_bytes")
    return tfrecord.frame(encoded)


def _read_mask(row: Mapping[str, Any], uri: str, facts: ImageFacts, reader: Reader) -> bytes:
    return _read(row["key"], uri, row["mask_slice"], facts.mask_crc32c, reader)


def _read(key: str, uri: str, place: str, crc32c: int, reader: Reader) -> bytes:
    spooled = bool(place) and Slice.parse(place).method == SPOOL
    lost = None
    try:
        data = reader.read(uri, place)
    except (BadImage, Unreadable) as failed:
        lost = failed.__cause__ if spooled else None
        if not isinstance(lost, OSError):
            if isinstance(failed, Unreadable):
                cause = str(failed) if uri == key else f"{uri}: {failed}"
                raise Unreadable(cause, (Fault(key, cause),)) from failed
            what = f"{uri} changed while it was being ingested ({failed.detail}); run it again"
            raise SourceChanged(what, key) from failed
    if lost:  # out of the block, or each of the two errors would be the cause of the other
        raise lost  # of the disk of the output, not of the source
    # A checksum is enough here: it has to notice an edit between two reads, not to withstand an adversary.
    if google_crc32c.value(data) != crc32c:
        if spooled:
            what = f"{uri} is not as it was kept in the work directory; check the disk and run it again"
            raise SourceChanged(what, key)
        detail = "the file is not the one that was examined"
        raise SourceChanged(f"{uri} changed while it was being ingested ({detail}); run it again", key)
    return data


def _labels(
    row: Mapping[str, Any], annotations: Annotations | None, kind: str, indices: Mapping[str, int]
) -> tuple[tuple[int, str], ...] | None:
    if kind == "single":
        return ((row["label_index"], row["label"]),)
    if kind == "none":
        return None
    names = annotations.labels if annotations and annotations.labels else ()
    return tuple(sorted((indices[name], name) for name in names))


def _objects(
    annotations: Annotations | None, facts: ImageFacts, pixels: PixelOptions, indices: Mapping[str, int]
) -> tuple[RecordObject, ...] | None:
    if annotations is None or annotations.objects is None:
        return None
    return record_objects(annotations, geometry(pixels, facts.source_height, facts.source_width), indices)


def _digest(rows: pa.Table, salt: str, labels: tuple[str, ...]) -> str:
    hasher = hashlib.sha256(salt.encode())
    for name in _DIGESTED:
        hasher.update(repr(rows[name].to_pylist()).encode())
    if pc.any(pc.not_equal(rows["annotations"], "")).as_py():  # these name classes whose indices are not in the rows
        hasher.update(repr(labels).encode())
    return hasher.hexdigest()
