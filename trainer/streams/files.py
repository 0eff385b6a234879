"""Batches from TFRecord files of any program: plain, gzip or zlib, with any features.

A `RecordLayout` maps features of the records to image, label and key. Compressed files are checked for completeness.
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
from trainer.input.parse import IMAGE_SEED, KEY, LABEL, NO_LABEL, Features, derive_image_seeds
from trainer.input.position import Position
from trainer.input.windowed_reader import FOREVER
from trainer.ops import IMAGE
from trainer.ops.tf_ops import without_autograph
from trainer.options import InputOptions
from trainer.streams.batches import batches, check_stream_options


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """Maps features of a `tf.train.Example` to image, label and key.

    Examples:
      >>> from trainer import RecordLayout
      >>> RecordLayout(image="jpeg", text="species", classes=("crow", "rook"), key="id").labelled
      'species'

    Attributes:
      image: feature with the JPEG or PNG file.
      label: feature with the class index, from 0; empty for no labels.
      text: feature with the class name, which is looked up in `classes`; empty to use `label`.
      key: feature with the identity of the image, text or a whole number; empty for keys `FILE:INDEX`.
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
            raise OptionError("the image of a layout is empty; name the feature with the image file")
        if (self.text or self.multi) and not self.classes:
            raise OptionError("a layout with text or multi needs classes, the class names in order of their index")

    @property
    def labelled(self) -> str:
        """Feature with the labels; empty for no labels."""
        return self.text or self.label

    def spec(self, first: Mapping[str, list], name: str) -> dict[str, Any]:
        """Returns the argument of `tf.io.parse_example`.

        Args:
          first: feature -> values of the first record.
          name: name of its file, for messages.

        Raises:
          OptionError: the record lacks a feature, or has one of another type.
        """
        spec = {self.image: tf.io.FixedLenFeature([], _check_type(first, self.image, (bytes,), name))}
        if self.labelled:
            kind = _check_type(first, self.labelled, (bytes,) if self.text else (int,), name)
            spec[self.labelled] = tf.io.RaggedFeature(kind) if self.multi else tf.io.FixedLenFeature([], kind)
        if self.key:
            spec[self.key] = tf.io.FixedLenFeature([], _check_type(first, self.key, (bytes, int), name))
        return spec


TFDS = RecordLayout(image="image", label="label", key="")
"""The layout of TensorFlow Datasets for classification: `image` and `label`, without a key.

Examples:
  >>> from trainer import TFDS, InputOptions, make_file_stream
  >>> options = InputOptions(image_side_px=28, batch_size=16)
  >>> train = make_file_stream("mnist/mnist-train.tfrecord-*", options, training=True, layout=TFDS)
  >>> for features, label in train.take(1):
  ...     print(features["image"].shape, label.dtype)
  (16, 28, 28, 3) <dtype: 'int64'>
"""


def _make_labels(parsed: Mapping[str, Any], layout: RecordLayout, count: tf.Tensor) -> tf.Tensor:
    """Returns the labels of a batch: int64[count], or float32[count, classes] with `multi`.

    Raises:
      tf.errors.InvalidArgumentError: a class name is not among `classes`.
    """
    if not layout.labelled:
        return tf.fill([count], tf.constant(NO_LABEL, tf.int64))
    values = parsed[layout.labelled]
    if layout.text:
        values = tf.ragged.map_flat_values(_look_up_classes, values, layout.classes)
    if not layout.multi:
        return values
    classes = len(layout.classes)
    multi_hot = tf.one_hot(values.to_tensor(default_value=NO_LABEL), classes)
    zeros = tf.zeros([count, 1, classes])  # an image may have no label
    return tf.ensure_shape(tf.reduce_max(tf.concat([multi_hot, zeros], 1), 1), [None, classes])


def _look_up_classes(names: tf.Tensor, classes: tuple[str, ...]) -> tf.Tensor:
    is_class = tf.equal(names[:, None], tf.constant(classes)[None])
    is_known = tf.reduce_all(tf.reduce_any(is_class, 1))
    check = tf.debugging.Assert(is_known, ["a record has a class that is not in classes", names])
    with tf.control_dependencies([check]):
        return tf.argmax(is_class, 1)


def _check_type(first_record: Mapping[str, list], feature: str, kinds: tuple[type, ...], file_name: str) -> tf.DType:
    if feature not in first_record:
        raise OptionError(f"{file_name}: {unknown('feature', feature, sorted(first_record))}")
    kind = type(first_record[feature][0]) if first_record[feature] else kinds[0]
    if kind not in kinds:
        allowed = " or ".join(_LIST_NAMES[item] for item in kinds)
        raise OptionError(f"{file_name}: the feature {feature!r} is {_LIST_NAMES[kind]}; the layout needs {allowed}")
    return {bytes: tf.string, int: tf.int64}[kind]


_LIST_NAMES = {bytes: "a bytes_list", int: "an int64_list", float: "a float_list"}


NONE, GZIP, ZLIB = "none", "gzip", "zlib"
COMPRESSIONS = ("auto", NONE, GZIP, ZLIB)
_BLOCK_BYTES = 1 << 20
_intact_files: set[tuple[str, int, int]] = set()  # path, size and modification time of files that were completely read


def detect_compression(path: str, setting: str) -> str:
    """Returns the compression of a file, from its first bytes.

    Args:
      path: path of the file.
      setting: compression that the user set, one of `COMPRESSIONS`.

    Raises:
      SourceError: the file cannot be read, or has another compression.
    """
    with errors.os_errors_as(SourceError, f"{path} cannot be read"):
        head = storage.read_range(path, 0, tfrecord.HEADER_BYTES)
    compression = decompress.detect_compression(head)
    # A record begins with its length, 8 bytes, of which the last 4 are zero; zlib has other bytes there.
    if not compression:
        compression = ZLIB if decompress.is_zlib(head) and head[4:8] != bytes(4) else NONE
    if compression not in COMPRESSIONS:
        raise SourceError(f"{path} is compressed with {compression}; TFRecord files must be plain, gzip or zlib")
    if setting not in ("auto", compression) and head:
        raise SourceError(f"{path} begins like {compression}, but compression is {setting!r}; set it to auto")
    return compression


def find_fault(path: str, compression: str) -> str:
    """Decompresses a file to its end, unless it was checked and has not changed; returns its fault or "".

    TensorFlow accepts a file that is cut off between two records, and its errors do not name the file.
    """
    try:
        file_state = path, *decompress.read_size_and_mtime(path)
        if file_state not in _intact_files and compression != NONE:
            with storage.open_read(path) as stream:
                content = decompress.open_decompressed(stream, compression)
                while content.read(_BLOCK_BYTES):
                    pass
            _intact_files.add(file_state)
    except (*decompress.DAMAGED, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return f"{path} cannot be unpacked: {reason}; copy it again"
    return ""


__all__ = ["FOREVER", "TFDS", "RecordLayout", "explain_files", "find_files", "make_file_stream"]

_READ_BUFFER_BYTES = 1 << 20
_BLOCK_RECORDS = 16  # read from one file before the next file
_SAMPLED_RECORDS = 32  # for the average size of a record
_REQUESTS = 16  # files opened at a time: object stores have a latency of tens of milliseconds


@without_autograph
def make_file_stream(
    files: str | Sequence[str],
    options: InputOptions,
    training: bool,
    layout: RecordLayout = RecordLayout(),
    compression: str = "auto",
    epochs: int = 1,
    start: Position = Position(),  # noqa: B008 - frozen
) -> tf.data.Dataset:
    """Builds the input pipeline of TFRecord files.

    In training, an epoch shuffles the files, interleaves `readers` of them and shuffles records within `shuffle_mb`.
    The order is a function of (seed, epoch), of the files and of the options. A start inside an epoch reads the
    records before it, but does not decode them.

    Examples:
      >>> from trainer import TFDS, InputOptions, make_file_stream
      >>> options = InputOptions(image_side_px=28, batch_size=16)
      >>> train = make_file_stream("mnist/mnist-train.tfrecord-*", options, training=True, layout=TFDS)
      >>> features, label = next(iter(train))
      >>> features["image"].shape, label.dtype
      (TensorShape([16, 28, 28, 3]), tf.int64)

    Args:
      files: a pattern, or paths.
      options: options of the pipeline.
      training: shuffle, augment and drop an incomplete last batch; otherwise read in the order of the names.
      layout: features of image, label and key; `TFDS` for files of TensorFlow Datasets.
      compression: `none`, `gzip` or `zlib`, for all files; `auto` detects it from the first bytes of each file.
      epochs: passes over the files, or `FOREVER`.
      start: position of the first record; its epoch is the first of `epochs`.

    Returns:
      dataset of (features, label) as of `make_dataset`. A compressed file that is cut off raises an error with its
      name; for a plain file see `explain_files`.

    Raises:
      SourceError: there is no such file or record, or a file has another compression.
      OptionError: an option is out of range or not supported, or the records do not fit the layout.
      CorruptDataset: the first records cannot be read.
    """
    check_stream_options(options)
    errors.check_choice("compression", compression, COMPRESSIONS)
    paths = find_files(files)
    compressions = tuple(map_ordered(partial(detect_compression, setting=compression), paths, _REQUESTS))
    sample_records = next(filter(None, map(_read_first_records, paths, compressions)), None)
    if not sample_records:
        raise SourceError(f"{paths[0]}{' and the other files hold' if len(paths) > 1 else ' holds'} no record")
    record_bytes = sum(map(len, sample_records)) / len(sample_records)
    reading = _Reading(
        files=tuple(paths),
        compressions=compressions,
        options=options,
        layout=layout,
        spec=layout.spec(record.decode(sample_records[0]), paths[0]),
        window=max(1, int(options.shuffle_mb * 1e6 / record_bytes)) if training and options.shuffle != "none" else 0,
        training=training,
    )
    if epochs == FOREVER:
        passes = tf.data.Dataset.counter(start=start.epoch, dtype=tf.int64)
    else:
        passes = tf.data.Dataset.range(start.epoch, start.epoch + epochs)
    stream = passes.flat_map(partial(_read_epoch, reading=reading, start=start))
    return batches(stream.unbatch(), options, training)


def find_files(files: str | Sequence[str]) -> list[str]:
    """Returns the files of a pattern, sorted by name, or of a list.

    Raises:
      SourceError: there is no such file.
    """
    paths = sorted(tf.io.gfile.glob(files)) if isinstance(files, str) else list(files)
    if not paths:
        raise SourceError(f"there is no file {files!r}; name TFRecord files, by a pattern such as data/*.tfrecord")
    return paths


def explain_files(files: str | Sequence[str], error: Exception) -> CorruptDataset | None:
    """Reads all files to find the one that made a training fail, which errors of TensorFlow do not name.

    Args:
      files: argument `files` of `make_file_stream`.
      error: error of TensorFlow.

    Returns:
      an error of one line with file, offset and fault; None if every file is intact.
    """
    damage = next(filter(None, map(_find_damage, find_files(files))), "")
    message = str(getattr(error, "message", error)).split("\n")[0][:200]
    return CorruptDataset(f"{damage}; training stopped: {message}") if damage else None


def _find_damage(path: str) -> str:
    try:
        summarise_file(path, shown=0)
    except FeedlineError as error:
        return str(error)
    return ""


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """The parameters for reading every epoch.

    Attributes:
      files: paths of the files.
      compressions: compression of each file.
      options: options of the pipeline.
      layout: features of image, label and key.
      spec: argument of `tf.io.parse_example`.
      window: records in the shuffle window; 0 for no shuffling.
      training: whether several files are read in parallel.
    """

    files: tuple[str, ...]
    compressions: tuple[str, ...]
    options: InputOptions
    layout: RecordLayout
    spec: Mapping[str, Any]
    window: int
    training: bool

    @property
    def names(self) -> list[str]:
        """Names of the files relative to their common directory."""
        shared = posixpath.commonprefix([posixpath.dirname(name) + "/" for name in self.files]).rpartition("/")[0]
        return [name[len(shared) :].lstrip("/") for name in self.files]


def _read_first_records(path: str, compression: str) -> list[bytes]:
    stream = tf.data.TFRecordDataset(path, compression_type="" if compression == NONE else compression.upper())
    if fault := find_fault(path, compression):
        raise CorruptDataset(fault)
    try:
        return list(stream.take(_SAMPLED_RECORDS).as_numpy_iterator())
    except tf.errors.OpError as error:
        explanation = explain_files([path], error)
        raise explanation or CorruptDataset(f"{path} cannot be read as TFRecord: {error.message}") from error


def _read_epoch(epoch: tf.Tensor, reading: _Reading, start: Position) -> tf.data.Dataset:
    """Returns the parsed records of one epoch, in batches."""
    options = reading.options
    order = tf.range(len(reading.files), dtype=tf.int64)
    if reading.window:
        order = tf.random.experimental.stateless_shuffle(order, seed=tf.stack([options.seed, epoch]))
    readers = min(options.readers, len(reading.files)) if reading.training else 1
    stream = tf.data.Dataset.from_tensor_slices(order).interleave(
        partial(_read_file, reading=reading),
        cycle_length=readers,  # bounded: open files and read buffers must not grow with the number of files
        block_length=_BLOCK_RECORDS,
        num_parallel_calls=min(readers, options.thread_count) if reading.training else None,
        deterministic=True,
    )
    if reading.window:
        stream = _shuffle(stream, reading.window, options.seed, epoch)  # records take a tenth of the bytes of pixels
    stream = stream.skip(tf.where(epoch == start.epoch, tf.constant(start.records, tf.int64), 0))
    parse = partial(_parse, epoch=epoch, reading=reading)
    return stream.batch(options.parse_batch).map(parse, options.thread_count, deterministic=True)


def _read_file(number: tf.Tensor, reading: _Reading) -> tf.data.Dataset:
    """Returns the records of one file, each with the number of the file and its index there."""
    name, compression = tf.gather(reading.files, number), tf.gather(reading.compressions, number)
    if set(reading.compressions) != {NONE}:
        fault = tf.ensure_shape(tf.numpy_function(_find_fault_bytes, [name, compression], tf.string), [])
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(fault, ""), [fault])]):
            name = tf.identity(name)
    compression_type = tf.where(tf.equal(compression, NONE), "", tf.strings.upper(compression))
    records = tf.data.TFRecordDataset(name, compression_type=compression_type, buffer_size=_READ_BUFFER_BYTES)
    return tf.data.Dataset.zip((records, tf.data.Dataset.from_tensors(number).repeat(), tf.data.Dataset.counter()))


def _find_fault_bytes(name: bytes, compression: bytes) -> bytes:
    # An assertion of TensorFlow would escape a quote.
    return find_fault(name.decode(), compression.decode()).replace("'", "`").encode()


def _shuffle(stream: tf.data.Dataset, window: int, seed: int, epoch: tf.Tensor) -> tf.data.Dataset:
    # The order of `Dataset.shuffle` also depends on the global seed of TensorFlow.
    shuffled = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(stream),
        buffer_size=window,
        seed=tf.constant(seed + 1, tf.int64),  # the pair (0, 0) means a random seed
        seed2=epoch + 1,
        reshuffle_each_iteration=False,
        output_types=[spec.dtype for spec in stream.element_spec],
        output_shapes=[spec.shape for spec in stream.element_spec],
    )
    return tf.data.experimental.from_variant(shuffled, stream.element_spec)


def _parse(serialized: tf.Tensor, number: tf.Tensor, index: tf.Tensor, epoch: tf.Tensor, reading: _Reading) -> Features:
    layout = reading.layout
    parsed = tf.io.parse_example(serialized, dict(reading.spec))
    if layout.key:
        key = parsed[layout.key]
        key = key if key.dtype == tf.string else tf.strings.as_string(key)
    else:
        key = tf.strings.join([tf.gather(reading.names, number), tf.strings.as_string(index)], ":")
    return {
        IMAGE: parsed[layout.image],
        KEY: key,
        LABEL: _make_labels(parsed, layout, tf.size(key)),
        IMAGE_SEED: derive_image_seeds(key, tf.fill(tf.shape(key), epoch), reading.options.seed),
    }
