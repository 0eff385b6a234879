"""Batches from Python sources, such as generators, queues and receivers."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from beam_jobs import errors
from beam_jobs.errors import SourceError
from trainer.input.faults import raise_fault, register_fault
from trainer.input.parse import IMAGE_SEED, KEY, LABEL, NO_LABEL, Features, derive_image_seeds
from trainer.input.position import Position
from trainer.input.windowed_reader import FOREVER
from trainer.ops import IMAGE
from trainer.ops.tf_ops import without_autograph
from trainer.options import InputOptions
from trainer.streams.batches import batches, check_stream_options
from trainer.streams.queues import Item, Source, SourceFailed, SourceReader, wait_at_exit

_MAX_EPOCHS = 1 << 31  # `draw` has 31 bits for the epoch


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options of reading from sources.

    Examples:
      >>> from trainer import Reading
      >>> Reading(in_turn=False, buffer_mb=64)
      Reading(in_turn=False, buffer_mb=64, multi=False)

    Attributes:
      in_turn: whether to take one image of each source in turn, which gives a reproducible order; False takes the
        first image that any source gives, so that a slow source does not delay others.
      buffer_mb: image data to read ahead, over all sources, in MB (1e6 bytes), above 0; at least one image of each.
      multi: whether a label is a list of class indices.

    Raises:
      OptionError: a value is out of range.
    """

    in_turn: bool = True
    buffer_mb: float = 16.0
    multi: bool = False

    def __post_init__(self) -> None:
        errors.check_above("buffer_mb", self.buffer_mb, 0)


@without_autograph
def make_stream(
    sources: Source | Sequence[Source],
    options: InputOptions,
    classes: int,
    training: bool,
    epochs: int = 1,
    start: Position = Position(),  # noqa: B008 - frozen
    reading: Reading = Reading(),
) -> tf.data.Dataset:
    """Builds the input pipeline of Python sources, which are opened again in every epoch.

    One thread per source reads a bounded number of bytes ahead of training. An epoch ends when every source has
    ended. With `shuffle` of `window`, images are shuffled within `shuffle_mb`, so the first batch is delayed until that
    amount is read or the epoch ends; use `none` for a slow source. If the sources yield the same images in the same
    order again, the batches are the same: the random numbers derive from (seed, epoch, key).

    Examples:
      >>> from pathlib import Path
      >>> from trainer import InputOptions, make_stream
      >>> def frames():
      ...     for path in sorted(Path("photos/dog").glob("*.jpg")):
      ...         yield path.name, path.read_bytes(), 1
      >>> options = InputOptions(image_side_px=32, batch_size=4)
      >>> features, label = next(iter(make_stream(frames, options, classes=2, training=False)))
      >>> features["key"].numpy()[0], features["image"].shape, label.numpy()
      (b'000.jpg', TensorShape([4, 32, 32, 3]), array([1, 1, 1, 1]))

    Args:
      sources: one or several functions that return an iterator of (key, image bytes, label): the key is text or bytes,
        the image a JPEG or PNG file, the label an int from 0, or None if `classes` is 0. If an iterator has `close`,
        another thread calls it when reading stops.
      options: options of the pipeline.
      classes: number of classes; 0 for images without labels.
      training: shuffle, augment and drop an incomplete last batch.
      epochs: number of passes over the sources, or `FOREVER`. A source may also be endless.
      start: position of the first image; the images of its epoch before it are read again and skipped.
      reading: options of reading from the sources.

    Returns:
      dataset of (features, label) as of `make_dataset`. If a source raises, the dataset delivers the earlier images,
      except those in the shuffle window, and then raises an error of one line; `cause_of` returns the exception.

    Raises:
      OptionError: an option is out of range, or not supported by a stream.
    """
    check_stream_options(options)
    errors.check_whole("classes", classes, 0)
    passes = _Passes(
        sources=(sources,) if callable(sources) else tuple(sources),
        options=options,
        reading=reading,
        labels=_Labels(classes=classes, multi=reading.multi),
        epochs=range(start.epoch, _MAX_EPOCHS if epochs == FOREVER else start.epoch + epochs),
        skipped_images=start.records,
        shuffle_bytes=int(options.shuffle_mb * 1e6) if training and options.shuffle == "window" else 0,
    )
    stream = tf.data.Dataset.from_generator(lambda: wait_at_exit(passes.chunks()), output_signature=passes.signature)
    stream = stream.map(partial(_make_features, seed=options.seed)).unbatch()
    return batches(stream, options, training)


@dataclass(frozen=True, kw_only=True)
class _Labels:
    """Converts labels of sources to arrays."""

    classes: int
    multi: bool

    @property
    def spec(self) -> tf.TensorSpec:
        if self.multi:
            return tf.TensorSpec([None, self.classes], tf.float32)
        return tf.TensorSpec([None], tf.int64)

    def to_array(self, labels: Sequence[Any]) -> np.ndarray:
        if not self.multi:
            return np.array([NO_LABEL if label is None else label for label in labels], np.int64)
        multi_hot = np.zeros([len(labels), self.classes], np.float32)
        for row, indices in enumerate(labels):
            multi_hot[row, list(indices)] = 1.0
        return multi_hot

    def is_valid(self, label: Any) -> bool:
        if not self.classes:
            return label is None
        if self.multi and (not isinstance(label, Iterable) or isinstance(label, (str, bytes))):
            return False
        indices = label if self.multi else [label]
        return all(isinstance(index, (int, np.integer)) and 0 <= index < self.classes for index in indices)

    def __str__(self) -> str:
        if not self.classes:
            return "None, because classes is 0"
        return f"{'a list, each ' * self.multi}a whole number from 0 to {self.classes - 1}"


@dataclass(frozen=True, kw_only=True)
class _Passes:
    """Reads all epochs, as chunks of many images that Python passes to TensorFlow in one call."""

    sources: tuple[Source, ...]
    options: InputOptions
    reading: Reading
    labels: _Labels
    epochs: range
    skipped_images: int  # of the first epoch
    shuffle_bytes: int  # limit of the shuffle window; 0 for no shuffling

    @property
    def signature(self) -> tuple[tf.TensorSpec, ...]:
        """Types of a chunk: keys, images, labels, the epoch, and an error of one line or an empty string."""
        text = tf.TensorSpec([None], tf.string)
        return text, text, self.labels.spec, tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)

    def chunks(self) -> Generator[tuple[Any, ...], None, None]:
        """Yields chunks of `signature`; empty ones while the sources yield no image, so that TensorFlow can stop."""
        for epoch in self.epochs:
            reader = SourceReader(self.sources, int(self.reading.buffer_mb * 1e6), self.reading.in_turn)
            try:
                for items in self._read_epoch(reader, epoch):
                    yield self._make_chunk(items, epoch)
                if reader.is_stopped:  # the interpreter is exiting
                    return
            except (SourceFailed, SourceError) as failure:
                yield self._make_chunk([], epoch, register_fault(failure, failure.__cause__))
                return
            finally:
                reader.stop()

    def _read_epoch(self, reader: SourceReader, epoch: int) -> Iterator[list[Item]]:
        items: Iterator[Item | None] = (item if item is None else self._check_item(item) for item in reader.items())
        if self.shuffle_bytes:
            items = _shuffle(items, self.shuffle_bytes, random.Random(f"{self.options.seed} {epoch}"))  # noqa: S311
        skipped_images = self.skipped_images if epoch == self.epochs[0] else 0
        batch: list[Item] = []
        count = 0
        try:
            for item in items:
                count += item is not None
                if item is not None and count > skipped_images:
                    batch.append(item)
                if item is None or len(batch) >= self.options.parse_batch:
                    yield batch
                    batch = []
        except (SourceFailed, SourceError):
            yield batch
            raise
        yield batch
        if not count:
            raise SourceError(f"the sources gave no image in epoch {epoch}; each must return a new iterator per epoch")

    def _make_chunk(self, items: list[Item], epoch: int, fault: str = "") -> tuple[Any, ...]:
        keys, images, labels = zip(*items, strict=True) if items else ((), (), ())
        # As objects, because the bytes type of NumPy strips zeros at the end of a file.
        return np.array(keys, object), np.array(images, object), self.labels.to_array(labels), epoch, fault

    def _check_item(self, item: Any) -> Item:
        if not isinstance(item, (tuple, list)) or len(item) != 3:
            raise SourceError(f"a source gave {_brief(item)}; it must give (key, image bytes, label)")
        key, image, label = item
        if not isinstance(key, (str, bytes)):
            raise SourceError(f"a source gave the key {_brief(key)}; it must be text or bytes")
        if not isinstance(image, (bytes, bytearray, memoryview)):
            raise SourceError(f"a source gave {_brief(image)} as the image of {key!r}; it must be the bytes of a file")
        if not self.labels.is_valid(label):
            raise SourceError(f"a source gave the label {_brief(label)} of {key!r}; it must be {self.labels}")
        return key.encode() if isinstance(key, str) else key, bytes(image), label


def _shuffle(items: Iterator[Item | None], limit_bytes: int, generator: random.Random) -> Iterator[Item | None]:
    """Yields random items of a window that is limited to `limit_bytes` bytes; None if there is no item yet."""
    window: list[Item] = []
    window_bytes = 0
    for item in items:
        if item is None:
            yield None
            continue
        window.append(item)
        window_bytes += len(item[1])
        while window_bytes > limit_bytes:
            index = generator.randrange(len(window))
            window[index], window[-1] = window[-1], window[index]
            window_bytes -= len(window[-1][1])
            yield window.pop()
    generator.shuffle(window)
    yield from window


def _make_features(
    keys: tf.Tensor, images: tf.Tensor, labels: tf.Tensor, epoch: tf.Tensor, fault: tf.Tensor, seed: int
) -> Features:
    with tf.control_dependencies([raise_fault(fault)]):
        image_seed = derive_image_seeds(keys, tf.fill(tf.shape(keys), epoch), seed)
    return {IMAGE: images, KEY: keys, LABEL: labels, IMAGE_SEED: image_seed}


def _brief(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 60 else f"{text[:57]}..."
