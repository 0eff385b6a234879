"""Queries of `images.parquet`: an image by its key, the lengths of records, and leaks between splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.common.strings import plural, some
from beam_jobs.dataset import manifest, record, schemas, tfrecord
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset, OptionError


def find_record(directory: str, key: str) -> tuple[dict[str, Any], dict[str, list]]:
    """Reads one image of a dataset, with one read of `images.parquet` and one seek in a shard.

    Examples:
      >>> from beam_jobs import find_record
      >>> row, record = find_record("dataset", "cat/000.jpg")
      >>> row["label"], row["height"], row["width"], record["image/class/text"]
      ('cat', 40, 90, [b'cat'])

    Args:
      directory: directory of a published dataset.
      key: identity of the image.

    Returns:
      row of the image in `images.parquet`, and its record as feature name -> values.

    Raises:
      SourceError: the directory is not a dataset.
      OptionError: no image of the dataset has this key, or it was dropped as a duplicate.
      CorruptDataset: the table or the record is damaged.
    """
    dataset = manifest.load(directory)
    images = schemas.read_published(storage.join(directory, manifest.IMAGES_NAME))
    rows = images.filter(pc.equal(images["key"], pa.scalar(key))).to_pylist()
    if not rows:
        raise OptionError(f"{directory} has no image with the key {key!r}; keys are listed in {manifest.IMAGES_NAME}")
    row = rows[0]
    if row["shard"] < 0:
        kind, cluster = ("a near duplicate", row["near"]) if row["near"] else ("a copy", row["cluster"])
        raise OptionError(f"the image {key!r} was dropped as {kind}; its duplicate set is {cluster}")
    return row, read_row_record(directory, dataset, row)


def read_row_record(directory: str, dataset: Manifest, row: Mapping[str, Any]) -> dict[str, list]:
    """Reads the record of a written image as feature name -> values.

    Args:
      directory: directory of the dataset.
      dataset: its manifest.
      row: row of `images.parquet`, at least `split`, `shard` and `offset`.

    Raises:
      CorruptDataset: the record is missing or damaged.
    """
    from google.protobuf.message import DecodeError

    split, shard, offset = row["split"], row["shard"], row["offset"]
    shards = dataset.split(split).shards
    if shard not in range(len(shards)) or offset not in range(shards[shard].bytes):
        table = storage.join(directory, manifest.IMAGES_NAME)
        raise CorruptDataset(f"{table} names a record at offset {offset} of shard {shard} of {split}; there is none")
    path = dataset.shard_paths(directory, split)[shard]
    try:
        with storage.open_read(path) as stream:
            return record.decode(tfrecord.read_record_at(stream, path, offset))
    except OSError as error:
        raise CorruptDataset(f"{path} cannot be read: {error.strerror or error}; run `feedline verify`") from error
    except (DecodeError, TypeError, ValueError) as error:
        raise CorruptDataset(f"{path} has no record of a dataset at offset {offset}: {error}") from error


def record_lengths(directory: str, dataset: Manifest) -> Any:
    """Returns the payload sizes of all records of a dataset in bytes, int64[records].

    The offsets in `images.parquet` give the sizes; no shard is opened.

    Args:
      directory: directory of the dataset.
      dataset: its manifest.

    Raises:
      CorruptDataset: the table is damaged, or belongs to another manifest.
    """
    path = storage.join(directory, manifest.IMAGES_NAME)
    images = schemas.read_published(path, ["split", "shard", "offset"])
    lengths = [np.empty(0, np.int64)]
    for split, info in dataset.splits.items():
        rows = images.filter(pc.equal(images["split"], split))
        shard, offset = (rows[name].to_numpy().astype(np.int64) for name in ("shard", "offset"))
        order = np.lexsort((offset, shard))
        shard, offset = shard[order][shard[order] >= 0], offset[order][shard[order] >= 0]
        # Checked first: the memory of `bincount` grows with the largest number, which may be forged.
        has_valid_shards = not len(shard) or shard.max() < len(info.shards)
        if not has_valid_shards or not np.array_equal(np.bincount(shard), [one.records for one in info.shards]):
            raise CorruptDataset(f"{path} is not the table of {manifest.MANIFEST_NAME}; write the dataset again")
        ends = np.append(offset[1:], 0)
        last = np.flatnonzero(np.append(shard[1:] != shard[:-1], True))
        ends[last] = [one.bytes for one in info.shards]
        lengths.append(ends - offset - tfrecord.OVERHEAD)
    return np.concatenate(lengths)


# Column of `images.parquet` -> kind of its sets in messages.
LEAK_KINDS = {"cluster": "copies", "group": "group", "near": "near duplicates"}


@dataclass(frozen=True, kw_only=True)
class Leak:
    """One set of images that belong together and are in several splits.

    Attributes:
      kind: a value of `LEAK_KINDS`.
      name: name of the set.
      keys: split -> key of the first image of the set in it.
    """

    kind: str
    name: str
    keys: dict[str, str]

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.kind == "group" else ""
        return f"{self.kind}{name}: " + " and ".join(f"{key} in {split}" for split, key in self.keys.items())


def find_leaks(images: pa.Table, kinds: Sequence[str], new: np.ndarray | None = None) -> list[Leak]:
    """Returns the sets with images in several splits, ordered by kind and name.

    Args:
      images: rows of `images.parquet`, at least `key`, `split` (empty for no split) and the columns of `kinds`.
      kinds: keys of `LEAK_KINDS`.
      new: bool[images], marks images; sets without a marked image are omitted. None for all sets.
    """
    splits = pc.fill_null(images["split"], "").combine_chunks().dictionary_encode()
    placed = pc.not_equal(splits.dictionary, "").to_numpy(zero_copy_only=False)[splits.indices.to_numpy()]
    leaks = []
    for column in kinds:
        rows = np.flatnonzero(placed & pc.fill_null(pc.not_equal(images[column], ""), False).to_numpy())
        names = images[column].take(_row_indices(rows)).combine_chunks().dictionary_encode()
        sets = names.indices.to_numpy().astype(np.int64)
        pairs, firsts = np.unique(sets * len(splits.dictionary) + splits.indices.to_numpy()[rows], return_index=True)
        several = np.bincount(pairs // max(1, len(splits.dictionary)), minlength=len(names.dictionary)) > 1
        if new is not None:
            several[np.setdiff1d(sets, sets[new[rows]])] = False
        firsts = firsts[several[sets[firsts]]]
        first_rows = images.select([column, "split", "key"]).take(_row_indices(rows[firsts])).to_pylist()
        keys_by_set: dict[str, dict[str, str]] = {}
        for row in first_rows:
            keys_by_set.setdefault(row[column], {})[row["split"]] = row["key"]
        leaks += [
            Leak(kind=LEAK_KINDS[column], name=name, keys=dict(sorted(keys_by_set[name].items())))
            for name in sorted(keys_by_set)
        ]
    return leaks


def _row_indices(rows: np.ndarray) -> pa.Array:
    """Returns row numbers as an Arrow array; `pa.array` would import pandas, during which signals are lost."""
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])


def select_leak_kinds(near_duplicates: str) -> tuple[str, ...]:
    """Returns the kinds of sets that must stay in one split under a policy for near duplicates."""
    return tuple(LEAK_KINDS) if near_duplicates == "group" else ("cluster", "group")


def leak_sentence(leaks: Sequence[Leak], most: int = 8) -> str:
    """Returns a sentence that counts the sets and names the first `most` of them."""
    sets = plural(len(leaks), "set of images that belong together lies", "sets of images that belong together lie")
    return f"{sets} in several splits: {some(leaks, most)}"
