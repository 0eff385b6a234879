"""The order in which a training reads the records of a split.

It is a pure function of (seed, epoch), computed before any record is read. Runs of neighbouring records are
shuffled and divided into `lanes`, the partitions of an epoch that hosts share. Position p of the epoch belongs to lane
p mod lanes, so a host that reads some of the lanes reads complete runs, and every batch is the same for any number of
hosts. Inside a lane, the records of a window of a few runs are shuffled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from beam_jobs.errors import OptionError
from beam_jobs.options import apportion
from beam_jobs.storage import is_remote
from trainer.input.index import RecordIndex
from trainer.options import InputOptions

WINDOWS_IN_MEMORY = 2  # one is delivered while the next is read
_RUNS_PER_LANE = 8  # in the part of a window that belongs to one lane
_MIN_REQUEST_BYTES = 2_500_000  # to a store: the latency of a request is the transfer time of some MB
_COPY_STRIDE = 1_000_003  # the copies of a record must not repeat the random numbers of another epoch
_RNG = "philox"  # gives the same numbers on every device


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of the records of a split in an epoch.

    Attributes:
      records: records in an epoch.
      lanes: number of lanes.
      window: number of records of one lane that are shuffled together.
      run: number of consecutive records that are read together.
      seed: seed of the order.
      kind: `window`, `global` or `none`.
      quota: class index -> number of records in an epoch; empty without balancing.
      members: class index -> int64 record numbers; empty without balancing.
      whole_runs: whether `window` is a multiple of `run`, so that only the end of an epoch divides runs.
    """

    records: int
    lanes: int
    window: int
    run: int
    seed: int
    kind: str
    quota: Mapping[int, int] = field(default_factory=dict)
    members: Mapping[int, np.ndarray] = field(default_factory=dict)
    whole_runs: bool = False

    @property
    def window_positions(self) -> int:
        """Number of positions of an epoch that are read together, over all hosts."""
        return self.window * self.lanes

    @property
    def windows(self) -> int:
        """Number of windows in an epoch."""
        return -(-self.records // self.window_positions)

    def compute_epoch(self, epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes the order of one epoch.

        Args:
          epoch: number of the epoch, int64 scalar.

        Returns:
          record numbers int64[records] by position, and seed epochs int64[records]: the epoch number in each image
          seed. Copies of a record in one epoch have different seed epochs, so that their random numbers differ.
        """
        seed_epochs = tf.fill([self.records], epoch)
        if self.quota:
            numbers, copies = self._repeat_members(epoch)
            permutation = self._shuffle(tf.range(self.records, dtype=tf.int64), epoch, 1)
            return tf.gather(numbers, permutation), seed_epochs + tf.gather(copies, permutation) * _COPY_STRIDE
        if self.kind == "none":
            return tf.range(self.records, dtype=tf.int64), seed_epochs
        if self.kind == "global":
            return self._shuffle(tf.range(self.records, dtype=tf.int64), epoch, 1), seed_epochs
        return tf.gather(self._shuffle_runs(epoch), self._shuffle_windows(epoch)), seed_epochs

    def _shuffle_runs(self, epoch: tf.Tensor) -> tf.Tensor:
        """Returns the record numbers with the runs in random order."""
        complete_records = self.records // self.run * self.run if self.whole_runs else self.records
        starts = self._shuffle(tf.range(0, complete_records, self.run, dtype=tf.int64), epoch, 1)
        if complete_records < self.records:  # the last run is shorter, so that all runs begin at multiples of `run`
            starts = tf.concat([starts, [complete_records]], 0)
        ends = tf.minimum(starts + self.run, self.records)
        return tf.ragged.range(starts, ends).flat_values

    def _shuffle_windows(self, epoch: tf.Tensor) -> tf.Tensor:
        """Returns the index into the result of `_shuffle_runs` for each position; windows of each lane are shuffled."""
        lane_records, longer_lanes = divmod(self.records, self.lanes)  # longer lanes have one record more
        lane = tf.range(self.lanes, dtype=tf.int64)[:, None]
        lengths = lane_records + tf.cast(lane < longer_lanes, tf.int64)
        starts = lane * lane_records + tf.minimum(lane, longer_lanes)
        windows = -(-max(1, lane_records + (longer_lanes > 0)) // self.window)
        column = tf.range(windows * self.window, dtype=tf.int64)[None, :]
        keys = tf.random.stateless_uniform([self.lanes, windows * self.window], self._make_seed(epoch, 2), alg=_RNG)
        keys = tf.where(column < lengths, keys, 2.0)  # columns beyond the end of a lane sort last, in the last window
        ranks = tf.argsort(tf.reshape(keys, [self.lanes, windows, self.window]), stable=True)
        ranks = tf.cast(ranks, tf.int64) + tf.range(windows, dtype=tf.int64)[None, :, None] * self.window
        ranks = tf.reshape(ranks, [self.lanes, -1])
        # The last records of each lane, fewer than a run, come from behind the complete runs of all lanes.
        complete = lane_records // self.run * self.run if self.whole_runs else 0
        slots = tf.where(ranks < complete, lane * complete, (self.lanes - 1 - lane) * complete + starts) + ranks
        # The first lanes are the longer ones, so the valid slots come first.
        return tf.reshape(tf.transpose(slots), [-1])[: self.records]

    def _repeat_members(self, epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the record numbers of each class up to its quota, and the repetition of each, from 0."""
        numbers, copies = [], []
        for label, quota in self.quota.items():
            members = self._shuffle(tf.constant(self.members[label]), epoch, 3 + label)
            index = tf.range(quota, dtype=tf.int64)
            numbers.append(tf.gather(members, index % len(self.members[label])))
            copies.append(index // len(self.members[label]))
        return tf.concat(numbers, 0), tf.concat(copies, 0)

    def _shuffle(self, values: tf.Tensor, epoch: tf.Tensor, purpose: int) -> tf.Tensor:
        return tf.random.experimental.stateless_shuffle(values, self._make_seed(epoch, purpose), alg=_RNG)

    def _make_seed(self, epoch: tf.Tensor, purpose: int) -> tf.Tensor:
        """Returns the seed of a shuffle of an epoch; `purpose` is its number, so that all shuffles are independent."""
        return tf.stack([tf.constant(self.seed + (purpose << 32), tf.int64), epoch])


def make_order(index: RecordIndex, labels: tuple[str, ...], options: InputOptions, training: bool) -> Order:
    """Returns the order of a split, with sizes of windows and runs that fit `shuffle_mb`.

    Args:
      index: the records of the split.
      labels: class names by index.
      options: options of the pipeline: `seed`, `shuffle`, `shuffle_mb`, `lanes` and `balance` are used.
      training: False for the order of the shards.

    Raises:
      OptionError: `balance` contains a class of which the split has no image.
    """
    lanes = options.lanes
    window_records = options.shuffle_mb * 1e6 / WINDOWS_IN_MEMORY / max(1.0, index.record_bytes)
    window = int(max(1, min(-(-len(index) // lanes), window_records // lanes)))
    fits_one_window = window * lanes >= len(index)
    # If one window contains all records, longer runs save no reads: neighbours are read together anyway.
    run = 1 if fits_one_window else max(1, window // _RUNS_PER_LANE)
    whole_runs = not fits_one_window and is_remote(index.files[0])
    if whole_runs:  # as many runs per window as can have at least `_MIN_REQUEST_BYTES` each
        run = window // max(1, window // math.ceil(_MIN_REQUEST_BYTES / max(1.0, index.record_bytes)))
        window = window // run * run
    quota = _compute_quota(index, labels, options.balance) if training else {}
    return Order(
        records=len(index),
        lanes=lanes,
        window=window,
        run=run,
        whole_runs=whole_runs,
        seed=options.seed,
        kind=options.shuffle if training else "none",
        quota=quota,
        members={label: np.flatnonzero(index.label == label) for label in quota},
    )


def _compute_quota(index: RecordIndex, labels: tuple[str, ...], balance: str | Mapping[str, float]) -> dict[int, int]:
    """Returns class index -> number of records in an epoch, by the method of largest remainders."""
    if not balance:
        return {}
    present_labels = np.unique(index.label[index.label >= 0])
    if len(present_labels) == 0:
        raise OptionError("balance needs images of one label each, and this dataset has none")
    if isinstance(balance, str):  # uniform, see `InputOptions`
        shares = {int(label): 1 / len(present_labels) for label in present_labels}
    else:
        shares = _parse_shares(balance, labels, set(present_labels.tolist()))
    counts = apportion(len(index), list(shares.values()))
    return {label: count for label, count in zip(shares, counts, strict=True) if count}


def _parse_shares(balance: Mapping[str, float], labels: tuple[str, ...], present_labels: set[int]) -> dict[int, float]:
    missing = [name for name in balance if name not in labels or labels.index(name) not in present_labels]
    if missing:
        class_names = ", ".join(labels[label] for label in sorted(present_labels))
        raise OptionError(f"balance contains {', '.join(missing)}, but the split has only images of {class_names}")
    total = sum(balance.values())
    # `apportion` needs a sum of 1. If only rounding separates it from 1, the shares and thus the order of epochs stay.
    scale = 1.0 if math.isclose(total, 1) else total
    return {labels.index(name): share / scale for name, share in balance.items()}
