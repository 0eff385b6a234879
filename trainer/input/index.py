"""The index of the records of a split: shard, offset and label of each record, read from the image table."""

from __future__ import annotations

import dataclasses
import json
import posixpath
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.common.system import map_ordered
from beam_jobs.dataset import schemas, shards
from beam_jobs.dataset.manifest import MANIFEST_NAME, Manifest
from beam_jobs.errors import CorruptDataset, DatasetChanged
from trainer.input.position import Host


@dataclass(frozen=True, kw_only=True)
class RecordIndex:
    """The records of one split, numbered from 0 in the order of the shards.

    Attributes:
      files: paths of the shards.
      shard: int32[records], index of the file of a record in `files`.
      offset: int64[records], first byte of a record in its file.
      label: int64[records], class index; -1 for an image without exactly one label.
      record_bytes: average size of a record in bytes.
      size: height and width of all images in pixels; None if the images differ in size.
      split_numbers: int64[records], numbers among all records of the split, including excluded ones, so that neighbours
        in a file have consecutive numbers; None for a complete split.
      manifest: path and content of the `dataset.json` of the shards; None for a cache.
      limits: int64[files], the byte after the last of these records in each file; empty for a cache.
    """

    files: tuple[str, ...]
    shard: np.ndarray
    offset: np.ndarray
    label: np.ndarray
    record_bytes: float
    size: tuple[int, int] | None = None
    split_numbers: np.ndarray | None = None
    manifest: tuple[str, bytes] | None = None
    limits: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.shard)

    def exclude(self, numbers: Collection[int]) -> RecordIndex:
        """Returns the index without some records; the others are renumbered."""
        return self._select(np.setdiff1d(np.arange(len(self)), np.fromiter(numbers, np.int64, len(numbers))))

    def host_part(self, host: Host) -> RecordIndex:
        """Returns the index of the records of one host: an equal share of consecutive records."""
        bounds = np.linspace(0, len(self), host.count + 1).round().astype(np.int64)
        return self._select(np.arange(bounds[host.index], bounds[host.index + 1]))

    def _select(self, numbers: np.ndarray) -> RecordIndex:
        arrays = {name: getattr(self, name)[numbers] for name in ("shard", "offset", "label")}
        split_numbers = numbers if self.split_numbers is None else self.split_numbers[numbers]
        limits = self.limits.copy()
        last, following = numbers[-1:], numbers[-1:] + 1  # arrays, because `numbers` may be empty
        if len(limits) and len(numbers) and following < len(self) and self.shard[following] == self.shard[last]:
            limits[self.shard[last]] = self.offset[following]
        return dataclasses.replace(self, **arrays, split_numbers=split_numbers, limits=limits)


_STORE_THREADS = 16  # reading a small object is mostly latency
_SIZE = ["height", "width"]
_SEVERAL = 2  # with so many different image sizes, there is no common size


def load_index(path: str, dataset: Manifest, split: str) -> RecordIndex:
    """Reads the index of a split, 20 bytes per record, from the image table, one file of the table at a time.

    Files in a store are read by several threads.

    Raises:
      OptionError: there is no such split.
      CorruptDataset: the table is damaged or does not match the shards.
      DatasetChanged: the dataset was replaced after its manifest was read.
    """
    info = dataset.split(split)
    manifest_path = storage.join(path, MANIFEST_NAME)
    manifest = storage.read_bytes(manifest_path)
    if json.loads(manifest)["digest"] != dataset.digest:
        raise DatasetChanged(replaced_message(path))
    records = info.records
    # Parts are copied into arrays of the final size: to concatenate all parts would take twice the memory.
    try:
        shard, offset, label = (np.empty(records, dtype) for dtype in (np.int32, np.int64, np.int64))
    except (MemoryError, OverflowError, ValueError) as error:  # an untrusted manifest may contain any number
        raise CorruptDataset(_mismatch_message(path, split)) from error
    sizes: set[tuple[int, int]] = set()
    threads = _STORE_THREADS if storage.is_remote(path) else 1
    end = 0
    for arrays in map_ordered(_PartReader(path, dataset, split, sizes), dataset.image_paths(path), threads):
        start, end = end, end + len(arrays[0])
        if end > records:
            raise CorruptDataset(_mismatch_message(path, split))
        shard[start:end], offset[start:end], label[start:end] = arrays
    shard = shard[:end]
    if not np.array_equal(np.bincount(shard, minlength=len(info.shards)), [item.records for item in info.shards]):
        raise CorruptDataset(_mismatch_message(path, split))
    if not _is_sorted(shard, offset):  # an ingest writes the rows in this order
        row_order = np.lexsort((offset, shard))
        shard, offset, label = shard[row_order], offset[row_order], label[row_order]
    return RecordIndex(
        files=tuple(dataset.shard_paths(path, split)),
        shard=shard,
        offset=offset,
        label=label,
        record_bytes=info.bytes / max(1, records),
        size=next(iter(sizes)) if len(sizes) == 1 else None,
        manifest=(manifest_path, manifest),
        limits=np.array([item.bytes for item in info.shards], np.int64),
    )


class _PartReader:
    """Reads shard, offset and label of the records of a split from files of the image table; adds sizes to `sizes`."""

    def __init__(self, path: str, dataset: Manifest, split: str, sizes: set[tuple[int, int]]) -> None:
        self._path, self._split, self._sizes = path, split, sizes
        self._shards = len(dataset.split(split).shards)
        self._shard_numbers = {shards.part_name(split, number): number for number in range(self._shards)}
        other_splits = ((name, range(len(info.shards))) for name, info in dataset.splits.items() if name != split)
        self._other_files = {shards.part_name(name, number) for name, numbers in other_splits for number in numbers}

    def __call__(self, table: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns int32 shards, int64 offsets and int64 labels."""
        name = posixpath.basename(table)
        # The workers name a file after its shard; other files have rows of any shard.
        shard_number = self._shard_numbers.get(name)
        columns = ["offset", "label_index", *(("split", "shard") if shard_number is None else ())]
        if len(self._sizes) < _SEVERAL:
            columns += _SIZE
        row_groups = [] if name in self._other_files else schemas.read_images([table], columns)
        parts: list[tuple[np.ndarray, ...]] = [(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))]
        for row_group in row_groups:
            rows = row_group
            if shard_number is None:
                rows = rows.filter(pc.and_(pc.equal(rows["split"], self._split), pc.greater_equal(rows["shard"], 0)))
                if len(rows) and pc.max(rows["shard"]).as_py() >= self._shards:
                    raise CorruptDataset(_mismatch_message(self._path, self._split))
            shard = rows["shard"].to_numpy() if shard_number is None else np.full(len(rows), shard_number)
            parts.append((shard.astype(np.int32), rows["offset"].to_numpy(), rows["label_index"].to_numpy()))
            if columns[-1] in _SIZE and len(self._sizes) < _SEVERAL:
                sizes = rows.group_by(_SIZE).aggregate([])
                self._sizes.update(zip(*(sizes[name].to_pylist() for name in _SIZE), strict=True))
        shard, offset, label = map(np.concatenate, zip(*parts, strict=True))
        return shard, offset, label


def _mismatch_message(path: str, split: str) -> str:
    return f"the image table of {path} does not list the records in the shards of {split!r}; ingest again"


def _is_sorted(shard: np.ndarray, offset: np.ndarray) -> bool:
    return not ((shard[1:] < shard[:-1]) | ((shard[1:] == shard[:-1]) & (offset[1:] < offset[:-1]))).any()


def replaced_message(path: str) -> str:
    """Returns the error message about a dataset that was replaced while it was read."""
    return f"{path} was replaced by another dataset while it was read; start again to read the new one"
