"""Feedline: an ingest of unchanged files, and `make_dataset` with default options but without a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.input_peers.script import BATCH, CIFAR_MEAN, CIFAR_STD, TASKS, Job, Script

_SPLIT = "train"


def _scale_to_255(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(255 * value, 2) for value in values)


_OPS = {
    "photos": "decode_random_crop(224)|flip",
    "cifar": "decode|pad_reflect(4)|random_crop(32)|flip|cutout(8)"
    f"|normalize({_scale_to_255(CIFAR_MEAN)}, {_scale_to_255(CIFAR_STD)})",
}


def write(job: Job) -> None:
    """Ingests the unchanged files."""
    from beam_jobs import ingest
    from beam_jobs.options import IngestOptions

    ingest.run(IngestOptions(source=str(job.source), out=str(job.data / "dataset"), splits={_SPLIT: 1}, shards=8))


def batches(job: Job) -> Iterator[Any]:
    """Yields tensors of images, infinitely."""
    from trainer.input_fn import FOREVER, make_dataset
    from trainer.options import InputOptions

    side = TASKS[job.task].side_px
    options = InputOptions(image_side_px=side, batch_size=BATCH, train_ops=_OPS[job.task], cache="none")
    for features, _ in make_dataset(str(job.data / "dataset"), _SPLIT, options, training=True, epochs=FOREVER):
        yield features["image"]


SCRIPT = Script(
    peer="feedline",
    distribution="feedline",
    open=dict.fromkeys(TASKS, batches),
    note="ingest of the files as they are, make_dataset with its defaults and no cache",
    write=write,
)

if __name__ == "__main__":
    SCRIPT.main()
