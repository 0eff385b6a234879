"""LitData: its chunks of the unchanged files, Pillow ops, batches from one worker process per core."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.input_peers.script import BATCH, TASKS, Job, Script


def sample(path: str) -> dict[str, bytes]:
    """Returns the sample of a file."""
    return {"image": Path(path).read_bytes()}


def write(job: Job) -> None:
    """Writes the unchanged files to chunks."""
    import litdata

    inputs = [str(path) for path in job.files()]
    litdata.optimize(sample, inputs, output_dir=str(job.data), chunk_bytes="64MB", num_workers=job.threads)


def augment(made: dict[str, bytes], task: str) -> Any:
    """Returns the array of a sample; its random numbers are those of no other worker and no other pass."""
    import numpy as np

    from benchmarks.input_peers.pillow_ops import OPS

    return OPS[task](made["image"], np.random.default_rng())


def batches(job: Job) -> Iterator[Any]:
    """Yields tensors of images, infinitely."""
    import litdata

    images = litdata.StreamingDataset(
        str(job.data), shuffle=True, drop_last=True, transform=functools.partial(augment, task=job.task)
    )
    loader = litdata.StreamingDataLoader(
        images, batch_size=BATCH, num_workers=job.threads, drop_last=True, persistent_workers=True
    )
    while True:
        for batch in loader:
            if len(batch) == BATCH:
                yield batch


SCRIPT = Script(
    peer="litdata",
    distribution="litdata",
    open=dict.fromkeys(TASKS, batches),
    note="optimize, shuffled StreamingDataset, StreamingDataLoader, workers = cores; Pillow decode and ops",
    write=write,
)

if __name__ == "__main__":
    SCRIPT.main()
