"""ArrayRecord, which Grain reads: the files unchanged, a shard and a process for each core.

With the kind `checked` the processes decode every image whole, with OpenCV.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from benchmarks.peers.script import Job, Script, Work, decode_with_opencv


def write_shard(path: str, files: list[Path], checked: bool) -> int:
    """Writes a shard and returns the number of its images."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(path, "group_size:1,uncompressed")
    for file in files:
        encoded = file.read_bytes()
        if checked:
            decode_with_opencv(file, encoded)
        writer.write(encoded)
    writer.close()
    return len(files)


def prepare(job: Job) -> Work:
    """See `Script`."""
    cores = os.cpu_count() or 1
    files = job.files()
    pool = ProcessPoolExecutor(cores, get_context("spawn"))
    write = partial(write_shard, checked=job.kind == "checked")
    list(pool.map(write, [str(job.out / "start")] * cores, repeat(files[:1])))  # imports
    names = [str(job.out / f"shard-{core:02d}.array_record") for core in range(cores)]
    parts = [files[core::cores] for core in range(cores)]
    return lambda: sum(pool.map(write, names, parts))


SCRIPT = Script(
    peer="arrayrecord",
    distribution="array-record",
    prepare=prepare,
    note="ArrayRecordWriter, a process for each core; every image decoded whole with OpenCV if the kind is checked",
    kinds=("plain", "checked"),
)

if __name__ == "__main__":
    SCRIPT.main()
