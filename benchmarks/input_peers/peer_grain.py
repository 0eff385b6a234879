"""Grain over ArrayRecord: a shuffled MapDataset, Pillow and NumPy ops, batches from one worker process per core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.input_peers.script import BATCH, TASKS, Job, Script

_SHARDS = 8


def write(job: Job) -> None:
    """Writes the unchanged files to ArrayRecord shards."""
    from array_record.python.array_record_module import ArrayRecordWriter

    files = job.files()
    for shard in range(_SHARDS):
        writer = ArrayRecordWriter(str(job.data / f"shard-{shard:02d}.array_record"), "group_size:1,uncompressed")
        for path in files[shard::_SHARDS]:
            writer.write(path.read_bytes())
        writer.close()


def batches(job: Job) -> Iterator[Any]:
    """Yields arrays of images, infinitely."""
    import grain

    from benchmarks.input_peers.pillow_ops import OPS

    source = grain.sources.ArrayRecordDataSource(sorted(str(path) for path in job.data.glob("*.array_record")))
    stream = (
        grain.MapDataset.source(source)
        .seed(0)
        .shuffle()
        .repeat()
        .random_map(OPS[job.task])
        .batch(BATCH, drop_remainder=True)
        .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=job.threads, per_worker_buffer_size=2))
    )
    yield from stream


SCRIPT = Script(
    peer="grain",
    distribution="grain",
    open=dict.fromkeys(TASKS, batches),
    note="ArrayRecord uncompressed, MapDataset, global shuffle, workers = cores; Pillow decode; Pillow and NumPy ops",
    write=write,
)

if __name__ == "__main__":
    SCRIPT.main()
