"""Write: one planned shard -> one file, streamed, fsynced, renamed. One unit of work, no Beam in sight."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from beam_jobs import images, record, shards, storage, tables, tfrecord
from beam_jobs.errors import BadImage, FeedlineError, SourceChanged
from beam_jobs.examine import read_image
from beam_jobs.plan import Plan
from beam_jobs.pool import map_ordered
from beam_jobs.types import ImageRecord


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
      base: what relative uris are relative to.
      out: the dataset directory.
      work: directory of sidecars and temporary files.
      max_bytes: largest file read.
      threads: threads to use.
    """

    base: str
    out: str
    work: str
    max_bytes: int
    threads: int


@dataclass(frozen=True, kw_only=True)
class Sidecar:
    """What is known of a written shard; kept beside the work files, never in the dataset.

    Attributes:
      digest: of the plan it was written from.
      records: in the file.
      bytes: of the file.
      sha256: of the file, hex.
      offsets: byte offset of each record.
    """

    digest: str
    records: int
    bytes: int
    sha256: str
    offsets: tuple[int, ...]


def shard_tasks(plan: Plan, directory: str, salt: str) -> list[ShardTask]:
    """Writes the rows of every planned shard into `directory` and returns the units of work.

    Args:
      plan: what will be written.
      directory: where the rows go.
      salt: what decides the bytes besides the rows: options and library versions.
    """
    tasks = []
    for split in plan.splits:
        for index in range(split.shard_count):
            rows = split.shard(index)
            path = storage.join(directory, f"{split.name}-{index:05d}.parquet")
            tables.write_table(path, rows)
            digest = _digest(rows, salt)
            tasks.append(
                ShardTask(split=split.name, index=index, count=split.shard_count, plan_path=path, digest=digest)
            )
    return tasks


def shard_path(out: str, shard: ShardTask) -> str:
    """Returns where a shard lies in the dataset."""
    return storage.join(out, shards.split_dir(shard.split), shard.name)


def sidecar_path(work: str, shard: ShardTask) -> str:
    """Returns where the sidecar of a shard lies."""
    return storage.join(work, "written", f"{shard.split}-{shard.name}.json")


def write_shard(shard: ShardTask, task: WriteTask) -> bool:
    """Writes a shard, unless its sidecar says that an earlier run did. Idempotent.

    Returns:
      whether anything was written.

    Raises:
      SourceChanged: an image is not the one that was examined.
    """
    if _is_written(shard, task):
        return False
    rows = tables.read(shard.plan_path).to_pylist()
    hasher = hashlib.sha256()
    offsets = []
    position = 0
    with storage.atomic_writer(shard_path(task.out, shard), storage.join(task.work, "tmp")) as stream:
        for payload in map_ordered(partial(_record_bytes, task=task), rows, task.threads):
            offsets.append(position)
            for piece in tfrecord.frame(payload):
                stream.write(piece)
                hasher.update(piece)
                position += len(piece)
    sidecar = Sidecar(
        digest=shard.digest, records=len(rows), bytes=position, sha256=hasher.hexdigest(), offsets=tuple(offsets)
    )
    storage.write_bytes(sidecar_path(task.work, shard), json.dumps(asdict(sidecar)).encode())
    return True


def load_sidecar(work: str, shard: ShardTask) -> Sidecar:
    """Reads the sidecar of a written shard.

    Raises:
      OSError: there is none.
      ValueError, KeyError, TypeError: it is damaged.
    """
    values = json.loads(storage.read_bytes(sidecar_path(work, shard)))
    return Sidecar(**{**values, "offsets": tuple(values["offsets"])})


def note_failure(shard: ShardTask, task: WriteTask, error: FeedlineError) -> None:
    """Leaves a note of why a shard could not be written, for `failures` to find. Idempotent."""
    name = f"{shard.split}-{shard.index:05d}.txt"
    storage.write_bytes(storage.join(task.work, "failed", name), str(error).encode())


def failures(work: str) -> list[str]:
    """Returns the notes left by `note_failure`, in order of split and shard."""
    directory = storage.join(work, "failed")
    return [storage.read_bytes(storage.join(directory, name)).decode() for name in storage.list_files(directory)]


def _is_written(shard: ShardTask, task: WriteTask) -> bool:
    try:
        sidecar = load_sidecar(task.work, shard)
        return sidecar.digest == shard.digest and sidecar.bytes == storage.size(shard_path(task.out, shard))
    except (OSError, ValueError, KeyError, TypeError):
        return False  # no sidecar, or a torn one: the shard is written again


def _record_bytes(row: Mapping[str, Any], task: WriteTask) -> bytes:
    facts = tables.facts_of(row)
    try:
        encoded = images.store(read_image(task.base, row["uri"], task.max_bytes), facts)
    except BadImage as bad:
        raise SourceChanged(f"{row['uri']} changed while it was being ingested ({bad.detail}); run it again") from bad
    return record.encode(
        ImageRecord(
            key=row["key"],
            uri=row["uri"],
            encoded=encoded,
            facts=facts,
            label=row["label_index"],
            text=row["label"],
            extra=json.loads(row["extra"]),
        )
    )


def _digest(rows: pa.Table, salt: str) -> str:
    hasher = hashlib.sha256(salt.encode())
    for row in rows.select(["key", "uri", "sha256", "source_sha256", "label", "label_index", "extra"]).to_pylist():
        hasher.update(json.dumps(row, sort_keys=True).encode())
    return hasher.hexdigest()
