"""Images for benchmarks, generated from the two photographs of scikit-learn."""

from __future__ import annotations

import io
import itertools
import os
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 10


def write_photographs(directory: Path, count: int, height: int = 375, width: int = 500) -> Path:
    """Writes JPEG files of quality 92 in ten class folders: random crops of photographs, which have realistic entropy.

    Args:
      directory: parent of the class folders.
      count: number of images.
      height: height of each image, in pixels.
      width: width of each image, in pixels.
    """
    from sklearn.datasets import load_sample_images

    sources = [Image.fromarray(image) for image in load_sample_images().images]
    random = np.random.default_rng(0)
    for index in range(count):
        source = sources[index % len(sources)]
        scale = random.uniform(0.5, 1.0)
        crop_height = int(min(source.height, source.width * height / width) * scale)
        crop_width = int(crop_height * width / height)
        top = random.integers(0, source.height - crop_height + 1)
        left = random.integers(0, source.width - crop_width + 1)
        crop = source.crop((left, top, left + crop_width, top + crop_height)).resize((width, height), Image.BILINEAR)
        path = directory / f"{index % CLASSES:02d}" / f"{index:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        out = io.BytesIO()
        crop.save(out, "JPEG", quality=92)
        path.write_bytes(out.getvalue())
    return directory


def subset(source: Path, directory: Path, count: int) -> Path:
    """Links the first images of class folders, alternating between classes, into a new directory.

    Args:
      source: class folders.
      directory: parent of the class folders of the subset, on the same filesystem.
      count: maximum number of images to link.
    """
    classes = [sorted(path for path in folder.iterdir() if path.is_file()) for folder in sorted(source.iterdir())]
    mixed = [path for row in itertools.zip_longest(*classes) for path in row if path is not None]
    for path in mixed[:count]:
        target = directory / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)
    return directory
