"""Compares implementation alternatives of small steps of the pipeline: `python -m benchmarks.micro`.

Prints microseconds per image or record, the median of five rounds.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import tensorflow as tf
from PIL import Image

from beam_jobs import ingest
from beam_jobs.dataset import manifest, record
from beam_jobs.images import decode, process
from beam_jobs.images.header_check import read_header
from beam_jobs.options import ImageLimits, IngestOptions
from benchmarks.sources import write_photographs
from trainer.ops import IMAGE, DecodeRandomCrop, Op, apply_ops, parse_ops, rng
from trainer.ops.chain import draw_numbers

_IMAGES = 500
_ROUNDS = 5
_PARSED = (record.ENCODED, record.HEIGHT, record.WIDTH, record.LABEL, record.FILENAME)


def main() -> None:
    """Measures and prints all alternatives."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        source = write_photographs(Path(scratch) / "photos", _IMAGES)
        ingest.run(IngestOptions(source=str(source), out=f"{scratch}/dataset", splits={"all": 1}, shard_mb=8))
        files = manifest.load(f"{scratch}/dataset").shard_paths(f"{scratch}/dataset", "all")
        _image_facts([path.read_bytes() for path in sorted(source.rglob("*.jpg"))])
        _reading(files)
        _crops(sorted(source.rglob("*.jpg"))[:100])


def _image_facts(encoded: list[bytes]) -> None:
    tensors = [decode.decode_rgb(data) for data in encoded[:50]]
    pixels = [tensor.numpy() for tensor in tensors]
    facts = process.examine(encoded[0], ImageLimits())[1]
    files = [(data, read_header(data)) for data in encoded]
    for ratio in (1, 4):
        _show(f"decode at 1/{ratio}, TensorFlow", encoded, partial(decode.decode_checked, ratio=ratio))
        _show(f"decode at 1/{ratio}, libjpeg-turbo", files, lambda file, by=ratio: decode.decode_sound_jpeg(*file, by))
    with io.BytesIO() as stream:
        Image.fromarray(pixels[0][:32, :32]).save(stream, "PNG")
        small = [(stream.getvalue(), read_header(stream.getvalue()))] * _IMAGES
    _show("decode of a PNG of 32x32, as in training", small, lambda file: decode.decode_checked(file[0]))
    _show("decode of a PNG of 32x32, with its header", small, lambda file: decode.decode_checked(file[0], 1, file[1]))
    _show("moments, interleaved", pixels, cv2.meanStdDev)
    _show("moments, plane by plane", pixels, lambda image: [cv2.meanStdDev(plane) for plane in cv2.split(image)])
    _show("pixels, .numpy()", tensors, lambda tensor: tensor.numpy())
    _show("pixels, memoryview", tensors, lambda tensor: np.asarray(memoryview(tensor)))
    _show("row, asdict", [facts] * 50, dataclasses.asdict)
    _show("row, vars", [facts] * 50, lambda value: dict(vars(value)))


def _reading(files: list[str]) -> None:
    spec = record.feature_spec(_PARSED)
    for power in (18, 20, 23):
        _stream(f"read, buffer of {1 << power} bytes", tf.data.TFRecordDataset(files, buffer_size=1 << power))
    stored = tf.data.Dataset.from_tensor_slices(tf.stack(list(tf.data.TFRecordDataset(files)))).cache()

    def one(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        return tf.io.parse_single_example(serialized, spec)

    def many(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        return tf.io.parse_example(serialized, spec)

    _stream("records in memory, not parsed", stored)
    _stream("records in memory, parsed one by one", stored.map(one))
    _stream("records in memory, parsed 64 at a time", stored.batch(64).map(many).unbatch())


def _crops(paths: list[Path]) -> None:
    """Measures the random crops of training to 224, of photographs of 500x375 and enlarged to 2000x1500."""
    for size in ((2000, 1500), (500, 375)):
        encoded = []
        for path in paths:
            with io.BytesIO() as stream:
                Image.open(path).resize(size, Image.Resampling.LANCZOS).save(stream, "JPEG", quality=90)
                encoded.append(stream.getvalue())
        sides = {record.HEIGHT: tf.constant(size[1], tf.int64), record.WIDTH: tf.constant(size[0], tf.int64)}
        seeds = tf.stack([tf.range(len(encoded)), tf.zeros(len(encoded), tf.int32)], 1)
        columns = {IMAGE: encoded, **{name: tf.repeat(side, len(encoded)) for name, side in sides.items()}}
        images = tf.data.Dataset.from_tensor_slices((columns, seeds)).cache()
        for spec in ("decode", "decode_random_crop(224)", "decode_random_crop(224, scaled=False)"):
            ops = parse_ops(spec)

            def draw(features: dict, seed: tf.Tensor, ops: Sequence[Op] = ops) -> tuple[dict, tf.Tensor]:
                return draw_numbers(ops, features, seed), seed

            def crop(features: dict, seed: tf.Tensor, ops: Sequence[Op] = ops) -> tf.Tensor:
                return apply_ops(ops, features, seed)[IMAGE]

            pixels = images.batch(50).map(draw).unbatch().map(crop)
            _report(f"{size[0]}x{size[1]}, {spec}", lambda pixels=pixels: [None for _ in pixels], len(encoded))
        differences = [_difference(data, draw, sides) for draw, data in enumerate(encoded)]
        scaled, whole = np.mean(differences, axis=0)
        print(f"{size[0]}x{size[1]}, mean difference to Pillow's box filter: {scaled:.2f}, {whole:.2f} without scaling")


def _difference(data: bytes, draw: int, sides: dict[str, tf.Tensor]) -> tuple[float, float]:
    """Returns the mean differences in levels of a scaled and of an unscaled crop to the same crop by an area filter."""
    op, features = DecodeRandomCrop(side=224), {IMAGE: tf.constant(data), **sides}
    uniforms = rng.uniform_for_chain(tf.constant([draw, 0], tf.int32), [op.random_count], 0)[0]
    top, left, rows, columns, _ = op.window(features, uniforms).numpy()
    window = decode.decode_rgb(data).numpy()[top : top + rows, left : left + columns]
    best = np.asarray(Image.fromarray(window).resize((224, 224), Image.Resampling.BOX), float)
    whole = tf.image.resize(window, (224, 224)).numpy()
    return tuple(float(np.abs(pixels - best).mean()) for pixels in (op(features, uniforms)[IMAGE].numpy(), whole))


def _show(name: str, items: list, work: Callable[[object], object]) -> None:
    _report(name, lambda: [work(item) for item in items], len(items))


def _stream(name: str, dataset: Iterable) -> None:
    _report(name, lambda: [None for _ in dataset], _IMAGES)


def _report(name: str, work: Callable[[], object], count: int) -> None:
    seconds = []
    work()
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    print(f"{name:<42} {statistics.median(seconds) / count * 1e6:8.1f} us")


if __name__ == "__main__":
    main()
