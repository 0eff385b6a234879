"""FFCV: a .beton file of the images, with decoders and compiled ops of FFCV, one thread per core.

FFCV encodes the images again: photographs as JPEG of quality 90 with OpenCV, the 32x32 images as pixels, as in its
examples. It decodes complete images.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.input_peers.script import AREA, ASPECT, BATCH, CIFAR_MEAN, CIFAR_STD, TASKS, Job, Script

_NAME = "images.beton"


def write(job: Job) -> None:
    """Writes the images into one file."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter
    from PIL import Image

    files, labels = job.files(), job.labels()

    class Files:
        """The input of FFCV: an indexable object of tuples."""

        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return Image.open(files[index]).convert("RGB"), labels[files[index].parent.name]

    image = RGBImageField(write_mode="jpg" if job.task == "photos" else "raw")
    fields = {"image": image, "label": IntField()}
    DatasetWriter(str(job.data / _NAME), fields, num_workers=job.threads).from_indexed_dataset(Files())


def batches(job: Job) -> Iterator[Any]:
    """Yields tensors of images in consecutive shuffled passes."""
    import numpy as np
    from ffcv.fields.decoders import RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import Cutout, NormalizeImage, RandomHorizontalFlip, RandomTranslate, ToTensor

    side = TASKS[job.task].side_px
    if job.task == "photos":
        ops = [RandomResizedCropRGBImageDecoder((side, side), AREA, ASPECT), RandomHorizontalFlip(), ToTensor()]
    else:
        mean, std = (np.asarray(values) * 255 for values in (CIFAR_MEAN, CIFAR_STD))
        fill = tuple(mean.astype(int).tolist())
        ops = [SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(4, fill), Cutout(8, fill)]
        ops += [NormalizeImage(mean, std, np.float32), ToTensor()]
    loader = Loader(
        str(job.data / _NAME),
        batch_size=BATCH,
        num_workers=job.threads,
        os_cache=True,
        order=OrderOption.RANDOM,
        seed=0,
        drop_last=True,
        pipelines={"image": ops, "label": None},
    )
    while True:
        for (images,) in loader:
            yield images


SCRIPT = Script(
    peer="ffcv",
    distribution="ffcv",
    open=dict.fromkeys(TASKS, batches),
    note="beton of JPEG quality 90 (32x32: pixels), whole decode, threads = cores; cifar pads with the mean colour",
    write=write,
)

if __name__ == "__main__":
    SCRIPT.main()
