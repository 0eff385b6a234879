"""`dataset.json`, which makes a directory a dataset. It is written last, by rename, and lists the files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from beam_jobs import storage
from beam_jobs.common.strings import plural, some
from beam_jobs.dataset import shards
from beam_jobs.errors import CorruptDataset, OptionError, SourceError


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A published shard.

    Examples:
      >>> from beam_jobs import load
      >>> shard = load("dataset").split("train").shards[0]
      >>> shard.name, len(shard.sha256)
      ('data-00000-of-00001.tfrecord', 64)

    Attributes:
      name: file name inside the directory of its split.
      records: number of records.
      bytes: size of the file.
      sha256: sha256 of the file, hex.
    """

    name: str
    records: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class TablePart:
    """A file of the image table.

    Attributes:
      name: file name inside `images/`.
      rows: number of rows.
      bytes: size of the file.
      sha256: sha256 of the file, hex.
      order_hashes: smallest and largest `shards.order_hash` of its keys; None if the rows have another order.
    """

    name: str
    rows: int
    bytes: int
    sha256: str
    order_hashes: tuple[str, str] | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TablePart:
        """Returns the object for its values in `dataset.json`; raises the errors of `Manifest.from_json`."""
        hashes = values["order_hashes"]
        if hashes is not None and [type(text) for text in hashes] != [str, str]:
            raise TypeError(f"order_hashes of {values['name']!r:.60} is {hashes!r:.60}; it must be null or two strings")
        return cls(**{**values, "order_hashes": hashes and tuple(hashes)})


@dataclass(frozen=True, kw_only=True)
class SplitInfo:
    """Shards and class counts of a split.

    Examples:
      >>> from beam_jobs import load
      >>> train = load("dataset").split("train")
      >>> train.records == sum(train.classes.values())
      True

    Attributes:
      shards: shards in the order of their index.
      classes: class name -> number of images.
    """

    shards: tuple[Shard, ...]
    classes: Mapping[str, int]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SplitInfo:
        """Returns the object for its values in `dataset.json`; raises the errors of `Manifest.from_json`."""
        return cls(shards=tuple(Shard(**shard) for shard in values["shards"]), classes=dict(values["classes"]))

    @property
    def records(self) -> int:
        """Number of images in the split."""
        return sum(shard.records for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Size of all shards in bytes."""
        return sum(shard.bytes for shard in self.shards)


@dataclass(frozen=True, kw_only=True)
class ImageCounts:
    """Counts of the images of a source: found = rejected + dropped + written.

    Examples:
      >>> from beam_jobs import load
      >>> counts = load("dataset").counts
      >>> counts.found == counts.written + counts.rejected + counts.dropped
      True

    Attributes:
      found: entries of the source.
      written: records in the shards.
      rejects: reason -> number of rejected images.
      normalised: reason -> number of images that were re-encoded.
      duplicate_clusters: sets of duplicates.
      duplicate_images: images in these sets.
      duplicates_dropped: duplicates that the `drop` policy omitted.
      near_clusters: sets of near duplicates.
      near_images: images in these sets.
      near_dropped: near duplicates that the `drop` policy omitted.
      label_conflicts: sets of duplicates with different labels.
      near_unsearched: images that were not compared with all candidates for near duplicates: images with little detail
        when `facts` is `basic`, or images with thousands of near duplicates.
    """

    found: int
    written: int
    rejects: Mapping[str, int] = field(default_factory=dict)
    normalised: Mapping[str, int] = field(default_factory=dict)
    duplicate_clusters: int = 0
    duplicate_images: int = 0
    duplicates_dropped: int = 0
    near_clusters: int = 0
    near_images: int = 0
    near_dropped: int = 0
    label_conflicts: int = 0
    near_unsearched: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; without `near_unsearched` if it is 0, as in older datasets."""
        values = asdict(self)
        if not self.near_unsearched:
            del values["near_unsearched"]
        return values

    @property
    def dropped(self) -> int:
        """Number of images omitted as duplicates or near duplicates."""
        return self.duplicates_dropped + self.near_dropped

    @property
    def rejected(self) -> int:
        """Number of rejected images."""
        return sum(self.rejects.values())


@dataclass(frozen=True, kw_only=True)
class Remarks:
    """Warnings of an ingest that did not stop it.

    Examples:
      >>> from beam_jobs import load
      >>> load("dataset").remarks.warnings
      ()

    Attributes:
      warnings: sentences for users.
      float32_changes: user column -> count of its numbers that the float32 of a record changes.
      hidden: number of names, such as `.DS_Store`, that the last ingest passed over; a folder counts once.
      hidden_names: paths of the first hidden names, relative to the source; folders come first and end in `/`.
    """

    warnings: tuple[str, ...] = ()
    float32_changes: Mapping[str, int] = field(default_factory=dict)
    hidden: int = 0
    hidden_names: tuple[str, ...] = ()

    @property
    def hidden_text(self) -> str:
        """Text with the number of hidden names and the first names; empty if there are none."""
        more = " ..." * (self.hidden > len(self.hidden_names))
        return f"{plural(self.hidden, 'name')} passed over: {', '.join(self.hidden_names)}{more}" if self.hidden else ""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Remarks:
        """Returns the object for its values in `dataset.json`; raises the errors of `Manifest.from_json`."""
        return cls(**{**values, **{name: tuple(values[name]) for name in ("warnings", "hidden_names")}})


@dataclass(frozen=True, kw_only=True)
class ChannelStatistics:
    """Exact statistics of all pixels of one split, computed from the mean and variance of each image.

    Examples:
      >>> from beam_jobs import load
      >>> channels = load("dataset").channels
      >>> channels.split, [0 < value < 255 for value in channels.mean_rgb]
      ('train', [True, True, True])

    Attributes:
      split: name of the split.
      mean_rgb: mean of each channel, 0-255.
      std_rgb: population standard deviation of each channel.
    """

    split: str
    mean_rgb: tuple[float, ...]
    std_rgb: tuple[float, ...]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ChannelStatistics:
        """Returns the object for its values in `dataset.json`; raises the errors of `Manifest.from_json`."""
        return cls(split=values["split"], mean_rgb=tuple(values["mean_rgb"]), std_rgb=tuple(values["std_rgb"]))


__all__ = [
    "FORMAT_VERSION",
    "IMAGES_DIR",
    "IMAGES_NAME",
    "MANIFEST_NAME",
    "REJECTS_NAME",
    "ChannelStatistics",
    "ImageCounts",
    "Manifest",
    "Remarks",
    "Shard",
    "SplitInfo",
    "TablePart",
    "content_checksum",
    "create",
    "is_published",
    "load",
    "serialise",
    "write",
]

FORMAT_VERSION = 2
_FORMAT_1 = 1  # an older format, with an image table of one file, which is read and never written
_DIGEST_VERSION = 1  # version of the values that `Manifest.digest` hashes; equal in both formats
MANIFEST_NAME = "dataset.json"
IMAGES_DIR = "images"
IMAGES_NAME = "images.parquet"  # the image table in format 1
REJECTS_NAME = "rejects.parquet"

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A published dataset.

    Examples:
      >>> from beam_jobs import load
      >>> manifest = load("dataset")
      >>> manifest.labels, sum(split.records for split in manifest.splits.values())
      (('cat', 'dog'), 48)
      >>> manifest.shard_paths("dataset", "train")
      ['dataset/Split-train/data-00000-of-00001.tfrecord']
      >>> sorted(manifest.split("eval").classes)
      ['cat', 'dog']

    Attributes:
      source: address of the source; for a local source, the last part of its path.
      options: every option of the ingest that affects the dataset.
      options_digest: sha256 of those options, hex.
      label_kind: how many labels an image has, one of `types.LABEL_KINDS`.
      labels: class names; the index is the label.
      splits: split name -> shards and classes.
      counts: counts of written, rejected and dropped images.
      channels: channel statistics of the first split; None when `facts` is `basic`.
      producer: package -> version that wrote the dataset.
      images: files of the image table, in the order of its rows; empty in format 1.
      tables: file name -> sha256, hex, of `rejects.parquet`, the files for TFDS, and the image table of format 1.
      remarks: warnings of the ingest; empty for datasets of older releases.
      format_version: version of the format of the files.
    """

    source: str
    options: Mapping[str, Any]
    options_digest: str
    label_kind: str
    labels: tuple[str, ...]
    splits: Mapping[str, SplitInfo]
    counts: ImageCounts
    channels: ChannelStatistics | None
    producer: Mapping[str, str]
    tables: Mapping[str, str]
    images: tuple[TablePart, ...] = ()
    remarks: Remarks = field(default_factory=Remarks)
    format_version: int = FORMAT_VERSION

    @property
    def digest(self) -> str:
        """Identity of the content: sha256, hex, over labels, splits and shard hashes; independent of the directory."""
        content = [
            _DIGEST_VERSION,
            list(self.labels),
            [[name, [asdict(shard) for shard in info.shards]] for name, info in self.splits.items()],
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each warning of the ingest, and for each split but the first that lacks images of some class."""
        lines = list(self.remarks.warnings)
        if unsearched := self.counts.near_unsearched:
            lines.append(
                f"{plural(unsearched, 'image was', 'images were')} not compared with all others for near duplicates: "
                "flat images need facts=all, and the search is limited if thousands of images are nearly equal"
            )
        for name, info in list(self.splits.items())[1:]:
            if missing := [label for label in self.labels if not info.classes.get(label)]:
                classes = plural(len(missing), "class", "classes")
                lines.append(f"split {name} has no image of {classes}: {some(missing)}")
        return tuple(lines)

    def split(self, name: str) -> SplitInfo:
        """Returns one split.

        Raises:
          OptionError: the dataset has no such split.
        """
        if name not in self.splits:
            raise OptionError(f"the dataset has no split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name]

    def shard_paths(self, directory: str, split: str) -> list[str]:
        """Returns the paths of the shards of a split, in order, for a dataset in `directory`.

        Raises:
          OptionError: the dataset has no such split.
        """
        return [storage.join(directory, shards.split_dir(split), shard.name) for shard in self.split(split).shards]

    @property
    def image_digests(self) -> dict[str, str]:
        """Path in the dataset -> sha256, hex, of each file of the image table, in the order of its rows."""
        if self.format_version == _FORMAT_1:
            return {IMAGES_NAME: self.tables.get(IMAGES_NAME, "")}
        return {f"{IMAGES_DIR}/{part.name}": part.sha256 for part in self.images}

    @property
    def table_digests(self) -> dict[str, str]:
        """Path in the dataset -> sha256, hex, of each file that is neither a shard nor `dataset.json`."""
        return {**self.image_digests, **self.tables}

    def image_paths(self, directory: str) -> list[str]:
        """Returns the paths of the files of the image table, in the order of its rows."""
        return [storage.join(directory, name) for name in self.image_digests]

    def to_json(self) -> dict[str, Any]:
        """Returns the content of `dataset.json` as plain JSON values: the fields, the digest and a checksum of them."""
        values = {**asdict(self), "counts": self.counts.to_json(), "digest": self.digest}
        if self.format_version == _FORMAT_1:
            del values["images"]
        return {**values, "checksum": content_checksum(values)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Manifest:
        """Returns the manifest with the values of `to_json`.

        Raises:
          KeyError, TypeError, ValueError: a field is missing, unknown or of the wrong shape.
        """
        fields = dict(values)
        checksum = fields.pop("checksum")
        if content_checksum(fields) != checksum:
            raise ValueError("its checksum does not match its content")
        digest, channels = fields.pop("digest"), fields.pop("channels")
        images = () if fields["format_version"] == _FORMAT_1 else tuple(map(TablePart.from_json, fields.pop("images")))
        manifest = cls(
            splits={name: SplitInfo.from_json(info) for name, info in fields.pop("splits").items()},
            labels=tuple(fields.pop("labels")),
            counts=ImageCounts(**fields.pop("counts")),
            images=images,
            remarks=Remarks.from_json(fields.pop("remarks")) if "remarks" in fields else Remarks(),
            channels=None if channels is None else ChannelStatistics.from_json(channels),
            **fields,
        )
        if manifest.digest != digest:
            raise ValueError(f"its digest is {digest}, but its content has the digest {manifest.digest}")
        _check_names(manifest)
        _check_counts(manifest)
        return manifest


def _check_names(manifest: Manifest) -> None:
    """Raises `ValueError` for an unsafe name: copies and exports use the names in the manifest as file names."""
    for split in manifest.splits:
        if not split.isidentifier() or not split.isascii():
            raise ValueError(f"the split name {split!r} is not allowed; an ingest uses ASCII letters, digits and _")
    split_shards = (shard.name for info in manifest.splits.values() for shard in info.shards)
    for name in (*manifest.tables, *(part.name for part in manifest.images), *split_shards):
        if not _FILE_NAME.fullmatch(name):
            raise ValueError(f"the file name {name!r} is not allowed; an ingest uses ASCII letters, digits, _, . and -")


def _check_counts(manifest: Manifest) -> None:
    """Raises `ValueError` for a count of images, records or bytes that is not an int of at least 0."""
    counts: dict[str, Any] = {f"counts.{name}": value for name, value in vars(manifest.counts).items()}
    for split, info in manifest.splits.items():
        counts[f"splits.{split}.classes"] = info.classes
        counts |= {f"{shard.name}.{name}": vars(shard)[name] for shard in info.shards for name in ("records", "bytes")}
    counts |= {f"{part.name}.{name}": vars(part)[name] for part in manifest.images for name in ("rows", "bytes")}
    for name, value in counts.items():
        for number in value.values() if isinstance(value, Mapping) else (value,):
            if type(number) is not int or number < 0:
                raise ValueError(f"{name} is {number!r:.60}; it must be a whole number of at least 0")


def content_checksum(values: Mapping[str, Any]) -> str:
    """Returns the sha256, hex, of the content of a `dataset.json` without its `checksum`."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def serialise(values: Mapping[str, Any]) -> bytes:
    """Returns the bytes of `dataset.json`; equal values give equal bytes, so that `verify` can compare every byte."""
    # A surrogate, which represents a byte of a path that is not UTF-8, is written as an escape that JSON reads back.
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def write(manifest: Manifest, directory: str, scratch: str = "") -> None:
    """Writes `dataset.json` atomically; from then on the directory is a dataset. Idempotent."""
    storage.write_bytes(storage.join(directory, MANIFEST_NAME), serialise(manifest.to_json()), scratch)


def create(manifest: Manifest, directory: str, scratch: str = "") -> bool:
    """Writes `dataset.json` unless it exists; safe with concurrent processes, see `storage.create_exclusive`.

    Returns:
      whether the directory now contains this dataset; False if it contains another one.
    """
    content = serialise(manifest.to_json())
    return storage.create_exclusive(storage.join(directory, MANIFEST_NAME), content, scratch)


def is_published(directory: str) -> bool:
    """Returns whether the directory contains a published dataset."""
    return storage.exists(storage.join(directory, MANIFEST_NAME))


def load(directory: str) -> Manifest:
    """Reads the manifest of a published dataset.

    Examples:
      >>> from beam_jobs import load
      >>> load("dataset").counts.written
      48
      >>> load("photos")
      Traceback (most recent call last):
      beam_jobs.errors.SourceError: photos is not a dataset: it has no dataset.json; make one with `feedline ingest`

    Args:
      directory: directory of the dataset, local or remote (`gs://`, `s3://`).

    Returns:
      manifest with verified checksum and digest. No shard is opened.

    Raises:
      SourceError: the directory is not a published dataset, or cannot be read.
      CorruptDataset: `dataset.json` is damaged or of another format version.
    """
    path = storage.join(directory, MANIFEST_NAME)
    try:
        if not is_published(directory):
            raise SourceError(
                f"{directory} is not a dataset: it has no {MANIFEST_NAME}; make one with `feedline ingest`"
            )
        values = storage.read_json(path)
        version = values["format_version"]
        if version not in (_FORMAT_1, FORMAT_VERSION):
            raise ValueError(f"its format version is {version!r}; this release reads {_FORMAT_1} and {FORMAT_VERSION}")
        return Manifest.from_json(values)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    except KeyError as error:
        raise CorruptDataset(f"{path} cannot be used: it lacks {error}; write the dataset again") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CorruptDataset(f"{path} cannot be used: {error}; write the dataset again") from error
