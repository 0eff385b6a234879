"""Batches from any Python source: a generator, a queue that a thread fills, several receivers at once."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from beam_jobs import errors
from beam_jobs.errors import SourceError
from trainer.input.parse import DRAW, KEY, LABEL, NO_LABEL, Features, draw_of
from trainer.input.position import Position
from trainer.input.windowed_reader import FOREVER
from trainer.ops import IMAGE
from trainer.ops.tf_ops import as_written
from trainer.options import InputOptions
from trainer.streams.batches import batches, check_stream_options
from trainer.streams.queues import Item, Pump, Source, SourceFailed, watch

_MOST_EPOCHS = 1 << 31  # what `draw` can tell apart
_failures: deque[tuple[str, BaseException]] = deque(maxlen=16)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How sources are read.

    Examples:
      >>> from trainer import Reading
      >>> Reading(in_turn=False, buffer_mb=64)
      Reading(in_turn=False, buffer_mb=64, multi=False)

    Attributes:
      in_turn: take one image of each source after the other, which is the same order every time; False takes whatever
        comes first, so that a slow receiver holds up no other.
      buffer_mb: image bytes read ahead, in MB (1e6 bytes), of all sources together; at least one image of each.
      multi: whether a label is a list of classes.

    Raises:
      OptionError: a value is out of range.
    """

    in_turn: bool = True
    buffer_mb: float = 16.0
    multi: bool = False

    def __post_init__(self) -> None:
        errors.check_above("buffer_mb", self.buffer_mb, 0)


@as_written
def make_stream(
    sources: Source | Sequence[Source],
    options: InputOptions,
    classes: int,
    training: bool,
    epochs: int = 1,
    start: Position = Position(),  # noqa: B008 - frozen
    reading: Reading = Reading(),
) -> tf.data.Dataset:
    """Builds the input pipeline of Python sources that are opened again for every epoch.

    Each source is read by a thread of its own, a bounded number of bytes ahead of training. An epoch ends when every
    source has ended, by return. With `shuffle` of `window`, images are mixed within `shuffle_mb`, so the first batch
    waits until that much has come or the epoch ends; for a source that gives little use `none`. When the sources give
    the same images in the same order again, so does this: every draw derives from (seed, epoch, key).

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
      sources: one or several functions, each of which gives an iterator of (key, image bytes, label): the key text or
        bytes, the image a JPEG or PNG file, the label an int from 0, or None when `classes` is 0. An iterator that has
        `close` is closed, from another thread, when reading stops.
      options: how images become batches.
      classes: number of classes; 0 for images without labels.
      training: shuffle, augment and drop the ragged last batch.
      epochs: how often the sources are opened, or `FOREVER`. A source may as well never end in its first epoch.
      start: where to start; what was delivered of its epoch is read again and left out.
      reading: how the sources are read.

    Returns:
      dataset of (features, label) as of `make_dataset`. What a source raises ends it with an error of one line, after
      what came before, except for what the window holds; `cause_of` gives the exception itself.

    Raises:
      OptionError: an option is out of range, or has no meaning for a stream.
    """
    check_stream_options(options)
    errors.check_whole("classes", classes, 0)
    passes = _Passes(
        sources=(sources,) if callable(sources) else tuple(sources),
        options=options,
        reading=reading,
        labels=_Labels(classes=classes, multi=reading.multi),
        epochs=range(start.epoch, _MOST_EPOCHS if epochs == FOREVER else start.epoch + epochs),
        skipped=start.records,
        mixed_bytes=int(options.shuffle_mb * 1e6) if training and options.shuffle == "window" else 0,
    )
    stream = tf.data.Dataset.from_generator(lambda: watch(passes.chunks()), output_signature=passes.signature)
    stream = stream.map(partial(_features, seed=options.seed)).unbatch()
    return batches(stream, options, training)


def cause_of(error: BaseException) -> BaseException | None:
    """Returns the exception of a source that ended a stream; None when the error came from elsewhere.

    Example:
      except tf.errors.OpError as error:
          raise cause_of(error) or error

    Args:
      error: what TensorFlow raised.
    """
    return next((cause for text, cause in reversed(_failures) if text in str(error)), None)


@dataclass(frozen=True, kw_only=True)
class _Labels:
    """Labels as sources give them -> as models learn them."""

    classes: int
    multi: bool

    @property
    def spec(self) -> tf.TensorSpec:
        if self.multi:
            return tf.TensorSpec([None, self.classes], tf.float32)
        return tf.TensorSpec([None], tf.int64)

    def array(self, labels: Sequence[Any]) -> np.ndarray:
        if not self.multi:
            return np.array([NO_LABEL if label is None else label for label in labels], np.int64)
        hot = np.zeros([len(labels), self.classes], np.float32)
        for row, several in enumerate(labels):
            hot[row, list(several)] = 1.0
        return hot

    def fits(self, label: Any) -> bool:
        if not self.classes:
            return label is None
        if self.multi and (not isinstance(label, Iterable) or isinstance(label, (str, bytes))):
            return False
        several = label if self.multi else [label]
        return all(isinstance(one, (int, np.integer)) and 0 <= one < self.classes for one in several)

    def __str__(self) -> str:
        one = f"a whole number from 0 to {self.classes - 1}"
        return ("a list, each " if self.multi else "") + one if self.classes else "None, because classes is 0"


@dataclass(frozen=True, kw_only=True)
class _Passes:
    """All epochs, as the chunks that Python hands to TensorFlow: one call for many images."""

    sources: tuple[Source, ...]
    options: InputOptions
    reading: Reading
    labels: _Labels
    epochs: range
    skipped: int
    mixed_bytes: int

    @property
    def signature(self) -> tuple[tf.TensorSpec, ...]:
        """Keys, images and labels of a chunk, its epoch, and the one line that ends the stream, or nothing."""
        text = tf.TensorSpec([None], tf.string)
        return text, text, self.labels.spec, tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)

    def chunks(self) -> Generator[tuple[Any, ...], None, None]:
        """Yields chunks of `signature`; an empty one at least every moment, so that TensorFlow can stop."""
        for epoch in self.epochs:
            pump = Pump(self.sources, int(self.reading.buffer_mb * 1e6), self.reading.in_turn)
            try:
                for items in self._epoch(pump, epoch):
                    yield self._chunk(items, epoch)
                if pump.is_stopped:  # the interpreter ends
                    return
            except (SourceFailed, SourceError) as failure:
                fault = _plain(str(failure))
                _failures.append((fault, failure.__cause__ or failure))
                # An error raised here would reach training with the whole traceback as its message.
                yield self._chunk([], epoch, fault)
                return
            finally:
                pump.stop()

    def _epoch(self, pump: Pump, epoch: int) -> Iterator[list[Item]]:
        items: Iterator[Item | None] = (item if item is None else self._checked(item) for item in pump.items())
        if self.mixed_bytes:
            items = _mixed(items, self.mixed_bytes, random.Random(f"{self.options.seed} {epoch}"))  # noqa: S311
        skipped = self.skipped if epoch == self.epochs[0] else 0
        waiting: list[Item] = []
        count = 0
        try:
            for item in items:
                count += item is not None
                if item is not None and count > skipped:
                    waiting.append(item)
                if item is None or len(waiting) >= self.options.parse_batch:
                    yield waiting
                    waiting = []
        except (SourceFailed, SourceError):
            yield waiting
            raise
        yield waiting
        if not count:
            raise SourceError(f"the sources gave no image in epoch {epoch}; each must give a new iterator every time")

    def _chunk(self, items: list[Item], epoch: int, fault: str = "") -> tuple[Any, ...]:
        keys, images, labels = zip(*items, strict=True) if items else ((), (), ())
        # As objects: NumPy's own bytes would lose the zeros at the end of a file.
        return np.array(keys, object), np.array(images, object), self.labels.array(labels), epoch, fault

    def _checked(self, item: Any) -> Item:
        if not isinstance(item, (tuple, list)) or len(item) != 3:
            raise SourceError(f"a source gave {_shown(item)}; it must give (key, image bytes, label)")
        key, image, label = item
        if not isinstance(key, (str, bytes)):
            raise SourceError(f"a source gave the key {_shown(key)}; it must be text or bytes")
        if not isinstance(image, (bytes, bytearray, memoryview)):
            raise SourceError(f"a source gave {_shown(image)} as the image of {key!r}; it must be the bytes of a file")
        if not self.labels.fits(label):
            raise SourceError(f"a source gave the label {_shown(label)} of {key!r}; it must be {self.labels}")
        return key.encode() if isinstance(key, str) else key, bytes(image), label


def _mixed(items: Iterator[Item | None], budget: int, chance: random.Random) -> Iterator[Item | None]:
    """Delivers from a random place of the window, as soon as the window is more than a budget of bytes."""
    window: list[Item] = []
    size = 0
    for item in items:
        if item is None:
            yield None
            continue
        window.append(item)
        size += len(item[1])
        while size > budget:
            place = chance.randrange(len(window))
            window[place], window[-1] = window[-1], window[place]
            size -= len(window[-1][1])
            yield window.pop()
    chance.shuffle(window)
    yield from window


def _features(
    keys: tf.Tensor, images: tf.Tensor, labels: tf.Tensor, epoch: tf.Tensor, fault: tf.Tensor, seed: int
) -> Features:
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(fault, ""), [fault])]):
        draw = draw_of(keys, tf.fill(tf.shape(keys), epoch), seed)
    return {IMAGE: images, KEY: keys, LABEL: labels, DRAW: draw}


def _plain(text: str) -> str:
    """Returns a text that an assertion of TensorFlow, which escapes all else as C does, says as it is."""
    return text.replace("'", "`").replace('"', "`").replace("\\", "/").encode("ascii", "replace").decode()


def _shown(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 60 else f"{text[:57]}..."
