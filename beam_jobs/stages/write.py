"""Writes one planned shard: its file and its part of the image table are written, compared, sealed and renamed.

One thread encodes the records; a second thread writes, hashes and checksums them. The worker compares the files with
their checksums and measures the images, so that publishing reads no file of a shard. This module does not use Beam.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.common.system import Progress, chunk_size, local_progress, map_ordered
from beam_jobs.dataset import manifest, record, schemas, shards, tfrecord
from beam_jobs.errors import BadImage, DataError, Fault, FeedlineError, SourceChanged, Unreadable
from beam_jobs.images.annotations import record_objects
from beam_jobs.images.normalise import geometry
from beam_jobs.options import PixelOptions
from beam_jobs.planning.plan import Plan
from beam_jobs.planning.planned_rows import PlannedShard
from beam_jobs.sources.image_reader import SPOOL, Reader, Slice
from beam_jobs.stages import resume
from beam_jobs.stages.summary import Summary
from beam_jobs.types import Annotations, ImageFacts, ImageRecord, RecordObject

# Large enough for one switch of the interpreter lock per twenty images, small enough for the cache.
_BLOCK_BYTES = 1 << 20
_MAX_PENDING = 2  # submitted blocks that are not yet written
_PART_ROWS = 1024  # rows in memory as Python values; a shard of small images has tens of thousands of rows


class Sink:
    """Writes the pieces of records, in order, in blocks of about a megabyte.

    Encoding holds the interpreter lock; writing and hashing release it, so they run in parallel on a second core.

    Attributes:
      position: number of bytes accepted.
      sha256: SHA-256 of the written bytes, hex; set at the end of the `with` block.
      crc32c: CRC-32C of the written bytes; complete at the end of the `with` block.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.position = 0
        self.sha256 = ""
        self.crc32c = 0
        self._stream = stream
        self._hasher = hashlib.sha256()
        self._pieces: list[bytes] = []
        self._bytes = self._records = 0
        self._pending: deque[Future[None]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feedline-sink")

    def __enter__(self) -> Sink:
        """Returns itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Writes the remaining pieces, unless an error ends the block, and waits for the writing thread.

        Raises:
          OSError: the stream cannot be written.
        """
        try:
            if kind is None:
                self._submit_block()
                while self._pending:
                    self._pending.popleft().result()
                self.sha256 = self._hasher.hexdigest()
        finally:
            self._thread.shutdown(cancel_futures=True)

    def write(self, pieces: Sequence[bytes]) -> None:
        """Accepts one record.

        Raises:
          OSError: an earlier record could not be written.
        """
        self._pieces += pieces
        length = sum(map(len, pieces))
        self._bytes += length
        self._records += 1
        self.position += length
        if self._bytes >= _BLOCK_BYTES:
            self._submit_block()

    def _submit_block(self) -> None:
        block = b"".join(self._pieces)
        if len(self._pending) >= _MAX_PENDING:
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._write_block, block, self._records))
        self._pieces = []
        self._bytes = self._records = 0

    def _write_block(self, block: bytes, records: int) -> None:
        self._stream.write(block)
        self._hasher.update(block)
        self.crc32c = google_crc32c.extend(self.crc32c, block)
        local_progress.add(Progress(records, len(block), 0))


DIRECTORY = "written"  # in the work directory


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """One shard to write.

    Attributes:
      split: name of the split.
      index: index of the shard in its split.
      count: number of shards of the split.
      rows: its `PLANNED` rows.
      digest: digest of these rows and of everything else that determines the bytes of the shard.
    """

    split: str
    index: int
    count: int
    rows: PlannedShard
    digest: str

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ShardTask:
        """Returns the shard with the values of `dataclasses.asdict`."""
        return cls(**{**values, "rows": PlannedShard(**values["rows"])})

    @property
    def name(self) -> str:
        """File name of the shard."""
        return shards.shard_name(self.index, self.count)

    @property
    def part_name(self) -> str:
        """File name of its part of the image table."""
        return shards.part_name(self.split, self.index)


@dataclass(frozen=True, kw_only=True)
class WriteTask:
    """Parameters for writing shards; small and picklable.

    Attributes:
      reader: reads the images; its work directory receives sidecars and temporary files.
      out: dataset directory.
      label_kind: one of `types.LABEL_KINDS`.
      labels: class names in the order of their indices.
      pixels: conversion of the pixels.
      channel_statistics: whether the facts include mean and variance of the channels.
      threads: number of threads; 0 lets the worker choose the number.
      seed: seed of the order of the images.
      processes: number of processes, each of which writes one shard at a time with one thread; 0 to write in the
        current process, as in a worker of a cluster.
    """

    reader: Reader
    out: str
    label_kind: str = "single"
    labels: tuple[str, ...] = ()
    pixels: PixelOptions = field(default_factory=PixelOptions)
    channel_statistics: bool = True
    threads: int = 1
    seed: int = 0
    processes: int = 0

    @property
    def work(self) -> str:
        """The work directory of the ingest."""
        return self.reader.work


@dataclass(frozen=True, kw_only=True)
class SealedFile:
    """A written file of an attempt; its name, size and checksums are stored in the seal of the shard.

    Attributes:
      name: name in the work directory, before the file gets its name in the dataset.
      bytes: size in bytes.
      sha256: SHA-256, hex.
      crc32c: CRC-32C, with which the file is compared, because it takes a tenth of the time of SHA-256.
    """

    name: str
    bytes: int
    sha256: str
    crc32c: int


@dataclass(frozen=True, kw_only=True)
class Sidecar:
    """Description of a written shard; a file in the work directory, not in the dataset.

    Attributes:
      digest: digest of its `ShardTask`.
      records: number of records.
      shard: the file of the records.
      part: the file of its rows of the image table.
      order_hashes: `shards.order_hash` of its first and its last key.
      summary: JSON values of the `Summary` of its images.
    """

    digest: str
    records: int
    shard: SealedFile
    part: SealedFile
    order_hashes: tuple[str, str]
    summary: Mapping[str, Any]

    def files(self, out: str, shard: ShardTask) -> tuple[tuple[SealedFile, str], ...]:
        """Returns the file of rows and the file of records, each with its path in the dataset."""
        return ((self.part, part_path(out, shard)), (self.shard, shard_path(out, shard)))


class Failure(NamedTuple):
    """Cause of a failure to write a shard.

    Attributes:
      unit: `SPLIT-INDEX` of the shard.
      key: key of the image that caused the failure; the name of the shard if no image did.
      text: message, one line.
      passing: whether another attempt may succeed: the image could not be read, or the shard could not be written.
    """

    unit: str
    key: str
    text: str
    passing: bool


def shard_tasks(plan: Plan, salt: str, existing: Mapping[str, int] | None = None) -> list[ShardTask]:
    """Returns the units of work.

    Args:
      plan: the plan.
      salt: text that represents everything else that determines the bytes: options and library versions.
      existing: split -> number of existing shards; new shards are numbered after them.
    """
    tasks = []
    for split in plan.splits:
        first_index = (existing or {}).get(split.name, 0)
        count = first_index + len(split.shards)
        for index, rows in enumerate(split.shards, start=first_index):
            digest = hashlib.sha256(f"{salt} {rows.digest}".encode()).hexdigest()
            tasks.append(ShardTask(split=split.name, index=index, count=count, rows=rows, digest=digest))
    return tasks


def shard_path(out: str, shard: ShardTask) -> str:
    """Returns the path of a shard in the dataset."""
    return storage.join(out, shards.split_dir(shard.split), shard.name)


def part_path(out: str, shard: ShardTask) -> str:
    """Returns the path, in the dataset, of the file with the rows of a shard."""
    return storage.join(out, manifest.IMAGES_DIR, shard.part_name)


def sidecar_name(shard: ShardTask) -> str:
    """Returns the name, in `DIRECTORY`, of the sidecar, which is the seal of a shard; it depends on the plan."""
    return f"{_file_stem(shard)}{resume.SEAL_SUFFIX}"


def sidecar_path(work: str, shard: ShardTask) -> str:
    """Returns the path of the sidecar of a shard."""
    return storage.join(work, DIRECTORY, sidecar_name(shard))


def _file_stem(shard: ShardTask) -> str:
    return f"{shard.split}-{shard.name}.{shard.digest[:16]}"


def sweep(work: str, tasks: list[ShardTask]) -> None:
    """Removes the files of other plans and of killed attempts; see `resume.sweep_unsealed`."""
    resume.sweep_unsealed(
        storage.join(work, DIRECTORY),
        lambda values: [values[file]["name"] for file in ("shard", "part")],
        {sidecar_name(task) for task in tasks},
    )


def write_shard(shard: ShardTask, task: WriteTask) -> bool:
    """Writes a shard and its rows, unless they are written, and compares the files with the written data.

    Idempotent: of several attempts, concurrent or successive, one renames its files to their names in the dataset.

    Returns:
      whether this attempt wrote the shard.

    Raises:
      SourceChanged: an image differs from the examined one.
      Unreadable: an image cannot be read.
      OSError: a spooled image is missing, the disk cannot be written, or a file differs from the written data.
    """
    if sealed_sidecar := _load_written(shard, task):
        local_progress.add(Progress(sealed_sidecar.records, 0, 0))
        return False
    table = shard.rows.read()
    rows = (row for part in table.to_batches(_PART_ROWS) for row in part.to_pylist())
    chunk_rows = chunk_size(pc.mean(table["bytes"]).as_py())
    encode_row = partial(_record_pieces, task=task, indices={name: index for index, name in enumerate(task.labels)})
    offsets = []
    locations = zip(table["uri"].to_pylist(), table["slice"].to_pylist(), strict=True)
    threads = task.reader.threads(locations, max(1, task.threads - 1))  # the sink has one thread
    with resume.Attempt(sidecar_path(task.work, shard)) as attempt:
        name = attempt.name(_file_stem(shard), ".tfrecord")
        with storage.direct_writer(_work_path(task, name)) as stream, Sink(stream) as sink:
            for pieces in map_ordered(encode_row, rows, threads, chunk_rows):
                offsets.append(sink.position)
                sink.write(pieces)
        sidecar = Sidecar(
            digest=shard.digest,
            records=len(table),
            shard=SealedFile(name=name, bytes=sink.position, sha256=sink.sha256, crc32c=sink.crc32c),
            part=_write_part(
                schemas.image_rows(table, shard.split, shard.index, offsets),
                attempt.name(_file_stem(shard), ".parquet"),
                task,
            ),
            order_hashes=(_order_hash(table, 0, task.seed), _order_hash(table, -1, task.seed)),
            summary=Summary.measure(table, task.label_kind).to_json(),
        )
        for file in (sidecar.shard, sidecar.part):
            if storage.checksum(_work_path(task, file.name)) != file.crc32c:
                raise OSError(errno.EIO, "the file differs from the data written to it", _work_path(task, file.name))
        other_sidecar = attempt.seal(asdict(sidecar), partial(_load_written, shard, task))
    if other_sidecar:
        return False
    _move_to_dataset(shard, task, sidecar)
    return True


def _order_hash(table: pa.Table, row: int, seed: int) -> str:
    return shards.order_hash(seed, table["key"][row].as_py())


def _write_part(rows: pa.Table, name: str, task: WriteTask) -> SealedFile:
    groups = (rows.slice(start, schemas.IMAGE_ROWS) for start in range(0, len(rows), schemas.IMAGE_ROWS))
    data = schemas.row_groups(groups, schemas.IMAGES)
    with storage.direct_writer(_work_path(task, name)) as stream:
        stream.write(data)
    sha256 = hashlib.sha256(data).hexdigest()
    return SealedFile(name=name, bytes=len(data), sha256=sha256, crc32c=google_crc32c.value(data))


def _work_path(task: WriteTask, name: str) -> str:
    return storage.join(task.work, DIRECTORY, name)


def load_sidecar(work: str, shard: ShardTask) -> Sidecar:
    """Reads the sidecar of a written shard.

    Raises:
      OSError: there is no sidecar.
      ValueError: the sidecar is damaged.
    """
    values = resume.read_checked(sidecar_path(work, shard))
    files = {file: SealedFile(**values[file]) for file in ("shard", "part")}
    return Sidecar(**{**values, **files, "order_hashes": tuple(values["order_hashes"])})


def write_failure_note(shard: ShardTask, task: WriteTask, error: FeedlineError | OSError) -> None:
    """Writes a note with the cause of a failure, for `read_failures`. Idempotent."""
    key = error.key if isinstance(error, SourceChanged) else ""
    key = error.faults[0].key if isinstance(error, Unreadable) else key
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    failure = Failure(unit_name(shard), key or shard.name, text, isinstance(error, (Unreadable, OSError)))
    resume.write_checked(storage.join(task.work, "failed", f"{failure.unit}.json"), failure._asdict())


def read_failures(work: str) -> list[Failure]:
    """Returns the failures of the notes of `write_failure_note`, in order of split and shard."""
    directory = storage.join(work, "failed")
    return [Failure(**resume.read_checked(storage.join(directory, name))) for name in storage.list_files(directory)]


def remove_failure_notes(work: str) -> None:
    """Removes the notes of earlier attempts."""
    storage.remove_tree(storage.join(work, "failed"))


def unit_name(shard: ShardTask) -> str:
    """Returns the name of a shard in its failure note."""
    return f"{shard.split}-{shard.index:05d}"


def is_written(shard: ShardTask, task: WriteTask) -> bool:
    """Returns whether a shard has been written according to its plan."""
    return _load_written(shard, task) is not None


def _load_written(shard: ShardTask, task: WriteTask) -> Sidecar | None:
    """Moves a sealed shard into the dataset and returns its sidecar; None if the shard must be written."""
    try:
        sidecar = load_sidecar(task.work, shard)
        if not _move_to_dataset(shard, task, sidecar):
            return None
        files = sidecar.files(task.out, shard)
        return sidecar if all(storage.checksum(path) == file.crc32c for file, path in files) else None
    except (OSError, ValueError):
        return None  # no sidecar, or a damaged one: the shard is written again


def _move_to_dataset(shard: ShardTask, task: WriteTask, sidecar: Sidecar) -> bool:
    """Renames the files of a sealed shard to their names in the dataset, unless another attempt has renamed them.

    Returns:
      whether the files in the dataset have the sizes in the sidecar.
    """
    files = sidecar.files(task.out, shard)
    for file, path in files:
        if storage.exists(_work_path(task, file.name)):
            with contextlib.suppress(FileNotFoundError):  # another attempt renames it at the same time
                storage.rename(_work_path(task, file.name), path)
    return all(storage.size(path) == file.bytes for file, path in files)


def _record_pieces(row: Mapping[str, Any], task: WriteTask, indices: Mapping[str, int]) -> tuple[bytes, ...]:
    """Returns the pieces of the framed record of one `PLANNED` row."""
    facts = schemas.parse_facts(row)
    annotations = schemas.parse_annotations(row["annotations"])
    image = ImageRecord(
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
    parts = record.encode_parts(image, task.channel_statistics)
    size = sum(map(len, parts))
    if size > tfrecord.MAX_RECORD_BYTES:
        limit = f"{tfrecord.MAX_RECORD_BYTES} are allowed"
        raise DataError(f"{row['key']} makes a record of {size} bytes; {limit}; lower max_bytes")
    return tfrecord.frame(*parts)


def _read_mask(row: Mapping[str, Any], uri: str, facts: ImageFacts, reader: Reader) -> bytes:
    return _read(row["key"], uri, row["mask_slice"], facts.mask_crc32c, reader)


def _read(key: str, uri: str, slice_text: str, crc32c: int, reader: Reader) -> bytes:
    """Returns the bytes of an image or mask, and compares their checksum; errors name `key`, the key of the image."""
    is_spooled = bool(slice_text) and Slice.parse(slice_text).method == SPOOL
    spool_error = None
    try:
        data = reader.read(uri, slice_text)
    except (BadImage, Unreadable) as error:
        spool_error = error.__cause__ if is_spooled else None
        if not isinstance(spool_error, OSError):
            if isinstance(error, Unreadable):
                cause = str(error) if uri == key else f"{uri}: {error}"
                raise Unreadable(cause, (Fault(key, cause),)) from error
            raise _source_changed(key, uri, error.detail) from error
    if spool_error:  # outside of the `except` block, because otherwise both errors would have each other as cause
        raise spool_error  # a fault of the output disk, not of the source
    # A checksum is enough: it detects an edit between two reads, and need not resist an adversary.
    if google_crc32c.value(data) != crc32c:
        if is_spooled:
            raise SourceChanged(f"{uri} changed in the work directory; check the disk and run the ingest again", key)
        raise _source_changed(key, uri, "the file differs from the examined file")
    return data


def _source_changed(key: str, uri: str, detail: str) -> SourceChanged:
    return SourceChanged(f"{uri} changed while it was being ingested ({detail}); run the ingest again", key)


def _labels(
    row: Mapping[str, Any], annotations: Annotations | None, label_kind: str, indices: Mapping[str, int]
) -> tuple[tuple[int, str], ...] | None:
    if label_kind == "single":
        return ((row["label_index"], row["label"]),)
    if label_kind == "none":
        return None
    names = annotations.labels if annotations and annotations.labels else ()
    return tuple(sorted((indices[name], name) for name in names))


def _objects(
    annotations: Annotations | None, facts: ImageFacts, pixels: PixelOptions, indices: Mapping[str, int]
) -> tuple[RecordObject, ...] | None:
    if annotations is None or annotations.objects is None:
        return None
    return record_objects(annotations, geometry(pixels, facts.source_height, facts.source_width), indices)
