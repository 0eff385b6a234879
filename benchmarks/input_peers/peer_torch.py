"""torch DataLoader over the files: Pillow decodes, torchvision crops and flips, one worker process per core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.input_peers.script import BATCH, TASKS, Job, Script


def batches(job: Job) -> Iterator[Any]:
    """Yields tensors of images, infinitely."""
    import torch

    from benchmarks.input_peers.torch_data import Endless, Files

    torch.set_num_threads(1)  # the workers are the parallelism
    files = Files(job)
    loader = torch.utils.data.DataLoader(
        files, batch_size=BATCH, sampler=Endless(len(files)), num_workers=job.threads, drop_last=True
    )
    for images, _ in loader:
        yield images


SCRIPT = Script(
    peer="torch",
    distribution="torch",
    open=dict.fromkeys(TASKS, batches),
    note="DataLoader, workers = cores; Pillow decode; torchvision transforms on Pillow images; collated in the workers",
)

if __name__ == "__main__":
    SCRIPT.main()
