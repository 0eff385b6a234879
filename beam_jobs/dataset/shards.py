"""Names of splits and shards, and the hashes that assign records to them.

The hashes are part of the dataset format. They are blake2b of the UTF-8 text, keyed by purpose and seed: equal on all
machines, Python versions and runs, unlike `hash()`, and independent between purposes. Any change here moves images
between splits and shards, so it needs a new `FORMAT_VERSION` in `manifest.py`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

SPLIT_PREFIX = "Split-"  # as in the layout of a TFX `Examples` artifact
ORDER, SPLIT = "order", "split"  # purposes of hashes

_SLICE_ROWS = 8192


def shard_name(index: int, count: int) -> str:
    """Returns the file name of shard `index` of `count`, as in `data-00000-of-00016.tfrecord`.

    Raises:
      ValueError: the index is not below the count.
    """
    if not 0 <= index < count:
        raise ValueError(f"shard index {index} is not in 0..{count - 1}")
    return f"data-{index:05d}-of-{count:05d}.tfrecord"


def part_name(split: str, index: int) -> str:
    """Returns the file name of the rows of shard `index` in the image table, as in `part-train-00000.parquet`."""
    return f"part-{split}-{index:05d}.parquet"


def split_dir(split: str) -> str:
    """Returns the directory of a split, as in `Split-train`."""
    return SPLIT_PREFIX + split


def hashes64(purpose: str, seed: int, texts: Iterable[str]) -> np.ndarray:
    """Returns a stable hash of each text, uint64, independent between purposes and seeds.

    It is blake2b of 8 bytes, keyed by purpose and seed, big-endian.
    """
    import numpy as np  # here and below, because a command that only checks for a dataset does not need it

    key = f"{purpose}:{seed}".encode()
    if len(key) > hashlib.blake2b.MAX_KEY_SIZE:
        key = hashlib.blake2b(key).digest()
    hashed = b"".join(hashlib.blake2b(text.encode(), digest_size=8, key=key).digest() for text in texts)
    return np.frombuffer(hashed, ">u8").astype(np.uint64)


def order_hash(seed: int, key: str) -> str:
    """Returns the hash of a key, by which a split is sorted: 16 hex digits, which sort like the numbers."""
    return f"{int(hashes64(ORDER, seed, [key])[0]):016x}"


def texts(column: pa.Array) -> Iterator[str]:
    """Yields the texts of a column, a few thousand Python strings at a time."""
    for start in range(0, len(column), _SLICE_ROWS):
        yield from column.slice(start, _SLICE_ROWS).to_numpy(zero_copy_only=False)


def shard_count(total_bytes: int, records: int, shard_bytes: float) -> int:
    """Returns the number of shards of about `shard_bytes` bytes for the data: at least 1, at most `records`."""
    return max(1, min(records, math.ceil(total_bytes / shard_bytes)))


class Cutter:
    """Cuts an ordered stream of records into `count` consecutive runs of nearly equal bytes.

    Run i ends where the running total first reaches (i + 1) / count of the total, so the size of every run differs by
    less than one record from an equal share. Each run has at least one record.
    """

    def __init__(self, records: int, total_bytes: int, count: int) -> None:
        """Starts before the first record.

        Args:
          records: number of records of the stream.
          total_bytes: sum of their sizes.
          count: number of runs, at most `records`.

        Raises:
          ValueError: there are fewer records than runs.
        """
        if not 1 <= count <= records:
            raise ValueError(f"{records} records cannot fill {count} shards")
        self._records, self._total_bytes, self._count = records, total_bytes, count
        self._position = self._bytes = 0  # number and size of the records before the next batch
        self._runs, self._start = 1, 0  # number of begun runs, and first record of the last run

    def cut(self, sizes: np.ndarray) -> list[int]:
        """Returns the positions in a batch of records at which a new run begins.

        Args:
          sizes: int64[records], size of each record of the batch in bytes.
        """
        import numpy as np

        bytes_before = self._bytes + np.cumsum(sizes) - sizes
        run_starts = []
        while self._runs < self._count:
            target_bytes = -(-self._total_bytes * self._runs // self._count)
            end = self._position + int(np.searchsorted(bytes_before, target_bytes))
            latest = self._records - self._count + self._runs  # later, too few records would remain for the other runs
            start = max(self._start + 1, min(end, latest))
            if start >= self._position + len(sizes):
                break
            run_starts.append(start - self._position)
            self._runs, self._start = self._runs + 1, start
        self._position += len(sizes)
        self._bytes += int(sizes.sum())
        return run_starts
