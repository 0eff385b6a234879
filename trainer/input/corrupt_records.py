"""Records that training cannot use: which they are, the error of a failed training, and which may be left out.

A record is looked for where `images.parquet` says it lies, not where the record before it ends. So one damaged length
hides no other record, and even what cannot be read at all has a key. Where the checksums are right, the content is
looked at.
"""

from __future__ import annotations

import io
import itertools
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs import storage
from beam_jobs.common.system import cores, map_ordered
from beam_jobs.dataset import manifest, record, schemas, tfrecord
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import BadImage, CorruptDataset, FeedlineError
from beam_jobs.images.decode import decode_checked

_NEEDED = (record.FILENAME, record.ENCODED)
_NEEDED_OF_RAW = (record.HEIGHT, record.WIDTH)


def content_problem(payload: bytes, key: str, decode: bool) -> str:
    """Returns what is wrong, to be read after "the record"; empty for nothing. Nothing in the payload makes it raise.

    Args:
      payload: of the record.
      key: of the image that must be in it.
      decode: whether the image is decoded too.
    """
    from google.protobuf.message import DecodeError

    try:
        values = record.decode(payload)
    except DecodeError:
        return "is not a tf.train.Example"
    if wrong := record.type_problem(values):
        return f"is not of this format: {wrong}"
    if missing := _missing(values, _NEEDED):
        return missing
    if values[record.FILENAME][0] != key.encode():
        return f"is that of {values[record.FILENAME][0]!r}"
    return _image_problem(values) if decode else ""


def _image_problem(values: dict[str, list]) -> str:
    encoded = values[record.ENCODED][0]
    if values.get(record.FORMAT) == [b"raw"]:
        if missing := _missing(values, _NEEDED_OF_RAW):
            return missing
        wanted = values[record.HEIGHT][0] * values[record.WIDTH][0] * 3
        return "" if len(encoded) == wanted else f"has {len(encoded)} bytes of pixels instead of {wanted}"
    try:
        decode_checked(encoded)
    except BadImage as bad:
        return f"cannot be decoded: {bad.detail}"
    return ""


def _missing(values: dict[str, list], names: tuple[str, ...]) -> str:
    return next((f"has no {name}" for name in names if not values.get(name)), "")


_log = logging.getLogger(__name__)
_READ_BYTES = 4 << 20  # of a shard at a time
_NAMED = 3  # records that a message names one by one
_CUT_OFF = "is cut off: the file ends inside it"


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One record that cannot be used.

    Attributes:
      number: of the record in its split, from 0, in the order of the shards.
      shard: path of its shard.
      offset: where it begins in the shard, in bytes.
      key: identity of its image, from `images.parquet`.
      reason: what is wrong with it, to be read after "the record".
    """

    number: int
    shard: str
    offset: int
    key: str
    reason: str

    def __str__(self) -> str:
        return f"{self.shard} offset {self.offset}: the record of {self.key!r} {self.reason}"


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where one record lies: bytes `start` to `end` of its shard."""

    number: int
    shard: str
    start: int
    end: int
    key: str

    def damage(self, reason: str) -> Damage:
        return Damage(number=self.number, shard=self.shard, offset=self.start, key=self.key, reason=reason)


def find_damage(path: str, split: str, decode: bool = False) -> list[Damage]:
    """Checks every record of a split: both checksums, the length, the `Example` and its key.

    Reads all of the split, some MB at a time, as fast as the disk gives it. Nothing that is found stops it.

    Args:
      path: directory of a published dataset.
      split: name of the split.
      decode: whether the images are decoded too, on all cores, which takes about as long as an epoch.

    Returns:
      what is damaged, in the order of the shards; each record of a shard that is missing.

    Raises:
      UsageError: there is no such dataset or split.
      CorruptDataset: `dataset.json` or `images.parquet` cannot be trusted.
    """
    return list(_damages(path, split, decode))


def explain(path: str, split: str, error: Exception) -> CorruptDataset | None:
    """Finds out which record made a training fail; reads the split, and decodes it when every checksum is right.

    Args:
      path: directory of the dataset.
      split: name of the split that was read.
      error: what TensorFlow raised, such as `tf.errors.DataLossError`; it knows neither shard nor key.

    Returns:
      one line with shard, offset, key and what to do; None when the dataset is sound, so that the error is not of it.
    """
    try:
        damages = find_damage(path, split) or list(itertools.islice(_damages(path, split, decode=True), 1))
        size = "" if damages else _wrong_size(path, split)
    except FeedlineError as broken:
        return CorruptDataset(str(broken))
    if damages:
        more = f", and {len(damages) - 1} more" if len(damages) > 1 else ""
        leave_out = f", or leave them out with max_corrupt_records={len(damages)}" if _can_leave_out(damages[0]) else ""
        stopped = f"training stopped: {error_text(error)}"
        return CorruptDataset(f"{damages[0]}{more}; {stopped}; see `feedline verify {path}`, ingest again{leave_out}")
    return CorruptDataset(f"{size}; training stopped: {error_text(error)}; ingest again") if size else None


def excluded(path: str, split: str, budget: int) -> frozenset[int]:
    """Returns the records that training leaves out, and warns of each.

    They are known before the first batch, so the order stays a function of (seed, epoch), and resuming stays exact.
    What is checked is all that `find_damage` does without decoding.

    Args:
      path: directory of a published dataset.
      split: name of the split.
      budget: the most records that may be left out; `InputOptions.max_corrupt_records`.

    Returns:
      numbers of records in their split, from 0, in the order of the shards.

    Raises:
      CorruptDataset: more are damaged.
    """
    found = find_damage(path, split)
    if len(found) > budget:
        named = "; ".join(map(str, found[:_NAMED])) + ("; ..." if len(found) > _NAMED else "")
        raise CorruptDataset(
            f"{len(found)} records of {split} are damaged, max_corrupt_records allows {budget}: {named}; "
            f"see `feedline verify {path}` and ingest again, or raise max_corrupt_records"
        )
    for damage in found:
        _log.warning("left out: %s", damage)
    return frozenset(damage.number for damage in found)


def _damages(path: str, split: str, decode: bool) -> Iterator[Damage]:
    dataset = manifest.load(path)
    threads = cores() if decode else 1
    read = itertools.chain.from_iterable(map(_read_shard, _places(path, split, dataset)))
    for place, reason in map_ordered(lambda item: (item[0], _problem(*item, decode)), read, threads):
        if reason:
            yield place.damage(reason)


def _places(path: str, split: str, dataset: Manifest) -> Iterator[list[_Place]]:
    """Yields the places of the records of each shard."""
    shards = dataset.split(split).shards
    table = _trusted_table(path, dataset)
    shard, offset = table["shard"].to_numpy(), table["offset"].to_numpy()
    rows = np.flatnonzero((table["split"].to_numpy() == split) & (shard >= 0))  # -1: a duplicate that was dropped
    rows = rows[np.lexsort((offset[rows], shard[rows]))]
    edges = np.searchsorted(shard[rows], np.arange(len(shards) + 1))
    for index, (info, name) in enumerate(zip(shards, dataset.shard_paths(path, split), strict=True)):
        mine = rows[edges[index] : edges[index + 1]]
        if len(mine) != info.records:
            raise CorruptDataset(
                f"{manifest.IMAGES_NAME} of {path} has {len(mine)} rows for {name}, {manifest.MANIFEST_NAME} says "
                f"{info.records}; ingest again"
            )
        bounds = [*offset[mine].tolist(), info.bytes]
        keys = table["key"].take(mine).to_pylist()
        first = int(edges[index])
        yield [
            _Place(number=first + nth, shard=name, start=bounds[nth], end=bounds[nth + 1], key=key)
            for nth, key in enumerate(keys)
        ]


def _trusted_table(path: str, dataset: Manifest) -> schemas.pa.Table:
    name = storage.join(path, manifest.IMAGES_NAME)
    table = schemas.read_published(name, ["key", "split", "shard", "offset"])
    # A wrong offset here would condemn sound records, and Parquet checks nothing.
    if storage.digest(name)[1] != dataset.tables[manifest.IMAGES_NAME]:
        raise CorruptDataset(f"{name} has changed since it was published, so no record can be found; ingest again")
    return table


def _read_shard(places: list[_Place]) -> Iterator[tuple[_Place, bytes | str]]:
    """Yields each place with the bytes there, or with the reason that there are none."""
    if not places:
        return
    try:
        stream = io.BufferedReader(storage.open_read(places[0].shard), _READ_BYTES)  # type: ignore[type-var]
    except FileNotFoundError:
        yield from ((place, "is gone: the shard is missing") for place in places)
        return
    except OSError as error:
        yield from ((place, _unreadable(error)) for place in places)
        return
    with stream:
        yield from ((place, _read(stream, place)) for place in places)


def _read(stream: io.BufferedReader[Any], place: _Place) -> bytes | str:
    try:
        stream.seek(place.start)
        return stream.read(place.end - place.start)
    except OSError as error:  # a bad sector; the records after it may be whole
        return _unreadable(error)


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _problem(place: _Place, data: bytes | str, decode: bool) -> str:
    """Returns what is wrong with a record; empty for nothing."""
    if isinstance(data, str):
        return data
    if len(data) < place.end - place.start:
        return _CUT_OFF
    payload = data[tfrecord.HEADER : -tfrecord.TAIL.size]
    head, _, tail = tfrecord.frame(payload)
    if head != data[: tfrecord.HEADER]:
        return "has a damaged length"
    if tail != data[-tfrecord.TAIL.size :]:
        return "has changed: its checksum is not the one that was written"
    return content_problem(payload, place.key, decode)


def _can_leave_out(damage: Damage) -> bool:
    return not damage.reason.startswith("cannot be decoded")  # `excluded` does not decode


def _wrong_size(path: str, split: str) -> str:
    """Returns what is wrong with the length of a file whose records are all there: bytes that belong to none."""
    dataset = manifest.load(path)
    for shard, name in zip(dataset.split(split).shards, dataset.shard_paths(path, split), strict=True):
        if storage.size(name) != shard.bytes:
            return f"{name} has {storage.size(name)} bytes, {manifest.MANIFEST_NAME} says {shard.bytes}"
    return ""


def error_text(error: Exception) -> str:
    """Returns the part of what TensorFlow says that a person can use, in one line."""
    # TensorFlow wraps its message in the names of functions and nodes, which say nothing about the data.
    text = re.sub(r"\{\{.*?\}\}\s*", "", str(getattr(error, "message", error))).strip()
    return text.split(" [Op:")[0].split("\n")[0][:200]
