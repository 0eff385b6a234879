"""Reads an order: window by window, what lies together in one go, whatever the order is."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import tensorflow as tf

from beam_jobs.storage import is_remote
from trainer.index import RecordIndex
from trainer.options import InputOptions
from trainer.order import WINDOWS_HELD, Order
from trainer.position import Host, Position

FOREVER = -1
"""For `epochs`: read without end, one epoch after the other, each in an order of its own.

Examples:
  >>> from trainer import FOREVER, InputOptions, make_dataset
  >>> options = InputOptions(image_side_px=32, batch_size=8)
  >>> train = make_dataset("dataset", "train", options, training=True, epochs=FOREVER)
  >>> sum(len(label) for _, label in train.take(100))  # of some 40 images
  800
"""

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


def plan(order: Order, start: Position, epochs: int, host: Host) -> tf.data.Dataset:
    """Returns the windows of one host, over all epochs.

    Position P of the endless sequence belongs to the host (P mod lanes) mod hosts, so that a global batch, wherever it
    begins, holds equally many records of each host.

    Args:
      order: of an epoch.
      start: first position to deliver.
      epochs: passes, the one that `start` lies in included, or `FOREVER`.
      host: whose positions.

    Returns:
      dataset of `Window`; some may be empty.
    """
    first = tf.constant(start.epoch, tf.int64)
    if epochs == FOREVER:
        passes = tf.data.Dataset.counter(start=start.epoch, dtype=tf.int64)
    else:
        passes = tf.data.Dataset.range(start.epoch, start.epoch + epochs)

    def windows(epoch: tf.Tensor) -> tf.data.Dataset:
        whole = Window(*order.epoch(epoch))
        skipped = tf.where(epoch == first, tf.constant(start.records, tf.int64), 0)
        numbers = tf.data.Dataset.range(skipped // order.window_positions, order.windows)
        return numbers.map(partial(_window, order, host, whole, epoch, skipped))

    return passes.flat_map(windows)


def serve_plan(order: Order, start: Position, epochs: int, host: Host) -> tf.data.Dataset:
    """Returns the same windows from one flat range, which a tf.data service can deal out to its workers."""
    passes = tf.int64.max // order.windows if epochs == FOREVER else start.epoch + epochs
    begin = start.epoch * order.windows + start.records // order.window_positions

    def window(number: tf.Tensor) -> Window:
        epoch = number // order.windows
        whole = Window(*order.epoch(epoch))
        skipped = tf.where(epoch == start.epoch, tf.constant(start.records, tf.int64), 0)
        return _window(order, host, whole, epoch, skipped, number % order.windows)

    return tf.data.Dataset.range(begin, passes * order.windows).map(window)


def _window(order: Order, host: Host, whole: Window, epoch: tf.Tensor, skipped: tf.Tensor, number: tf.Tensor) -> Window:
    begin = number * order.window_positions
    positions = tf.range(tf.maximum(begin, skipped), tf.minimum(begin + order.window_positions, order.records))
    if host.count > 1:
        owner = (epoch * order.records + positions) % order.lanes % host.count
        positions = tf.boolean_mask(positions, owner == host.index)
    return Window(tf.gather(whole.numbers, positions), tf.gather(whole.draws, positions))


def in_order(index: RecordIndex) -> tf.data.Dataset:
    """Reads every record once, in the order of the shards: a dataset of string[n], some megabytes each."""
    count = max(1, int(_REMOTE_BUFFER_BYTES / max(1.0, index.record_bytes)))
    numbers = tf.data.Dataset.range(len(index)).batch(count)
    return numbers.flat_map(lambda part: _read_window(Window(part, part), index, readers=1)).map(lambda *read: read[0])


def read(windows: tf.data.Dataset, index: RecordIndex, options: InputOptions) -> tf.data.Dataset:
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
    # Shards that end before the first wanted record give no batch at all, and nobody would miss it.
    records = records.concatenate(tf.data.Dataset.from_tensors(tf.zeros([0], tf.string))).take(1)
    places = tf.searchsorted(wanted, numbers, out_type=tf.int64)

    def complete(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        tf.debugging.assert_equal(tf.size(serialized), tf.size(wanted), "a shard ends before its last record")
        return serialized, places, draws

    return records.map(complete)


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
