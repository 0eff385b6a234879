"""The demo: handwritten digits in class folders, with some broken files and copies."""

from __future__ import annotations

import io
import os
import zlib

import numpy as np
from PIL import Image

from beam_jobs.options import IngestOptions
from pipeline.config import EvaluateOptions, PipelineConfig
from trainer.options import InputOptions, TrainOptions

_SIDE_PX = 32
# No flip: a mirrored digit is not a digit. A shift of three pixels is usual in handwriting.
_TRAIN_OPS = f"decode|resize({_SIDE_PX})|pad_reflect(3)|random_crop({_SIDE_PX})"
_EVAL_OPS = f"decode|resize({_SIDE_PX})"


def config(images: str, root: str) -> PipelineConfig:
    """Returns the configuration of the demo."""
    config = PipelineConfig(
        name="feedline_demo",
        root=root,
        # A fifth for evaluation gives a narrow interval; small shards give several shards.
        ingest=IngestOptions(source=images, out="", splits={"train": 0.8, "eval": 0.2}, shard_mb=0.25),
        input=InputOptions(image_side_px=_SIDE_PX, train_ops=_TRAIN_OPS, eval_ops=_EVAL_OPS),
        train=TrainOptions(epochs=30, learning_rate=4e-3, label_smoothing=0.1),
        evaluate=EvaluateOptions(min_accuracy=0.97),
    )
    return config.resolved()


def write_images(directory: str) -> str:
    """Writes the digits, broken files and copies. Idempotent.

    Args:
      directory: directory for the class folders.

    Returns:
      path of one of the digits.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    encoded = [_png(np.round(image * (255 / 16))) for image in digits.images]  # 0-16 grey levels
    for index, (data, label) in enumerate(zip(encoded, digits.target, strict=True)):
        _write(os.path.join(directory, str(label), f"digit-{index:04d}.png"), data)
    for name, data in (_broken(encoded[0]) | _copies(encoded, digits.target)).items():
        _write(os.path.join(directory, name), data)
    return os.path.join(directory, str(digits.target[0]), "digit-0000.png")


def _broken(good: bytes) -> dict[str, bytes]:
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 0xFF
    forged = bytearray(good)
    forged[16:24] = (13_000).to_bytes(4, "big") * 2  # width and height in the header
    forged[29:33] = zlib.crc32(forged[12:29]).to_bytes(4, "big")  # correct checksum of the forged header
    return {
        "0/broken-empty.png": b"",
        "1/broken-text.png": b"this is not an image",
        "2/broken-truncated.png": good[: len(good) // 2],
        "3/broken-bit-flip.png": bytes(flipped),
        "4/broken-forged-size.png": bytes(forged),
        "5/broken-too-small.png": _png(np.zeros((2, 64))),
        "stray-without-class.png": good,
    }


def _copies(encoded: list[bytes], labels: np.ndarray) -> dict[str, bytes]:
    other = (labels[2] + 1) % 10  # a copy in another class is a label conflict
    return {
        f"{labels[0]}/copy-of-0000.png": encoded[0],
        f"{labels[1]}/copy-of-0001.png": encoded[1],
        f"{other}/copy-of-0002.png": encoded[2],
    }


def _png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as stream:
        stream.write(data)
