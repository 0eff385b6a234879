"""NVIDIA DALI on the processor: its file reader, fused decode and crop, resize and flip, one thread per core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.input_peers.script import AREA, ASPECT, BATCH, CIFAR_MEAN, CIFAR_STD, TASKS, Job, Script

_SHUFFLE_RECORDS = 1000


def batches(job: Job) -> Iterator[Any]:
    """Yields arrays of images, infinitely."""
    from nvidia.dali import pipeline_def

    make = {"photos": _photos, "cifar": _cifar}[job.task]
    labels = job.labels()
    files = job.files()

    @pipeline_def(batch_size=BATCH, num_threads=job.threads, device_id=None, prefetch_queue_depth=2, seed=0)
    def pipeline() -> Any:
        from nvidia.dali import fn

        encoded, label = fn.readers.file(
            files=[str(path) for path in files],
            labels=[labels[path.parent.name] for path in files],
            random_shuffle=True,
            initial_fill=_SHUFFLE_RECORDS,
            name="files",
        )
        return make(encoded), label

    instance = pipeline()
    instance.build()
    while True:
        images, _ = instance.run()
        yield images.as_array()


def _photos(encoded: Any) -> Any:
    from nvidia.dali import fn, types

    side = TASKS["photos"].side_px
    images = fn.decoders.image_random_crop(
        encoded, device="cpu", output_type=types.RGB, random_area=AREA, random_aspect_ratio=ASPECT, num_attempts=10
    )
    images = fn.resize(images, resize_x=side, resize_y=side, interp_type=types.INTERP_LINEAR, antialias=False)
    return fn.flip(images, horizontal=fn.random.coin_flip())


def _cifar(encoded: Any) -> Any:
    from nvidia.dali import fn, types

    side = TASKS["cifar"].side_px
    images = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    # DALI pads with a constant, not with the mirrored edge.
    images = fn.crop(images, crop=(side + 8, side + 8), crop_pos_x=0.5, crop_pos_y=0.5, out_of_bounds_policy="pad")
    images = fn.crop_mirror_normalize(
        images,
        crop=(side, side),
        crop_pos_x=fn.random.uniform(range=(0.0, 1.0)),
        crop_pos_y=fn.random.uniform(range=(0.0, 1.0)),
        mirror=fn.random.coin_flip(),
        mean=[255 * value for value in CIFAR_MEAN],
        std=[255 * value for value in CIFAR_STD],
        output_layout="HWC",
    )
    corner = fn.random.uniform(range=(0.0, 1 - 8 / side), shape=(2,))
    return fn.erase(images, anchor=corner, shape=(8 / side, 8 / side), normalized=True, axis_names="HW", fill_value=0.0)


SCRIPT = Script(
    peer="dali",
    distribution="nvidia-dali-cuda120",
    open=dict.fromkeys(TASKS, batches),
    note="CPU pipeline, threads = cores; image_random_crop decodes the crop; no antialias; cifar pads zeros",
)

if __name__ == "__main__":
    SCRIPT.main()
