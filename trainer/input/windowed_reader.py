"""Reads shards in the order of training: window by window, neighbouring records in one read."""

from __future__ import annotations

import os
from functools import partial
from typing import NamedTuple, TypeAlias

import google_crc32c
import tensorflow as tf

from beam_jobs.storage import is_remote
from trainer.input.index import RecordIndex, replaced_message
from trainer.input.order import WINDOWS_IN_MEMORY, Order
from trainer.input.position import Host
from trainer.input.remote_reader import SCHEME, check_manifest, fetch_run
from trainer.options import InputOptions

FOREVER = -1
"""Value of `epochs` for endless reading; each epoch has another order.

Examples:
  >>> from trainer import FOREVER, InputOptions, make_dataset
  >>> options = InputOptions(image_side_px=32, batch_size=8)
  >>> train = make_dataset("dataset", "train", options, training=True, epochs=FOREVER)
  >>> sum(len(label) for _, label in train.take(100))  # the split has about 40 images
  800
"""

Index: TypeAlias = "int | tf.Tensor"  # position in the endless sequence of all epochs, int64
ENDLESS = tf.int64.max  # end of an unlimited range of positions
_LOCAL_BUFFER_BYTES = 1 << 18  # a larger buffer is no faster on local files (`benchmarks.micro`)
_REMOTE_BUFFER_BYTES = 1 << 21  # the latency of a request is the transfer time of a megabyte
_MAX_REQUEST_BYTES = 1 << 23  # longer runs are fetched by several parallel requests
_CACHE_REQUESTS = 4  # parallel requests while a disk cache is written


class Window(NamedTuple):
    """Positions that are read together.

    Attributes:
      numbers: int64[n], record numbers, in order of the positions.
      seed_epochs: int64[n], see `Order.compute_epoch`.
    """

    numbers: tf.Tensor
    seed_epochs: tf.Tensor


def plan_windows(order: Order, begin: Index, end: Index, host: Host) -> tf.data.Dataset:
    """Returns the windows of one host.

    Position P of the endless sequence belongs to the host (P mod lanes) mod hosts, so every global batch holds the same
    number of records of each host.

    Args:
      order: order of an epoch.
      begin: first position to deliver.
      end: position after the last one, or `ENDLESS`.
      host: host whose positions are returned.

    Returns:
      dataset of `Window`; some may be empty.
    """
    records = max(1, order.records)  # a host may have no record in evaluation

    def plan_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        full_epoch = Window(*order.compute_epoch(epoch))
        first, last = tf.maximum(begin - epoch * records, 0), tf.minimum(end - epoch * records, records)  # of the epoch
        window_numbers = tf.data.Dataset.range(first // order.window_positions, -(-last // order.window_positions))
        return window_numbers.map(partial(_cut_window, order, host, full_epoch, epoch, begin, end))

    return tf.data.Dataset.range(begin // records, (end - 1) // records + 1).flat_map(plan_epoch)


def plan_data_service_windows(order: Order, begin: Index, end: Index, host: Host) -> tf.data.Dataset:
    """Returns the windows of `plan_windows` from one flat range, which a tf.data service can distribute to workers."""

    def find_window(position: Index) -> Index:
        return position // order.records * order.windows + position % order.records // order.window_positions

    def cut_window(number: tf.Tensor) -> Window:
        epoch = number // order.windows
        return _cut_window(order, host, Window(*order.compute_epoch(epoch)), epoch, begin, end, number % order.windows)

    return tf.data.Dataset.range(find_window(begin), find_window(end - 1) + 1).map(cut_window)


def _cut_window(
    order: Order, host: Host, full_epoch: Window, epoch: tf.Tensor, begin: Index, end: Index, number: tf.Tensor
) -> Window:
    """Returns the positions of one window of an epoch that belong to the host and are from `begin` to `end`."""
    epoch_start = epoch * order.records
    first = number * order.window_positions
    last = tf.minimum(first + order.window_positions, order.records)
    positions = tf.range(tf.maximum(first, begin - epoch_start), tf.minimum(last, end - epoch_start))
    if host.count > 1:
        positions = tf.boolean_mask(positions, (epoch_start + positions) % order.lanes % host.count == host.index)
    return Window(tf.gather(full_epoch.numbers, positions), tf.gather(full_epoch.seed_epochs, positions))


def read_in_order(index: RecordIndex) -> tf.data.Dataset:
    """Reads every record once, in the order of the shards: a dataset of string[n] of some MB each."""
    is_fetched = needs_remote_reader(index)
    requests = _CACHE_REQUESTS if is_fetched else 1
    part_bytes = requests * _MAX_REQUEST_BYTES if is_fetched else _REMOTE_BUFFER_BYTES
    numbers = tf.data.Dataset.range(len(index)).batch(max(1, int(part_bytes / max(1.0, index.record_bytes))))
    # The result has no image seeds, so any numbers can be the seed epochs of a window.
    windows = numbers.flat_map(lambda part: _read_window(Window(part, part), index, requests, is_fetched))
    return windows.map(lambda records, *_: records)


def needs_remote_reader(index: RecordIndex) -> bool:
    """Returns whether `remote_reader` reads the shards, and not TensorFlow."""
    return index.files[0].startswith(SCHEME)


def read_windows(
    windows: tf.data.Dataset, index: RecordIndex, options: InputOptions, hosts: int = 1, is_fetched: bool = False
) -> tf.data.Dataset:
    """Reads windows ahead: one at a time; with several hosts and `remote_reader`, parts of several windows at a time.

    Args:
      windows: windows of one host.
      index: the records of the split.
      options: `shuffle_mb` and `readers` are used.
      hosts: number of hosts, among which each window is divided.
      is_fetched: whether `remote_reader` fetches the records, and not TensorFlow.

    Returns:
      dataset of (records string[m] in the order of the shards, indices int64[n] of the positions into them, seed_epochs
      int64[n]).
    """
    # Windows are limited by bytes, because a cache of pixels holds larger records than the shards.
    part_records = max(1, int(options.shuffle_mb * 1e6 / WINDOWS_IN_MEMORY / max(1.0, index.record_bytes)))
    windows = windows.flat_map(lambda window: tf.data.Dataset.from_tensor_slices(window).batch(part_records))
    if hosts == 1 or not is_fetched:
        read_part = partial(_read_window, index=index, readers=options.readers, is_fetched=is_fetched)
        return windows.flat_map(read_part).prefetch(1)
    read_part = partial(_read_window, index=index, readers=-(-options.readers // hosts), is_fetched=True)
    parts = max(1, hosts // 3)  # in parallel; TensorFlow reads ahead three times as many parts: one window
    return windows.interleave(read_part, parts, 1, num_parallel_calls=parts, deterministic=True).prefetch(1)


def _read_window(window: Window, index: RecordIndex, readers: int, is_fetched: bool) -> tf.data.Dataset:
    """Returns one element, see `read_windows`; consecutive records are read together, each record once."""
    numbers, seed_epochs = window
    unique, _ = tf.unique(tf.sort(numbers))  # the record numbers, each once
    all_shards, all_offsets = tf.constant(index.shard), tf.constant(index.offset)
    shards = tf.gather(all_shards, unique)
    # A run ends at an excluded record.
    split_numbers = unique if index.split_numbers is None else tf.gather(tf.constant(index.split_numbers), unique)
    continues_run = (split_numbers[1:] == split_numbers[:-1] + 1) & (shards[1:] == shards[:-1])
    starts_run = tf.concat([[True], ~continues_run], 0)
    unique_indices = tf.range(tf.size(unique, tf.int64))
    if is_fetched:
        run_starts = tf.boolean_mask(unique_indices, starts_run)
        index_in_run = unique_indices - tf.gather(run_starts, tf.cumsum(tf.cast(starts_run, tf.int32)) - 1)
        starts_run |= index_in_run % max(1, int(_MAX_REQUEST_BYTES / max(1.0, index.record_bytes))) == 0
    run_starts = tf.boolean_mask(unique_indices, starts_run)
    run_lengths = tf.concat([run_starts[1:], [tf.size(unique, tf.int64)]], 0) - run_starts
    run_shards = tf.gather(shards, run_starts)
    files = tf.gather(tf.constant(index.files), run_shards)
    offsets = tf.gather(all_offsets, tf.gather(unique, run_starts))
    runs = tf.data.Dataset.from_tensor_slices((files, offsets, run_lengths))
    if is_fetched:
        # The bytes of a run end at the next record of the index; excluded records before that record are included.
        last_numbers = tf.gather(unique, run_starts + run_lengths - 1)
        next_numbers = tf.minimum(last_numbers + 1, len(index) - 1)
        is_in_shard = (next_numbers > last_numbers) & (tf.gather(all_shards, next_numbers) == run_shards)
        limits = tf.gather(tf.constant(index.limits), run_shards)
        ends = tf.where(is_in_shard, tf.gather(all_offsets, next_numbers), limits)
        runs = tf.data.Dataset.from_tensor_slices((files, offsets, ends, run_lengths))
        records = runs.map(fetch_run, readers, deterministic=True).unbatch()
    else:
        records = _read_runs(runs, index, readers)
    records = records.batch(tf.size(unique, tf.int64))
    # Without this, shards that end before the first record of the window would give no batch and no error.
    records = records.concatenate(tf.data.Dataset.from_tensors(tf.zeros([0], tf.string))).take(1)
    indices = tf.searchsorted(unique, numbers, out_type=tf.int64)

    def check_window(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        tf.debugging.assert_equal(tf.size(serialized), tf.size(unique), "a shard ends before its last record")
        if is_fetched and index.manifest:
            path, content = index.manifest
            with tf.control_dependencies([check_manifest(path, google_crc32c.value(content))]):
                return tf.identity(serialized), indices, seed_epochs
        _check_not_replaced(index, tf.size(serialized))
        return serialized, indices, seed_epochs

    return records.map(check_window)


def _check_not_replaced(index: RecordIndex, count: tf.Tensor) -> None:
    """Raises `InvalidArgumentError` if the dataset was replaced before its records were read.

    Args:
      index: index of the records.
      count: int32, number of records; it makes the check run after each read, not only once.
    """
    if index.manifest is None:
        return
    path, content = index.manifest
    current = tf.io.read_file(tf.gather(tf.constant([path]), tf.minimum(count, 0)))
    message = replaced_message(os.path.dirname(path))
    tf.debugging.assert_equal(tf.fingerprint([current]), tf.fingerprint([content]), message)


def _read_runs(runs: tf.data.Dataset, index: RecordIndex, readers: int) -> tf.data.Dataset:
    if not is_remote(index.files[0]):
        # Sequential reads: the page cache is faster than threads.
        return runs.flat_map(partial(_read_run, buffer_bytes=_LOCAL_BUFFER_BYTES))
    return runs.interleave(
        partial(_read_run, buffer_bytes=_REMOTE_BUFFER_BYTES),
        cycle_length=readers,
        block_length=max(1, len(index)),  # a run is delivered completely while the threads read the next ones
        num_parallel_calls=readers,
        deterministic=True,
    )


def _read_run(path: tf.Tensor, offset: tf.Tensor, length: tf.Tensor, buffer_bytes: int) -> tf.data.Dataset:
    # `TFRecordDataset` has no argument for the offset.
    records = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path], compression_type="", buffer_size=tf.constant(buffer_bytes, tf.int64), byte_offsets=[offset]
    )
    return tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string)).take(length)
