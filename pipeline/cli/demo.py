"""`feedline demo`: the whole pipeline on handwritten digits in class folders, with some broken files and copies."""

from __future__ import annotations

import io
import os
import time
import zlib
from typing import TYPE_CHECKING, Any

import click

from beam_jobs.errors import OptionError
from pipeline.cli.click_groups import DIR, Command
from pipeline.cli.common import json_option, say
from pipeline.cli.run import fast_option, print_output, run_or_repeat

if TYPE_CHECKING:
    import numpy as np

    from pipeline.config import PipelineConfig

_SIDE_PX = 32
_FIRST_IMAGE = "0/digit-0000.png"
# No flip: a mirrored digit is not a digit. A shift of three pixels is usual in handwriting.
_TRAIN_OPS = f"decode|resize({_SIDE_PX})|pad_reflect(3)|random_crop({_SIDE_PX})"
_EVAL_OPS = f"decode|resize({_SIDE_PX})"


@click.command("demo", cls=Command)
@click.option(
    "--root", type=DIR, default="demo_run", show_default=True, help="Directory for everything the demo writes."
)
@fast_option
@json_option
def command(root: str, fast: bool, as_json: bool) -> None:
    """Run the whole pipeline on real handwritten digits.

    The images are the 1,797 digits of scikit-learn, with a few broken files and copies, so that the results include
    rejects and duplicates.

    \b
    Example:
      feedline demo --root demo_run
    """
    start_s = time.monotonic()
    images = os.path.join(root, "images")

    def write_source() -> None:
        say(f"writing digits to {images}")
        try:
            write_images(images)
        except OSError as error:
            raise OptionError(f"root {root} cannot be written: {error.strerror}") from error

    output = run_or_repeat(config(images, root), fast, write_source)
    duration = f"{'took':<12} {time.monotonic() - start_s:.0f} s"
    print_output(output, as_json, os.path.join(images, _FIRST_IMAGE), duration)


def config(images: str, root: str) -> PipelineConfig:
    """Returns the configuration of the demo."""
    from beam_jobs.options import IngestOptions
    from pipeline.config import EvaluateOptions, PipelineConfig
    from trainer.options import InputOptions, TrainOptions

    config = PipelineConfig(
        name="feedline_demo",
        root=root,
        # A fifth for evaluation gives a narrow confidence interval of the accuracy; small shards give several shards.
        ingest=IngestOptions(source=images, out="", splits={"train": 0.8, "eval": 0.2}, shard_mb=0.25),
        input=InputOptions(image_side_px=_SIDE_PX, train_ops=_TRAIN_OPS, eval_ops=_EVAL_OPS),
        train=TrainOptions(epochs=30, learning_rate=4e-3, label_smoothing=0.1),
        evaluate=EvaluateOptions(min_accuracy=0.97),
    )
    return config.resolved()


def write_images(directory: str) -> None:
    """Writes the digits, broken files and copies into class folders. Idempotent."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    encoded = [_encode_png(image * (255 / 16)) for image in digits.images]  # 0-16 grey levels
    for index, (data, label) in enumerate(zip(encoded, digits.target, strict=True)):
        _write(os.path.join(directory, str(label), f"digit-{index:04d}.png"), data)
    for name, data in (_broken_files(encoded[0]) | _copied_files(encoded, digits.target)).items():
        _write(os.path.join(directory, name), data)


def _broken_files(intact: bytes) -> dict[str, bytes]:
    """Returns name -> bytes of files that the ingest rejects, most of them damaged copies of an intact PNG."""
    with_flipped_byte = bytearray(intact)
    with_flipped_byte[len(intact) // 2] ^= 0xFF
    with_forged_size = bytearray(intact)
    with_forged_size[16:24] = (13_000).to_bytes(4, "big") * 2  # width and height in the header
    with_forged_size[29:33] = zlib.crc32(with_forged_size[12:29]).to_bytes(4, "big")  # checksum of the new header
    return {
        "0/broken-empty.png": b"",
        "1/broken-text.png": b"this is not an image",
        "2/broken-truncated.png": intact[: len(intact) // 2],
        "3/broken-bit-flip.png": bytes(with_flipped_byte),
        "4/broken-forged-size.png": bytes(with_forged_size),
        "5/broken-too-small.png": _encode_png([[0] * 64] * 2),
        "stray-without-class.png": intact,
    }


def _copied_files(encoded: list[bytes], labels: np.ndarray) -> dict[str, bytes]:
    """Returns name -> bytes of exact copies of the first three digits."""
    other_label = (labels[2] + 1) % 10  # a copy in another class is a label conflict
    return {
        f"{labels[0]}/copy-of-0000.png": encoded[0],
        f"{labels[1]}/copy-of-0001.png": encoded[1],
        f"{other_label}/copy-of-0002.png": encoded[2],
    }


def _encode_png(pixels: Any) -> bytes:
    import numpy as np
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.round(pixels).astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as stream:
        stream.write(data)
