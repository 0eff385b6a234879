"""Look inside: any TFRecord file, and one image of a dataset by its key."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import manifest, record, storage, tables, tfrecord
from beam_jobs.errors import CorruptDataset, OptionError, SourceError

_SHOWN_CHARACTERS = 48


@dataclass(kw_only=True)
class FeatureSummary:
    """What the records of a file hold under one name.

    Attributes:
      kind: `int64`, `float` or `bytes`; `none` while every value list was empty.
      records: records that have it.
      least: shortest list of values.
      most: longest list of values.
    """

    kind: str = "none"
    records: int = 0
    least: int = 0
    most: int = 0

    def add(self, values: list) -> None:
        """Counts the values of one record."""
        self.least = min(self.least, len(values)) if self.records else len(values)
        self.most = max(self.most, len(values))
        self.records += 1
        if values:
            self.kind = {int: "int64", float: "float"}.get(type(values[0]), "bytes")


@dataclass(kw_only=True)
class FileSummary:
    """What a TFRecord file holds.

    Attributes:
      path: of the file.
      compression: `none`, `gzip` or `zlib`.
      records: number of records.
      payload_bytes: bytes of the records, unpacked and without their framing.
      features: name -> summary, when the records are `tf.train.Example`; else empty.
      first: the first records, each feature name -> values.
    """

    path: str
    compression: str
    records: int = 0
    payload_bytes: int = 0
    features: dict[str, FeatureSummary] = field(default_factory=dict)
    first: list[dict[str, list]] = field(default_factory=list)


def summarise_file(path: str, shown: int = 5) -> FileSummary:
    """Reads a TFRecord file from end to end, ours or not, compressed or not.

    Args:
      path: of the file.
      shown: how many of the first records to keep.

    Raises:
      SourceError: the file cannot be opened.
      CorruptDataset: it is not a TFRecord file, or a checksum in it is wrong.
    """
    from google.protobuf.message import DecodeError

    with _open(path) as (stream, compression):
        summary = FileSummary(path=path, compression=compression)
        for _, payload in tfrecord.read_records(stream, path):
            summary.records += 1
            summary.payload_bytes += len(payload)
            try:
                values = record.decode(payload)
            except DecodeError:
                continue  # records may hold anything; only Examples can be looked into
            for name, found in values.items():
                summary.features.setdefault(name, FeatureSummary()).add(found)
            if len(summary.first) < shown:
                summary.first.append(values)
    return summary


def find_record(directory: str, key: str) -> tuple[dict[str, Any], dict[str, list]]:
    """Reads one image of a dataset: one look into `images.parquet`, one seek into a shard.

    Args:
      directory: of a published dataset.
      key: identity of the image.

    Returns:
      its row of `images.parquet`, and its record as feature name -> values.

    Raises:
      SourceError: the directory is not a dataset.
      OptionError: no image of the dataset has this key, or it was dropped as a duplicate.
      CorruptDataset: the table or the record is damaged.
    """
    dataset = manifest.load(directory)
    images = tables.read_published(storage.join(directory, manifest.IMAGES_NAME))
    rows = images.filter(pc.equal(images["key"], pa.scalar(key))).to_pylist()
    if not rows:
        raise OptionError(f"{directory} has no image with the key {key!r}; keys are listed in {manifest.IMAGES_NAME}")
    row = rows[0]
    if row["shard"] < 0:
        kind, found = ("a near duplicate", row["near"]) if row["near"] else ("a copy", row["cluster"])
        raise OptionError(f"the image {key!r} was dropped as {kind}; its duplicate set is {found}")
    path = dataset.shard_paths(directory, row["split"])[row["shard"]]
    try:
        with storage.open_read(path) as stream:
            return row, record.decode(tfrecord.read_record_at(stream, path, row["offset"]))
    except OSError as error:
        raise CorruptDataset(f"{path} cannot be read: {error.strerror or error}") from error


def shown_value(values: list) -> str:
    """Returns the values of a feature as a short piece of text; long and binary ones only say their length."""
    if len(values) == 1 and isinstance(values[0], bytes):
        text = values[0].decode("utf-8", "replace")
        if len(text) > _SHOWN_CHARACTERS or not text.isprintable():
            return f"<{len(values[0]):,} bytes>"
        return text
    shown = ", ".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in values[:4])
    return shown + (f", ... ({len(values)} values)" if len(values) > 4 else "")


def viewable_image(values: Mapping[str, list]) -> bytes | None:
    """Returns the image of a record as a file, if it has one under the customary name; raw pixels become a PNG."""
    found = values.get(record.ENCODED)
    if not found or values.get(record.FORMAT) != [b"raw"]:
        return found[0] if found else None
    from PIL import Image

    out = io.BytesIO()
    Image.frombytes("RGB", (values[record.WIDTH][0], values[record.HEIGHT][0]), found[0]).save(out, "PNG")
    return out.getvalue()


@contextmanager
def _open(path: str) -> Iterator[tuple[BinaryIO, str]]:
    try:
        with storage.open_read(path) as stream:
            head = stream.read(2)
            stream.seek(0)
            if head == b"\x1f\x8b":
                with gzip.open(stream) as plain:
                    yield plain, "gzip"  # type: ignore[misc]
            elif len(head) == 2 and head[0] == 0x78 and int.from_bytes(head, "big") % 31 == 0:
                yield io.BytesIO(zlib.decompress(stream.read())), "zlib"
            else:
                yield stream, "none"
    except (zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise CorruptDataset(f"{path} cannot be unpacked: {error}") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
