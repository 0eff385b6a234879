"""WebDataset: tar shards of the files, read by the workers of its WebLoader, with the transforms of torchvision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.input_peers.script import BATCH, TASKS, Job, Script

_SHARDS = 8
_SHUFFLE_RECORDS = 1000


def write(job: Job) -> None:
    """Writes the unchanged files to tar shards."""
    import webdataset as wds

    files, labels = job.files(), job.labels()
    for shard in range(_SHARDS):
        with wds.TarWriter(str(job.data / f"shard-{shard:02d}.tar")) as sink:
            for number, path in enumerate(files[shard::_SHARDS]):
                encoded = path.read_bytes()
                label = labels[path.parent.name]
                sink.write({"__key__": f"{shard:02d}{number:06d}", path.suffix[1:]: encoded, "cls": label})


def batches(job: Job) -> Iterator[Any]:
    """Yields tensors of images, infinitely."""
    import torch
    import webdataset as wds

    from benchmarks.input_peers.torch_data import make_transform

    torch.set_num_threads(1)
    shards = sorted(str(path) for path in job.data.glob("*.tar"))
    stream = (
        wds.WebDataset(shards, resampled=True, shardshuffle=False)
        .shuffle(_SHUFFLE_RECORDS)
        .decode("pil")
        .to_tuple("jpg;jpeg;png", "cls")
        .map_tuple(make_transform(job.task))
        .batched(BATCH, partial=False)
    )
    for images, _ in wds.WebLoader(stream, batch_size=None, num_workers=job.threads):
        yield images


SCRIPT = Script(
    peer="webdataset",
    distribution="webdataset",
    open=dict.fromkeys(TASKS, batches),
    note="tar shards, WebLoader, workers = cores; window of 1,000 records; Pillow decode; torchvision transforms",
    write=write,
)

if __name__ == "__main__":
    SCRIPT.main()
