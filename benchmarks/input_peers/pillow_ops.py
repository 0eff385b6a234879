"""The tasks with Pillow and NumPy, for peers without image ops. Runs in their environments."""

from __future__ import annotations

import io
import math

import numpy as np
from PIL import Image

from benchmarks.input_peers.script import AREA, ASPECT, CIFAR_MEAN, CIFAR_STD, TASKS

_MEAN = np.asarray(CIFAR_MEAN, np.float32) * 255
_STD = np.asarray(CIFAR_STD, np.float32) * 255
_PAD, _CUT = 4, 8


def crop_resize_flip(encoded: bytes, random: np.random.Generator) -> np.ndarray:
    """The task `photos`: an encoded image -> uint8[224, 224, 3]."""
    side = TASKS["photos"].side_px
    image = Image.open(io.BytesIO(encoded)).convert("RGB")
    box = random_box(image.width, image.height, random)
    resized = np.asarray(image.resize((side, side), Image.BILINEAR, box=box))
    return np.ascontiguousarray(resized[:, ::-1]) if random.random() < 0.5 else resized


def cifar_augment(encoded: bytes, random: np.random.Generator) -> np.ndarray:
    """The task `cifar`: an encoded image of 32x32 -> float32[32, 32, 3]."""
    side = TASKS["cifar"].side_px
    image = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))
    padded = np.pad(image, ((_PAD, _PAD), (_PAD, _PAD), (0, 0)), mode="reflect")
    top, left = random.integers(0, 2 * _PAD + 1, 2)
    crop = padded[top : top + side, left : left + side]
    if random.random() < 0.5:
        crop = crop[:, ::-1]
    normal = (crop.astype(np.float32) - _MEAN) / _STD
    top, left = random.integers(0, side - _CUT + 1, 2)
    normal[top : top + _CUT, left : left + _CUT] = 0
    return normal


OPS = {"photos": crop_resize_flip, "cifar": cifar_augment}


def random_box(width: int, height: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    """Returns left, top, right and bottom of a random crop; the complete image if ten random boxes do not fit."""
    for _ in range(10):
        area = width * height * random.uniform(*AREA)
        aspect = math.exp(random.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        box_width, box_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < box_width <= width and 0 < box_height <= height:
            left = int(random.integers(0, width - box_width + 1))
            top = int(random.integers(0, height - box_height + 1))
            return left, top, left + box_width, top + box_height
    return 0, 0, width, height
