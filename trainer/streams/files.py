"""Batches from TFRecord files that Feedline need not have written: plain, gzip or zlib, of any layout.

A `RecordLayout` says which features of their records hold what, and how they become image, label and key. A compressed
file is checked to be whole.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from beam_jobs import errors, storage
from beam_jobs.common.strings import unknown
from beam_jobs.common.system import map_ordered
from beam_jobs.dataset import record, tfrecord
from beam_jobs.errors import CorruptDataset, FeedlineError, OptionError, SourceError
from beam_jobs.inspect import summarise_file
from beam_jobs.storage import decompress
from trainer.input.parse import DRAW, KEY, LABEL, NO_LABEL, Features, draw_of
from trainer.input.position import Position
from trainer.input.windowed_reader import FOREVER
from trainer.ops import IMAGE
from trainer.ops.tf_ops import as_written
from trainer.options import InputOptions
from trainer.streams.batches import batches, check_stream_options


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """Which features of a `tf.train.Example` hold what.

    Examples:
      >>> from trainer import RecordLayout
      >>> RecordLayout(image="jpeg", text="species", classes=("crow", "rook"), key="id").labelled
      'species'

    Attributes:
      image: the JPEG or PNG file.
      label: the class index, from 0; empty for none.
      text: the class name, looked up in `classes`, in place of `label`; empty to use `label`.
      key: identity of the image, text or a whole number; empty to make it of file and place, `FILE:INDEX`.
      classes: class names in order of their index; needed for `text` and `multi`.
      multi: whether an image may have any number of labels.

    Raises:
      OptionError: the attributes do not fit each other.
    """

    image: str = record.ENCODED
    label: str = record.LABEL
    text: str = ""
    key: str = record.FILENAME
    classes: tuple[str, ...] = ()
    multi: bool = False

    def __post_init__(self) -> None:
        if not self.image:
            raise OptionError("the image of a layout is empty; name the feature that holds the file")
        if (self.text or self.multi) and not self.classes:
            raise OptionError("a layout with text or multi needs classes, the class names in order of their index")

    @property
    def labelled(self) -> str:
        """The feature that labels come from; empty for none."""
        return self.text or self.label

    def spec(self, first: Mapping[str, list], name: str) -> dict[str, Any]:
        """Returns what `tf.io.parse_example` has to know.

        Args:
          first: feature -> values of the first record.
          name: of its file, for messages.

        Raises:
          OptionError: the record has no such feature, or one of another type.
        """
        found = {self.image: tf.io.FixedLenFeature([], _checked(first, self.image, (bytes,), name))}
        if self.labelled:
            kind = _checked(first, self.labelled, (bytes,) if self.text else (int,), name)
            found[self.labelled] = tf.io.RaggedFeature(kind) if self.multi else tf.io.FixedLenFeature([], kind)
        if self.key:
            found[self.key] = tf.io.FixedLenFeature([], _checked(first, self.key, (bytes, int), name))
        return found


TFDS = RecordLayout(image="image", label="label", key="")
"""The layout of what TensorFlow Datasets prepares for classification: `image` and `label`, and no key.

Examples:
  >>> from trainer import TFDS, InputOptions, make_file_stream
  >>> options = InputOptions(image_side_px=28, batch_size=16)
  >>> train = make_file_stream("mnist/mnist-train.tfrecord-*", options, training=True, layout=TFDS)
  >>> for features, label in train.take(1):
  ...     print(features["image"].shape, label.dtype)
  (16, 28, 28, 3) <dtype: 'int64'>
"""


def labels_of(parsed: Mapping[str, Any], layout: RecordLayout, count: tf.Tensor) -> tf.Tensor:
    """Returns the labels of a batch: int64[count], or float32[count, classes] of several each.

    Raises:
      tf.errors.InvalidArgumentError: a class name is not among `classes`.
    """
    if not layout.labelled:
        return tf.fill([count], tf.constant(NO_LABEL, tf.int64))
    values = parsed[layout.labelled]
    if layout.text:
        values = tf.ragged.map_flat_values(_index_of, values, layout.classes)
    if not layout.multi:
        return values
    classes = len(layout.classes)
    hot = tf.one_hot(values.to_tensor(default_value=NO_LABEL), classes)
    none = tf.zeros([count, 1, classes])  # of an image without labels there is nothing to take the greatest of
    return tf.ensure_shape(tf.reduce_max(tf.concat([hot, none], 1), 1), [None, classes])


def _index_of(names: tf.Tensor, classes: tuple[str, ...]) -> tf.Tensor:
    equal = tf.equal(names[:, None], tf.constant(classes)[None])
    known = tf.reduce_all(tf.reduce_any(equal, 1))
    with tf.control_dependencies([tf.debugging.Assert(known, ["a record has a class that is not in classes", names])]):
        return tf.argmax(equal, 1)


def _checked(first: Mapping[str, list], feature: str, kinds: tuple[type, ...], name: str) -> tf.DType:
    if feature not in first:
        raise OptionError(f"{name}: {unknown('feature', feature, sorted(first))}")
    kind = type(first[feature][0]) if first[feature] else kinds[0]
    if kind not in kinds:
        wanted = " or ".join(_NAMES[one] for one in kinds)
        raise OptionError(f"{name}: the feature {feature!r} holds {_NAMES[kind]}; the layout wants {wanted} there")
    return {bytes: tf.string, int: tf.int64}[kind]


_NAMES = {bytes: "bytes", int: "whole numbers", float: "fractions"}


NONE, GZIP, ZLIB = "none", "gzip", "zlib"
COMPRESSIONS = ("auto", NONE, GZIP, ZLIB)
_BLOCK_BYTES = 1 << 20
_sound: set[tuple[str, tuple[int, int]]] = set()  # path and stamp of what was unpacked to its end


def packing_of(path: str, compression: str) -> str:
    """Returns how a file is compressed, from its first bytes.

    Args:
      path: of the file.
      compression: as it was given, one of `COMPRESSIONS`.

    Raises:
      SourceError: it cannot be read, or is compressed in another way.
    """
    try:
        head = storage.read_range(path, 0, tfrecord.HEADER)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    packing = decompress.packing_of(head)
    # The length of a record comes first, 8 bytes; zlib, which has no magic bytes, does not hold four zeros there.
    if not packing:
        packing = ZLIB if decompress.is_zlib(head) and head[4:8] != bytes(4) else NONE
    if packing not in COMPRESSIONS:
        raise SourceError(f"{path} is compressed with {packing}; TFRecord files are read plain, of gzip or of zlib")
    if compression not in ("auto", packing) and head:
        raise SourceError(f"{path} is not what compression={compression!r} says: it begins like {packing}; use auto")
    return packing


def fault_of(path: str, packing: str) -> str:
    """Unpacks a file to its end, once while it stays the same; returns what is wrong with it, or nothing.

    TensorFlow takes a file that is torn between two records for a whole one, and names none in its errors.
    """
    try:
        stamp = path, decompress.stamp(path)
        if stamp not in _sound and packing != NONE:
            _unpack(path, packing)
            _sound.add(stamp)
    except (*decompress.DAMAGED, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return f"{path} cannot be unpacked: {reason}; copy it again"
    return ""


def _unpack(path: str, packing: str) -> None:
    with storage.open_read(path) as stream:
        plain = decompress.unpacked(stream, packing)
        while plain.read(_BLOCK_BYTES):
            pass


__all__ = ["FOREVER", "TFDS", "RecordLayout", "explain_files", "find_files", "make_file_stream"]

_READ_BUFFER_BYTES = 1 << 20
_BLOCK_RECORDS = 16  # taken from one file before the next
_SAMPLED_RECORDS = 32  # for the average size of a record
_REQUESTS = 16  # files looked at at a time: object stores take tens of milliseconds to answer


@as_written
def make_file_stream(
    files: str | Sequence[str],
    options: InputOptions,
    training: bool,
    layout: RecordLayout = RecordLayout(),
    compression: str = "auto",
    epochs: int = 1,
    start: Position = Position(),  # noqa: B008 - frozen
) -> tf.data.Dataset:
    """Builds the input pipeline of any TFRecord files.

    In training, an epoch shuffles the files, reads `readers` of them in turn and mixes the records within `shuffle_mb`.
    The order is a function of (seed, epoch), of the files and of the options. How many records there are, reading alone
    can tell, so starting within an epoch reads what lies before; it is not decoded.

    Examples:
      >>> from trainer import TFDS, InputOptions, make_file_stream
      >>> options = InputOptions(image_side_px=28, batch_size=16)
      >>> train = make_file_stream("mnist/mnist-train.tfrecord-*", options, training=True, layout=TFDS)
      >>> features, label = next(iter(train))
      >>> features["image"].shape, label.dtype
      (TensorShape([16, 28, 28, 3]), tf.int64)

    Args:
      files: a pattern, or paths.
      options: how records become batches.
      training: shuffle, augment and drop the ragged last batch; otherwise read in the order of the names.
      layout: which features hold what; `TFDS` for what TensorFlow Datasets prepared.
      compression: `none`, `gzip` or `zlib`, of all files; `auto` looks at the first bytes of each.
      epochs: passes over the files, or `FOREVER`.
      start: where to start; its epoch is the first of `epochs`.

    Returns:
      dataset of (features, label) as of `make_dataset`. A compressed file that is torn ends it with an error that names
      it; for a plain one see `explain_files`.

    Raises:
      SourceError: there is no such file or record, or a file is compressed in another way.
      OptionError: an option is out of range or means nothing here, or the records do not fit the layout.
      CorruptDataset: the first records cannot be read.
    """
    check_stream_options(options)
    errors.check_choice("compression", compression, COMPRESSIONS)
    paths = find_files(files)
    packings = tuple(map_ordered(partial(packing_of, compression=compression), paths, _REQUESTS))
    sample = _sample(paths, packings)
    record_bytes = sum(map(len, sample)) / len(sample)
    reading = _Reading(
        files=tuple(paths),
        packings=packings,
        options=options,
        layout=layout,
        spec=layout.spec(record.decode(sample[0]), paths[0]),
        window=max(1, int(options.shuffle_mb * 1e6 / record_bytes)) if training and options.shuffle != "none" else 0,
        training=training,
    )
    if epochs == FOREVER:
        passes = tf.data.Dataset.counter(start=start.epoch, dtype=tf.int64)
    else:
        passes = tf.data.Dataset.range(start.epoch, start.epoch + epochs)
    stream = passes.flat_map(partial(_epoch, reading=reading, start=start))
    return batches(stream.unbatch(), options, training)


def find_files(files: str | Sequence[str]) -> list[str]:
    """Returns the files that a pattern or a list means; those of a pattern in order of their names.

    Raises:
      SourceError: there is none.
    """
    found = sorted(tf.io.gfile.glob(files)) if isinstance(files, str) else list(files)
    if not found:
        raise SourceError(f"there is no file {files!r}; name TFRecord files, by a pattern such as data/*.tfrecord")
    return found


def explain_files(files: str | Sequence[str], error: Exception) -> CorruptDataset | None:
    """Finds out which file made a training fail, by reading all of them; TensorFlow does not say.

    Args:
      files: what `make_file_stream` was given.
      error: what TensorFlow raised.

    Returns:
      one line with file, offset and what is wrong; None when every file is sound, so that the error is not of them.
    """
    damage = next(filter(None, map(_damage_of, find_files(files))), "")
    message = str(getattr(error, "message", error)).split("\n")[0][:200]
    return CorruptDataset(f"{damage}; training stopped: {message}") if damage else None


def _damage_of(path: str) -> str:
    try:
        summarise_file(path, shown=0)
    except FeedlineError as broken:
        return str(broken)
    return ""


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """What all epochs have in common.

    Attributes:
      files: paths.
      packings: how each is compressed.
      options: how records become batches.
      layout: which features hold what.
      spec: what `tf.io.parse_example` has to know.
      window: records in the shuffle window; 0 to keep the order.
      training: whether several files are read at a time.
    """

    files: tuple[str, ...]
    packings: tuple[str, ...]
    options: InputOptions
    layout: RecordLayout
    spec: Mapping[str, Any]
    window: int
    training: bool

    @property
    def names(self) -> list[str]:
        """The files, short: below the directory that all of them share."""
        shared = posixpath.commonprefix([posixpath.dirname(name) + "/" for name in self.files]).rpartition("/")[0]
        return [name[len(shared) :].lstrip("/") for name in self.files]


def _sample(paths: Sequence[str], packings: Sequence[str]) -> list[bytes]:
    found = next(filter(None, map(_first_records, paths, packings)), None)
    if not found:
        raise SourceError(f"{paths[0]}{' and the other files hold' if len(paths) > 1 else ' holds'} no record")
    return found


def _first_records(path: str, packing: str) -> list[bytes]:
    stream = tf.data.TFRecordDataset(path, compression_type="" if packing == NONE else packing.upper())
    if fault := fault_of(path, packing):
        raise CorruptDataset(fault)
    try:
        return list(stream.take(_SAMPLED_RECORDS).as_numpy_iterator())
    except tf.errors.OpError as error:
        explained = explain_files([path], error)
        raise explained or CorruptDataset(f"{path} cannot be read as TFRecord: {error.message}") from error


def _epoch(epoch: tf.Tensor, reading: _Reading, start: Position) -> tf.data.Dataset:
    """Returns the parsed records of one epoch, in batches."""
    options = reading.options
    order = tf.range(len(reading.files), dtype=tf.int64)
    if reading.window:
        order = tf.random.experimental.stateless_shuffle(order, seed=tf.stack([options.seed, epoch]))
    readers = min(options.readers, len(reading.files)) if reading.training else 1
    stream = tf.data.Dataset.from_tensor_slices(order).interleave(
        partial(_records, reading=reading),
        cycle_length=readers,  # bounded: open files and read buffers must not grow with the number of files
        block_length=_BLOCK_RECORDS,
        num_parallel_calls=min(readers, options.thread_count) if reading.training else None,
        deterministic=True,
    )
    if reading.window:
        stream = _mixed(stream, reading.window, options.seed, epoch)  # while a record is a tenth of its pixels
    stream = stream.skip(tf.where(epoch == start.epoch, tf.constant(start.records, tf.int64), 0))
    parse = partial(_parse, epoch=epoch, reading=reading)
    return stream.batch(options.parse_batch).map(parse, options.thread_count, deterministic=True)


def _records(number: tf.Tensor, reading: _Reading) -> tf.data.Dataset:
    """Returns the records of one file, each with the number of the file and its place there."""
    name, packing = tf.gather(reading.files, number), tf.gather(reading.packings, number)
    if set(reading.packings) != {NONE}:
        fault = tf.ensure_shape(tf.numpy_function(_fault, [name, packing], tf.string), [])
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(fault, ""), [fault])]):
            name = tf.identity(name)
    compression = tf.where(tf.equal(packing, NONE), "", tf.strings.upper(packing))
    records = tf.data.TFRecordDataset(name, compression_type=compression, buffer_size=_READ_BUFFER_BYTES)
    return tf.data.Dataset.zip((records, tf.data.Dataset.from_tensors(number).repeat(), tf.data.Dataset.counter()))


def _fault(name: bytes, packing: bytes) -> bytes:
    return fault_of(name.decode(), packing.decode()).replace("'", "`").encode()  # an assertion would escape a quote


def _mixed(stream: tf.data.Dataset, window: int, seed: int, epoch: tf.Tensor) -> tf.data.Dataset:
    # `Dataset.shuffle` mixes in the global seed of TensorFlow, and then the order depends on that seed.
    shuffled = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(stream),
        buffer_size=window,
        seed=tf.constant(seed + 1, tf.int64),  # the pair (0, 0) means "draw one"
        seed2=epoch + 1,
        reshuffle_each_iteration=False,
        output_types=[spec.dtype for spec in stream.element_spec],
        output_shapes=[spec.shape for spec in stream.element_spec],
    )
    return tf.data.experimental.from_variant(shuffled, stream.element_spec)


def _parse(serialized: tf.Tensor, number: tf.Tensor, place: tf.Tensor, epoch: tf.Tensor, reading: _Reading) -> Features:
    layout = reading.layout
    parsed = tf.io.parse_example(serialized, dict(reading.spec))
    if layout.key:
        key = parsed[layout.key]
        key = key if key.dtype == tf.string else tf.strings.as_string(key)
    else:
        key = tf.strings.join([tf.gather(reading.names, number), tf.strings.as_string(place)], ":")
    return {
        IMAGE: parsed[layout.image],
        KEY: key,
        LABEL: labels_of(parsed, layout, tf.size(key)),
        DRAW: draw_of(key, tf.fill(tf.shape(key), epoch), reading.options.seed),
    }
