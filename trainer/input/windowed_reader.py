"""Reader of shards in the order of training: window by window, what lies together in one go."""

from __future__ import annotations

import os
from functools import partial
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from beam_jobs.storage import is_remote
from trainer.input.order import WINDOWS_HELD, Order, RecordIndex, replaced
from trainer.input.position import Host
from trainer.options import InputOptions

FOREVER = -1
"""For `epochs`: read without end, one epoch after the other, each in an order of its own.

Examples:
  >>> from trainer import FOREVER, InputOptions, make_dataset
  >>> options = InputOptions(image_side_px=32, batch_size=8)
  >>> train = make_dataset("dataset", "train", options, training=True, epochs=FOREVER)
  >>> sum(len(label) for _, label in train.take(100))  # of some 40 images
  800
"""

Place: TypeAlias = "int | tf.Tensor"  # in the endless sequence of all epochs, int64
ENDLESS = tf.int64.max  # for the end of a plan
_LOCAL_BUFFER_BYTES = 1 << 18  # more is no faster on local files (`benchmarks.micro`)
_REMOTE_BUFFER_BYTES = 1 << 21  # a request costs as much time as a megabyte


class Window(NamedTuple):
    """Positions that are read together.

    Attributes:
      numbers: int64[n], record at each position, in order.
      draws: int64[n], what its random draws take for the epoch.
    """

    numbers: tf.Tensor
    draws: tf.Tensor


def plan_windows(order: Order, begin: Place, end: Place, host: Host) -> tf.data.Dataset:
    """Returns the windows of one host.

    Position P of the endless sequence, epoch after epoch, belongs to the host (P mod lanes) mod hosts, so that a global
    batch, wherever it begins, holds equally many records of each host.

    Args:
      order: of an epoch.
      begin: first position to deliver.
      end: the position after the last, or `ENDLESS`.
      host: whose positions.

    Returns:
      dataset of `Window`; some may be empty.
    """
    records = max(1, order.records)  # a host of evaluation may have none

    def windows(epoch: tf.Tensor) -> tf.data.Dataset:
        whole = Window(*order.epoch(epoch))
        first, last = tf.maximum(begin - epoch * records, 0), tf.minimum(end - epoch * records, records)
        numbers = tf.data.Dataset.range(first // order.window_positions, -(-last // order.window_positions))
        return numbers.map(partial(_window, order, host, whole, epoch, begin, end))

    return tf.data.Dataset.range(begin // records, (end - 1) // records + 1).flat_map(windows)


def serve_windows(order: Order, begin: Place, end: Place, host: Host) -> tf.data.Dataset:
    """Returns the same windows from one flat range, which a tf.data service can deal out to its workers."""

    def number_of(position: Place) -> Place:
        return position // order.records * order.windows + position % order.records // order.window_positions

    def window(number: tf.Tensor) -> Window:
        epoch = number // order.windows
        return _window(order, host, Window(*order.epoch(epoch)), epoch, begin, end, number % order.windows)

    return tf.data.Dataset.range(number_of(begin), number_of(end - 1) + 1).map(window)


def _window(
    order: Order, host: Host, whole: Window, epoch: tf.Tensor, begin: Place, end: Place, number: tf.Tensor
) -> Window:
    before = epoch * order.records
    first = number * order.window_positions
    last = tf.minimum(first + order.window_positions, order.records)
    positions = tf.range(tf.maximum(first, begin - before), tf.minimum(last, end - before))
    if host.count > 1:
        positions = tf.boolean_mask(positions, (before + positions) % order.lanes % host.count == host.index)
    return Window(tf.gather(whole.numbers, positions), tf.gather(whole.draws, positions))


def in_order(index: RecordIndex) -> tf.data.Dataset:
    """Reads every record once, in the order of the shards: a dataset of string[n], some megabytes each."""
    count = max(1, int(_REMOTE_BUFFER_BYTES / max(1.0, index.record_bytes)))
    numbers = tf.data.Dataset.range(len(index)).batch(count)
    return numbers.flat_map(lambda part: _read_window(Window(part, part), index, readers=1)).map(lambda *read: read[0])


def read_windows(windows: tf.data.Dataset, index: RecordIndex, options: InputOptions) -> tf.data.Dataset:
    """Reads windows ahead, one at a time.

    Returns:
      dataset of (records string[m] as they lie in the shards, places int64[n] of each position among them, draws
      int64[n]).
    """
    # What is read together is decided by bytes: a cache of pixels holds larger records than the shards.
    limit = max(1, int(options.shuffle_mb * 1e6 / WINDOWS_HELD / max(1.0, index.record_bytes)))
    windows = windows.flat_map(lambda window: tf.data.Dataset.from_tensor_slices(window).batch(limit))
    return windows.flat_map(partial(_read_window, index=index, readers=options.readers)).prefetch(1)


def _read_window(window: Window, index: RecordIndex, readers: int) -> tf.data.Dataset:
    numbers, draws = window
    wanted, _ = tf.unique(tf.sort(numbers))
    shard = tf.gather(tf.constant(index.shard), wanted)
    # A record that is left out parts its neighbours.
    place = wanted if index.places is None else tf.gather(tf.constant(index.places), wanted)
    is_next = (place[1:] == place[:-1] + 1) & (shard[1:] == shard[:-1])
    begins = tf.concat([[True], ~is_next], 0)
    first = tf.boolean_mask(tf.range(tf.size(wanted, tf.int64)), begins)
    length = tf.concat([first[1:], [tf.size(wanted, tf.int64)]], 0) - first
    files = tf.gather(tf.constant(index.files), tf.gather(shard, first))
    offsets = tf.gather(tf.constant(index.offset), tf.gather(wanted, first))
    runs = tf.data.Dataset.from_tensor_slices((files, offsets, length))
    records = _read_runs(runs, index, readers).batch(tf.size(wanted, tf.int64))
    # Shards that end before the first wanted record give no batch at all; a batch would be missing without an error.
    records = records.concatenate(tf.data.Dataset.from_tensors(tf.zeros([0], tf.string))).take(1)
    places = tf.searchsorted(wanted, numbers, out_type=tf.int64)

    def complete(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        tf.debugging.assert_equal(tf.size(serialized), tf.size(wanted), "a shard ends before its last record")
        _check_generation(index, tf.size(serialized))
        return serialized, places, draws

    return records.map(complete)


def _check_generation(index: RecordIndex, read: tf.Tensor) -> None:
    """Raises `InvalidArgumentError` unless what was read came from the dataset that was opened.

    It looks after the records were read: a dataset that is still there then was there when they were read.

    Args:
      index: of the records.
      read: int32, their number: without it, TensorFlow would look once and keep the answer.
    """
    if index.manifest is None:
        return
    path, content = index.manifest
    now = tf.io.read_file(tf.gather(tf.constant([path]), tf.minimum(read, 0)))
    tf.debugging.assert_equal(tf.fingerprint([now]), tf.fingerprint([content]), replaced(os.path.dirname(path)))


def _read_runs(runs: tf.data.Dataset, index: RecordIndex, readers: int) -> tf.data.Dataset:
    if not is_remote(index.files[0]):
        # One after the other: the page cache is faster than what threads would cost.
        return runs.flat_map(partial(_read_run, buffer_bytes=_LOCAL_BUFFER_BYTES))
    return runs.interleave(
        partial(_read_run, buffer_bytes=_REMOTE_BUFFER_BYTES),
        cycle_length=readers,
        block_length=max(1, len(index)),  # a run is delivered whole; the threads read the next ones meanwhile
        num_parallel_calls=readers,
        deterministic=True,
    )


def _read_run(name: tf.Tensor, offset: tf.Tensor, length: tf.Tensor, buffer_bytes: int) -> tf.data.Dataset:
    # `TFRecordDataset` has no argument for the offset; the op below it has.
    records = tf.raw_ops.TFRecordDatasetV2(
        filenames=[name],
        compression_type="",
        buffer_size=tf.constant(buffer_bytes, tf.int64),
        byte_offsets=[offset],
    )
    return tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string)).take(length)
