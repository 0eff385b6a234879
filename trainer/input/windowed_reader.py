"""Where every record lies, the order of training, and its reader: window by window, what lies together in one go.

The order is a pure function of (seed, epoch), computed before anything is read. Runs of neighbouring records come in
random order. They are cut into `lanes`, and position p of the epoch lies in lane p mod lanes, so a host that owns some
of the lanes reads whole runs of its own, and yet every batch is the same on any number of hosts. Inside a lane, the
records of a window of a few runs are mixed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow.compute as pc
import tensorflow as tf

from beam_jobs import storage
from beam_jobs.dataset import schemas
from beam_jobs.dataset.manifest import IMAGES_NAME, MANIFEST_NAME, Manifest
from beam_jobs.errors import CorruptDataset, DatasetChanged, OptionError
from beam_jobs.storage import is_remote
from trainer.input.position import Host
from trainer.options import InputOptions


@dataclass(frozen=True, kw_only=True)
class RecordIndex:
    """The records of one split, numbered from 0 in the order of the shards.

    Attributes:
      files: paths of the shards.
      shard: int32[records], place of its file in `files`.
      offset: int64[records], byte at which it starts.
      label: int64[records], class index; -1 where there is not exactly one.
      record_bytes: average size of a record in the file.
      size: height and width of the images, where all have the same; otherwise None.
      places: int64[records], numbers among all records of the split, those left out included, so that neighbours in a
        file have neighbouring places; None where nothing is left out.
      manifest: path and content of the `dataset.json` that the shards are of; None of files that are not replaced.
    """

    files: tuple[str, ...]
    shard: np.ndarray
    offset: np.ndarray
    label: np.ndarray
    record_bytes: float
    size: tuple[int, int] | None = None
    places: np.ndarray | None = None
    manifest: tuple[str, bytes] | None = None

    def __len__(self) -> int:
        return len(self.shard)

    def without(self, numbers: Collection[int]) -> RecordIndex:
        """Returns the index with some records left out; the others are numbered anew."""
        return self._only(np.setdiff1d(np.arange(len(self)), np.fromiter(numbers, np.int64, len(numbers))))

    def part(self, host: Host) -> RecordIndex:
        """Returns the records of one host: consecutive ones, an equal share of all."""
        bounds = np.linspace(0, len(self), host.count + 1).round().astype(np.int64)
        return self._only(np.arange(bounds[host.index], bounds[host.index + 1]))

    def _only(self, numbers: np.ndarray) -> RecordIndex:
        picked = {name: getattr(self, name)[numbers] for name in ("shard", "offset", "label")}
        places = numbers if self.places is None else self.places[numbers]
        return dataclasses.replace(self, **picked, places=places)


def load_index(path: str, dataset: Manifest, split: str) -> RecordIndex:
    """Reads the index of a split out of `images.parquet`: 36 bytes a record while it is read, 20 afterwards.

    Raises:
      OptionError: there is no such split.
      CorruptDataset: the table is damaged, or is not that of the shards.
      DatasetChanged: the dataset was replaced after its manifest was read.
    """
    info = dataset.split(split)
    manifest_path = storage.join(path, MANIFEST_NAME)
    manifest = storage.read_bytes(manifest_path)
    if json.loads(manifest)["digest"] != dataset.digest:
        raise DatasetChanged(replaced(path))
    table = storage.join(path, IMAGES_NAME)
    rows = schemas.read_published(table, ["split", "shard", "offset", "label_index", "height", "width"])
    rows = rows.filter(pc.and_(pc.equal(rows["split"], split), pc.greater_equal(rows["shard"], 0)))
    shard, offset, label = (rows[name].to_numpy() for name in ("shard", "offset", "label_index"))
    if not np.array_equal(np.bincount(shard, minlength=len(info.shards)), [item.records for item in info.shards]):
        raise CorruptDataset(f"{table} does not name the records that the shards of {split!r} hold; write it again")
    order = np.lexsort((offset, shard))
    return RecordIndex(
        files=tuple(dataset.shard_paths(path, split)),
        shard=shard[order].astype(np.int32),
        offset=offset[order],
        label=label[order],
        record_bytes=info.bytes / max(1, info.records),
        size=_only_size(rows["height"].to_numpy(), rows["width"].to_numpy()),
        manifest=(manifest_path, manifest),
    )


def replaced(path: str) -> str:
    """Returns the line about a dataset whose reader finds another one in its place."""
    return f"{path} was replaced by another dataset while it was read; start again, to read that one"


def _only_size(height: np.ndarray, width: np.ndarray) -> tuple[int, int] | None:
    if len(height) == 0 or np.ptp(height) or np.ptp(width):
        return None
    return int(height[0]), int(width[0])


WINDOWS_HELD = 2  # one is taken apart while the next is read
_RUNS_PER_LANE = 8  # random places that a window of one lane is made of
_COPY_STRIDE = 1_000_003  # a prime, so that the copies of a record meet no draw of another epoch
_RNG = "philox"  # the same numbers on every device


@dataclass(frozen=True, kw_only=True)
class Order:
    """How the records of a split follow each other in an epoch.

    Attributes:
      records: length of an epoch.
      lanes: parts of a pass.
      window: records that one lane mixes at a time.
      run: consecutive records read together.
      seed: decides the order.
      kind: `window`, `global` or `none`.
      quota: class index -> records of an epoch; empty without balancing.
      members: class index -> int64 record numbers; empty without balancing.
    """

    records: int
    lanes: int
    window: int
    run: int
    seed: int
    kind: str
    quota: Mapping[int, int] = field(default_factory=dict)
    members: Mapping[int, np.ndarray] = field(default_factory=dict)

    @property
    def window_positions(self) -> int:
        """Positions of an epoch that are read together, over all hosts."""
        return self.window * self.lanes

    @property
    def windows(self) -> int:
        """Windows in an epoch."""
        return -(-self.records // self.window_positions)

    def epoch(self, epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes the order of one epoch.

        Args:
          epoch: int64 scalar.

        Returns:
          record numbers int64[records] by position, and for each what its random draws take for the epoch, int64: a
          record that comes twice in an epoch draws differently.
        """
        draws = tf.fill([self.records], epoch)
        if self.quota:
            numbers, copies = self._balanced(epoch)
            places = self._shuffled(tf.range(self.records, dtype=tf.int64), epoch, 1)
            return tf.gather(numbers, places), draws + tf.gather(copies, places) * _COPY_STRIDE
        if self.kind == "none":
            return tf.range(self.records, dtype=tf.int64), draws
        if self.kind == "global":
            return self._shuffled(tf.range(self.records, dtype=tf.int64), epoch, 1), draws
        return tf.gather(self._runs(epoch), self._mixed(epoch)), draws

    def _runs(self, epoch: tf.Tensor) -> tf.Tensor:
        """Returns the record numbers, run after run, the runs in random order."""
        starts = self._shuffled(tf.range(0, self.records, self.run, dtype=tf.int64), epoch, 1)
        limits = tf.minimum(starts + self.run, self.records)
        return tf.ragged.range(starts, limits).flat_values

    def _mixed(self, epoch: tf.Tensor) -> tf.Tensor:
        """Returns what position takes which place of `_runs`: lane by lane, mixed inside windows."""
        shortest, longer = divmod(self.records, self.lanes)
        lane = tf.range(self.lanes, dtype=tf.int64)[:, None]
        length = shortest + tf.cast(lane < longer, tf.int64)
        start = lane * shortest + tf.minimum(lane, longer)
        rows = -(-max(1, shortest + (longer > 0)) // self.window)
        place = tf.range(rows * self.window, dtype=tf.int64)[None, :]
        keys = tf.random.stateless_uniform([self.lanes, rows * self.window], self._seed(epoch, 2), alg=_RNG)
        keys = tf.where(place < length, keys, 2.0)  # what is beyond the end of a lane sorts last, into the last row
        shape = [self.lanes, rows, self.window]
        picked = tf.argsort(tf.reshape(keys, shape), stable=True)
        picked = tf.cast(picked, tf.int64) + tf.range(rows, dtype=tf.int64)[None, :, None] * self.window
        slots = start + tf.reshape(picked, [self.lanes, -1])
        # Row by row: the lanes that are longer by one are the first ones, so the valid slots come first.
        return tf.reshape(tf.transpose(slots), [-1])[: self.records]

    def _balanced(self, epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns record numbers, class after class, and which copy of its record each is."""
        numbers, copies = [], []
        for label, quota in self.quota.items():
            members = self._shuffled(tf.constant(self.members[label]), epoch, 3 + label)
            turn = tf.range(quota, dtype=tf.int64)
            numbers.append(tf.gather(members, turn % len(self.members[label])))
            copies.append(turn // len(self.members[label]))
        return tf.concat(numbers, 0), tf.concat(copies, 0)

    def _shuffled(self, values: tf.Tensor, epoch: tf.Tensor, purpose: int) -> tf.Tensor:
        return tf.random.experimental.stateless_shuffle(values, self._seed(epoch, purpose), alg=_RNG)

    def _seed(self, epoch: tf.Tensor, purpose: int) -> tf.Tensor:
        return tf.stack([tf.constant(self.seed + (purpose << 32), tf.int64), epoch])


def make_order(index: RecordIndex, labels: tuple[str, ...], options: InputOptions, training: bool) -> Order:
    """Chooses windows and runs from the byte budget.

    Args:
      index: the records of the split.
      labels: class names by index.
      options: seed, shuffle, shuffle_mb, lanes and balance count.
      training: evaluation keeps the order of the shards.

    Raises:
      OptionError: the balance names classes that the split does not hold.
    """
    lanes = options.lanes
    window_records = options.shuffle_mb * 1e6 / WINDOWS_HELD / max(1.0, index.record_bytes)
    window = int(max(1, min(-(-len(index) // lanes), window_records // lanes)))
    whole = window * lanes >= len(index)
    quota = _quota(index, labels, options.balance) if training else {}
    return Order(
        records=len(index),
        lanes=lanes,
        window=window,
        # Where one window holds everything, runs cost nothing: what lies together is read together anyway.
        run=1 if whole else max(1, window // _RUNS_PER_LANE),
        seed=options.seed,
        kind=options.shuffle if training else "none",
        quota=quota,
        members={label: np.flatnonzero(index.label == label) for label in quota},
    )


def _quota(index: RecordIndex, labels: tuple[str, ...], balance: str | Mapping[str, float]) -> dict[int, int]:
    """Shares the records of an epoch among the classes; what rounding leaves goes to the largest remainders."""
    if not balance:
        return {}
    present = np.unique(index.label[index.label >= 0])
    if len(present) == 0:
        raise OptionError("balance needs images of one label each, and this dataset has none")
    if isinstance(balance, str):  # uniform, see `InputOptions`
        shares = {int(label): 1 / len(present) for label in present}
    else:
        shares = _named_shares(balance, labels, set(present.tolist()))
    exact = {label: share * len(index) for label, share in shares.items()}
    quota = {label: int(value) for label, value in exact.items()}
    by_remainder = sorted(exact, key=lambda label: quota[label] - exact[label])
    for label in by_remainder[: len(index) - sum(quota.values())]:
        quota[label] += 1
    return {label: count for label, count in quota.items() if count}


def _named_shares(balance: Mapping[str, float], labels: tuple[str, ...], present: set[int]) -> dict[int, float]:
    missing = [name for name in balance if name not in labels or labels.index(name) not in present]
    if missing:
        there = ", ".join(labels[label] for label in sorted(present))
        raise OptionError(f"balance names {', '.join(missing)}, of which the split has no image; it has {there}")
    return {labels.index(name): share for name, share in balance.items()}


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
