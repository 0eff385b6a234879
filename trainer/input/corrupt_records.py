"""Corrupt records: finding them, explaining a failed training, and excluding them from training.

The offset of a record comes from the image table, not from the end of the record before it. So a damaged length does
not hide later records, and the key of an unreadable record is known. If both checksums match, the content is checked.
"""

from __future__ import annotations

import io
import itertools
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from beam_jobs import storage
from beam_jobs.common.system import cores, map_ordered
from beam_jobs.dataset import lookup, manifest, record, tfrecord
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import BadImage, CorruptDataset, FeedlineError
from beam_jobs.images.decode import decode_checked


def content_problem(payload: bytes, key: str, decode: bool) -> str:
    """Returns the fault of a record as the end of a sentence, or an empty string; never raises for bad content.

    Args:
      payload: bytes of the record.
      key: key that the record must have.
      decode: whether to decode the image too.
    """
    from google.protobuf.message import DecodeError

    try:
        values = record.decode(payload)
    except DecodeError:
        return "is not a tf.train.Example"
    if problem := record.type_problem(values):
        return f"does not have the record format: {problem}"
    if problem := _find_missing_feature(values, (record.FILENAME, record.ENCODED)):
        return problem
    if values[record.FILENAME][0] != key.encode():
        return f"has the key {values[record.FILENAME][0]!r} instead"
    return _image_problem(values) if decode else ""


def _image_problem(values: dict[str, list]) -> str:
    encoded = values[record.ENCODED][0]
    if values.get(record.FORMAT) == [b"raw"]:
        if problem := _find_missing_feature(values, (record.HEIGHT, record.WIDTH)):
            return problem
        size = values[record.HEIGHT][0] * values[record.WIDTH][0] * 3
        return "" if len(encoded) == size else f"has {len(encoded)} bytes of pixels instead of {size}"
    try:
        decode_checked(encoded)
    except BadImage as error:
        return f"cannot be decoded: {error.detail}"
    return ""


def _find_missing_feature(values: dict[str, list], names: tuple[str, ...]) -> str:
    return next((f"has no {name}" for name in names if not values.get(name)), "")


_log = logging.getLogger(__name__)
_READ_BYTES = 4 << 20  # read from a shard at a time
_MAX_LISTED = 3  # records that a message lists


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One record that cannot be used.

    Attributes:
      number: number of the record in its split, from 0, in the order of the shards.
      shard: path of its shard.
      offset: first byte of the record in the shard.
      key: key of its image, from the image table.
      reason: fault of the record, as the end of a sentence that begins with the record.
    """

    number: int
    shard: str
    offset: int
    key: str
    reason: str

    def __str__(self) -> str:
        return f"{self.shard} offset {self.offset}: the record of {self.key!r} {self.reason}"


@dataclass(frozen=True, kw_only=True)
class _Location:
    """Location of one record: bytes `start` to `end` of its shard."""

    number: int
    shard: str
    start: int
    end: int
    key: str

    def make_damage(self, reason: str) -> Damage:
        return Damage(number=self.number, shard=self.shard, offset=self.start, key=self.key, reason=reason)


def find_damage(path: str, split: str, decode: bool = False) -> list[Damage]:
    """Checks every record of a split: both checksums, the length, the `Example` and its key.

    Reads the complete split, some MB at a time, as fast as the disk allows. A fault does not stop the check.

    Args:
      path: directory of a published dataset.
      split: name of the split.
      decode: whether to decode the images too, on all cores, which takes about as long as an epoch.

    Returns:
      the damaged records, in the order of the shards, with every record of a missing shard.

    Raises:
      UsageError: there is no such dataset or split.
      CorruptDataset: `dataset.json` or the image table is damaged.
    """
    return list(_iterate_damages(path, split, decode))


def explain(path: str, split: str, error: Exception) -> CorruptDataset | None:
    """Finds the record that made a training fail; reads the split, and decodes it if every checksum is right.

    Args:
      path: directory of the dataset.
      split: name of the split that the training read.
      error: error of TensorFlow, such as `tf.errors.DataLossError`, which names neither shard nor key.

    Returns:
      an error whose message, one line, contains shard, offset, key and remedy; None if the dataset is intact.
    """
    try:
        damages = find_damage(path, split) or list(itertools.islice(_iterate_damages(path, split, decode=True), 1))
        size_fault = "" if damages else _find_wrong_size(path, split)
    except FeedlineError as failure:
        return CorruptDataset(str(failure))
    stop_text = f"training stopped: {clean_error_text(error)}"
    if damages:
        more = f", and {len(damages) - 1} more" if len(damages) > 1 else ""
        is_undecodable = damages[0].reason.startswith("cannot be decoded")  # `find_excluded` does not find it
        advice = "" if is_undecodable else f", or leave them out with max_corrupt_records={len(damages)}"
        return CorruptDataset(f"{damages[0]}{more}; {stop_text}; see `feedline verify {path}`, ingest again{advice}")
    return CorruptDataset(f"{size_fault}; {stop_text}; ingest again") if size_fault else None


def find_excluded(path: str, split: str, budget: int) -> frozenset[int]:
    """Returns the numbers of the records that training leaves out, and logs a warning for each record.

    The check runs before the first batch, so the order remains a function of (seed, epoch), and resuming remains exact.
    These are the records that `find_damage` finds without decoding.

    Args:
      path: directory of a published dataset.
      split: name of the split.
      budget: maximum number of damaged records: `InputOptions.max_corrupt_records`.

    Returns:
      numbers of the records in their split, from 0, in the order of the shards.

    Raises:
      CorruptDataset: more records are damaged.
    """
    damages = find_damage(path, split)
    if len(damages) > budget:
        examples = "; ".join(map(str, damages[:_MAX_LISTED])) + ("; ..." if len(damages) > _MAX_LISTED else "")
        raise CorruptDataset(
            f"{len(damages)} records of {split} are damaged, max_corrupt_records allows {budget}: {examples}; "
            f"see `feedline verify {path}` and ingest again, or raise max_corrupt_records"
        )
    for damage in damages:
        _log.warning("left out: %s", damage)
    return frozenset(damage.number for damage in damages)


def _iterate_damages(path: str, split: str, decode: bool) -> Iterator[Damage]:
    dataset = manifest.load(path)
    threads = cores() if decode else 1
    located_records = itertools.chain.from_iterable(map(_read_shard, _locate_records(path, split, dataset)))
    for location, reason in map_ordered(lambda item: (item[0], _find_fault(*item, decode)), located_records, threads):
        if reason:
            yield location.make_damage(reason)


def _locate_records(path: str, split: str, dataset: Manifest) -> Iterator[list[_Location]]:
    shard_paths, first_number = dataset.shard_paths(path, split), 0
    with lookup.open_images(path, dataset, (*lookup.SHARD_COLUMNS, "key")) as images:
        # A wrong offset would make intact records look damaged, and Parquet has no checksum of a table.
        for table, sha256 in zip(dataset.image_paths(path), dataset.image_digests.values(), strict=True):
            if storage.digest(table)[1] != sha256:
                raise CorruptDataset(
                    f"{table} has changed since it was published, so no record can be found; ingest again"
                )
        for _, index, rows in lookup.read_shard_rows(images, path, dataset, (split,), ["offset", "key"]):
            bounds = [*rows["offset"].to_pylist(), dataset.split(split).shards[index].bytes]
            ranges = zip(itertools.pairwise(bounds), rows["key"].to_pylist(), strict=True)
            yield [
                _Location(number=number, shard=shard_paths[index], start=start, end=end, key=key)
                for number, ((start, end), key) in enumerate(ranges, first_number)
            ]
            first_number += len(rows)


def _read_shard(locations: list[_Location]) -> Iterator[tuple[_Location, bytes | str]]:
    """Yields each location with its bytes, or with the reason that they cannot be read."""
    if not locations:
        return
    try:
        stream = io.BufferedReader(storage.open_read(locations[0].shard), _READ_BYTES)  # type: ignore[type-var]
    except FileNotFoundError:
        yield from ((location, "is missing: the shard does not exist") for location in locations)
        return
    except OSError as error:
        yield from ((location, _format_read_error(error)) for location in locations)
        return
    with stream:
        yield from ((location, _read_record(stream, location)) for location in locations)


def _read_record(stream: io.BufferedReader[Any], location: _Location) -> bytes | str:
    try:
        stream.seek(location.start)
        return stream.read(location.end - location.start)
    except OSError as error:  # a bad sector; the records after it may be intact
        return _format_read_error(error)


def _format_read_error(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _find_fault(location: _Location, data: bytes | str, decode: bool) -> str:
    if isinstance(data, str):
        return data  # the reason that the record cannot be read
    if len(data) < location.end - location.start:
        return "is cut off: the file ends inside it"
    payload = data[tfrecord.HEADER_BYTES : -tfrecord.TAIL.size]
    expected_head, _, expected_tail = tfrecord.frame(payload)
    if expected_head != data[: tfrecord.HEADER_BYTES]:
        return "has a damaged length"
    if expected_tail != data[-tfrecord.TAIL.size :]:
        return "has changed: its checksum is not the one that was written"
    return content_problem(payload, location.key, decode)


def _find_wrong_size(path: str, split: str) -> str:
    """Returns the fault of a shard whose records are all intact but whose size is wrong, or an empty string."""
    dataset = manifest.load(path)
    for shard, name in zip(dataset.split(split).shards, dataset.shard_paths(path, split), strict=True):
        if storage.size(name) != shard.bytes:
            return f"{name} has {storage.size(name)} bytes instead of the {shard.bytes} in {manifest.MANIFEST_NAME}"
    return ""


def clean_error_text(error: Exception) -> str:
    """Returns the message of an error of TensorFlow in one line, without the names of functions and nodes."""
    text = re.sub(r"\{\{.*?\}\}\s*", "", str(getattr(error, "message", error))).strip()
    return text.split(" [Op:")[0].split("\n")[0][:200]
