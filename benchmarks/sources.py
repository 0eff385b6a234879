"""Images to measure with, made in code from the two photographs that scikit-learn ships."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 10


def write_photographs(directory: Path, count: int, height: int = 375, width: int = 500) -> Path:
    """Writes JPEG photographs of quality 92 in ten class folders; honest entropy, for every one is a crop.

    Args:
      directory: gets the class folders.
      count: number of images.
      height: rows of each, in pixels.
      width: columns of each, in pixels.
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
