"""Where every record of a split lies, and the order in which a training takes them.

The order is a pure function of (seed, epoch), computed before anything is read. Runs of neighbouring records come in
random order. They are cut into `lanes`, and position p of the epoch lies in lane p mod lanes, so a host that owns some
of the lanes reads whole runs of its own, and yet every batch is the same on any number of hosts. Inside a lane, the
records of a window of a few runs are mixed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc
import tensorflow as tf

from beam_jobs import storage
from beam_jobs.dataset import schemas
from beam_jobs.dataset.manifest import IMAGES_NAME, MANIFEST_NAME, Manifest
from beam_jobs.errors import CorruptDataset, DatasetChanged, OptionError
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
