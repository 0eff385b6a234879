"""Image files made in code: honest photographs cut from the two that scikit-learn ships, and every way to be wrong."""

from __future__ import annotations

import functools
import io
import zlib
from pathlib import Path

import numpy as np
from PIL import Image


@functools.cache
def photograph(name: str = "china.jpg") -> np.ndarray:
    """Returns uint8[427, 640, 3] of `china.jpg` or `flower.jpg`."""
    from sklearn.datasets import load_sample_image

    return load_sample_image(name)


def crop(seed: int, height: int = 60, width: int = 80, name: str = "china.jpg") -> np.ndarray:
    """Returns a crop of a photograph at a place drawn from the seed: uint8[height, width, 3]."""
    source = photograph(name)
    random = np.random.default_rng(seed)
    top, left = random.integers(0, source.shape[0] - height + 1), random.integers(0, source.shape[1] - width + 1)
    return source[top : top + height, left : left + width]


def encode(pixels: np.ndarray | Image.Image, kind: str, **options) -> bytes:
    """Returns the file bytes of an image in a format of Pillow, such as `JPEG`."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def palette(indices: np.ndarray) -> Image.Image:
    """Returns an image of indices whose colours are others than these, as in Pascal VOC."""
    image = Image.fromarray(indices.astype(np.uint8))
    image.putpalette([(37 * value) % 256 for value in range(768)])
    return image


def decode_mask(data: bytes) -> np.ndarray:
    """Reads a mask as training does: uint8[height, width]."""
    import tensorflow as tf

    return tf.io.decode_png(data, channels=1).numpy()[..., 0]


def pixels_of(encoded: bytes, facts) -> np.ndarray:
    """What training sees of a stored image: uint8[height, width, 3]."""
    from beam_jobs.images.decode import decode_rgb

    if facts.format == "raw":
        return np.frombuffer(encoded, np.uint8).reshape(facts.height, facts.width, 3)
    return decode_rgb(encoded).numpy()


def jpeg(seed: int = 0, height: int = 60, width: int = 80, **options) -> bytes:
    """Returns a small JPEG photograph."""
    return encode(crop(seed, height, width), "JPEG", **{"quality": 90, **options})


def png(seed: int = 0, height: int = 60, width: int = 80) -> bytes:
    """Returns a small PNG photograph."""
    return encode(crop(seed, height, width), "PNG")


def grey_image(level: int, kind: str = "PNG") -> bytes:
    """Returns an image of one grey, 12 x 12 pixels."""
    return encode(np.full((12, 12, 3), level, np.uint8), kind)


def rotated_jpeg(orientation: int, seed: int = 0) -> bytes:
    """Returns a JPEG with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg(seed, exif=exif.tobytes())


def forged_png(side: int) -> bytes:
    """Returns a small PNG whose header claims side x side pixels, with a right checksum."""
    data = bytearray(png())
    data[16:24] = side.to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(bytes(data[12:29])).to_bytes(4, "big")
    return bytes(data)


def flipped(data: bytes, position: int) -> bytes:
    """Returns the bytes with one of them inverted."""
    changed = bytearray(data)
    changed[position] ^= 0xFF
    return bytes(changed)


def class_folders(root: Path, per_class: int = 12, labels: tuple[str, ...] = ("china", "flower")) -> Path:
    """Writes class folders of JPEG and PNG photographs of mixed sizes; every third is a PNG."""
    for number, label in enumerate(labels):
        folder = root / label
        folder.mkdir(parents=True, exist_ok=True)
        for index in range(per_class):
            name = ("china.jpg", "flower.jpg")[number % 2]
            pixels = crop(1000 * number + index, 40 + 3 * index, 90 - 2 * index, name)
            if index % 3 == 2:
                (folder / f"{index:03d}.png").write_bytes(encode(pixels, "PNG"))
            else:
                (folder / f"{index:03d}.jpg").write_bytes(encode(pixels, "JPEG", quality=90))
    return root
