"""Summaries of TFRecord files: counts, sizes, and the types and values of each feature, from a pass over all records.

Also shows values of features as text, and has a table of the feature names of well-known writers of image records.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from beam_jobs.dataset import record
from beam_jobs.errors import BadImage, CorruptDataset, FeedlineError, SourceError
from beam_jobs.images.header_check import sniff
from beam_jobs.inspect.records import open_records

_SHOWN_CHARACTERS = 48
_SHOWN_NAME = 120


def shown_value(values: list) -> str:
    """Returns the values of a feature as a short text; a long or binary value is shown as its length."""
    if len(values) == 1 and isinstance(values[0], bytes):
        return _shown_bytes(values[0])
    texts = (_shown_bytes(value) if isinstance(value, bytes) else _shown_number(value) for value in values[:4])
    return ", ".join(texts) + (f", ... ({len(values)} values)" if len(values) > 4 else "")


def shown_name(name: str) -> str:
    """Returns the name of a feature; a very long name is shortened to its beginning."""
    return name if len(name) <= _SHOWN_NAME else f"{name[: _SHOWN_NAME - 1]}…"


def _shown_number(value: float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _shown_bytes(value: bytes) -> str:
    if not value:
        return "<empty>"
    text = value[: 4 * _SHOWN_CHARACTERS + 1].decode("utf-8", "replace")
    if len(text) > _SHOWN_CHARACTERS or not text.isprintable():
        return f"<{len(value):,} bytes>"
    return text


@dataclass(frozen=True, kw_only=True)
class FeatureRoles:
    """The features of records that hold the image, its class and its identity.

    Attributes:
      looks_like: name of a well-known writer of records with these features; empty for other features.
      image: features of the encoded image, or its raw pixels.
      labels: features of the class, as a number or as a name.
      keys: features of the identity of the image.
      marks: features that distinguish records of this writer from others with the same `image`.
    """

    looks_like: str = ""
    image: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    marks: frozenset[str] = frozenset()

    def role_of(self, feature: str) -> str:
        """Returns `image`, `label` or `key`; empty for a feature without a role."""
        roles = {"image": self.image, "label": self.labels, "key": self.keys}
        return next((role for role, names in roles.items() if feature in names), "")


_OBJECT_LABELS = (record.OBJECT_LABEL, record.OBJECT_TEXT)

# The first entry applies of which a file has all `marks` and one of the `image` features.
KNOWN_ROLES = (
    FeatureRoles(
        looks_like="Feedline",
        image=(record.ENCODED,),
        labels=(record.LABEL, record.TEXT, *_OBJECT_LABELS),
        keys=(record.FILENAME,),
        marks=frozenset({record.FORMAT, record.FILENAME, record.SHA256, record.BYTES, record.ASPECT_RATIO}),
    ),
    FeatureRoles(
        looks_like="TensorFlow Object Detection",
        image=("image/encoded",),
        labels=_OBJECT_LABELS,
        keys=("image/filename", "image/source_id"),
        marks=frozenset({record.OBJECT_LABEL}),
    ),
    FeatureRoles(
        looks_like="TF-Slim",
        image=("image/encoded",),
        labels=("image/class/label", "image/class/text", "image/class/synset"),
        keys=("image/filename",),
    ),
    FeatureRoles(
        looks_like="TFDS",
        image=("image",),
        labels=("label", "coarse_label", "objects/label"),
        keys=("file_name", "image/filename", "image/id", "id"),
    ),
    FeatureRoles(looks_like="WebDataset", image=("jpg", "jpeg", "png", "webp"), labels=("cls",), keys=("__key__",)),
    FeatureRoles(looks_like="the TFRecord tutorial of TensorFlow", image=("image_raw",), labels=("label",)),
)


def detect_roles(features: Collection[str]) -> FeatureRoles:
    """Returns the matching entry of `KNOWN_ROLES`, with only the existing features; an empty one when none matches.

    Args:
      features: names of all features of the records.
    """
    for entry in KNOWN_ROLES:
        names = (entry.image, entry.labels, entry.keys)
        image, labels, keys = (tuple(name for name in role if name in features) for role in names)
        if image and entry.marks <= set(features):
            return replace(entry, image=image, labels=labels, keys=keys)
    return FeatureRoles()


_MAX_DISTINCT = 1000  # distinct values of a feature that are counted
_MAX_SHOWN_BYTES = 256 << 20  # size of the first records, which are kept for display
_MAX_NAMES = 2000  # names of features; a file with new names in every record must not fill the memory
_MAX_TEXT_BYTES = 4096  # size of a value that may be text
_MAX_DISTINCT_BYTES = 256  # size of a value that is counted as distinct
_KINDS = {int: "int64", float: "float", bytes: "bytes"}


@dataclass(kw_only=True)
class FeatureSummary:
    """Summary of a feature of the records of one or several files.

    Examples:
      >>> from beam_jobs import summarise_file
      >>> summary = summarise_file("dataset/Split-train/data-00000-of-00001.tfrecord")
      >>> summary.features["image/mean_rgb"]
      FeatureSummary(kind='float', records=..., least=3, most=3)

    Attributes:
      kind: `int64`, `float` or `bytes`; `none` when all value lists are empty, `mixed` for several types.
      records: number of records with the feature.
      least: number of values in the shortest list.
      most: number of values in the longest list.
      low: smallest finite number; None when there is none.
      high: largest finite number; None when there is none.
      formats: image format -> number of records whose first value starts with its magic bytes.
    """

    kind: str = "none"
    records: int = 0
    least: int = 0
    most: int = 0
    low: float | None = field(default=None, repr=False)
    high: float | None = field(default=None, repr=False)
    formats: dict[str, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._values: set[Any] = set()

    @property
    def distinct(self) -> int:
        """Number of distinct first values, 1,001 for more than 1,000; values of more than 256 bytes do not count."""
        return len(self._values)

    def add(self, values: list) -> None:
        """Adds the values of a record."""
        self.least = min(self.least, len(values)) if self.records else len(values)
        self.most = max(self.most, len(values))
        self.records += 1
        if not values:
            return
        kind = _KINDS[type(values[0])]
        self.kind = kind if self.kind in ("none", kind) else "mixed"
        if kind == "bytes":
            self._add_bytes(values[0])
        else:
            self._add_numbers(values)
        if len(self._values) <= _MAX_DISTINCT and (kind != "bytes" or len(values[0]) <= _MAX_DISTINCT_BYTES):
            self._values.add(values[0])

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {name: value for name, value in vars(self).items() if name != "_values"} | {"distinct": self.distinct}

    def _add_bytes(self, value: bytes) -> None:
        if _is_text(value):  # the text `BMW` starts like a BMP file
            return
        try:
            name = sniff(value)
        except BadImage:
            return
        self.formats[name] = self.formats.get(name, 0) + 1

    def _add_numbers(self, values: list) -> None:
        finite = list(filter(math.isfinite, values))
        if finite:
            low, high = min(finite), max(finite)
            self.low = low if self.low is None else min(self.low, low)
            self.high = high if self.high is None else max(self.high, high)


@dataclass(kw_only=True)
class FileFacts:
    """Counts of a file.

    Attributes:
      path: path of the file.
      compression: `none`, `gzip` or `zlib`.
      records: number of records, in a damaged file those before the damage.
      payload_bytes: size of the records, unpacked and without their framing.
      error: the error that ended the reading of the file; None when it was read completely.
    """

    path: str
    compression: str = "none"
    records: int = 0
    payload_bytes: int = 0
    error: FeedlineError | None = None


@dataclass(kw_only=True)
class FileSummary:
    """Summary of one or several TFRecord files.

    Examples:
      >>> from beam_jobs import summarise_file
      >>> summary = summarise_file("mnist/mnist-train.tfrecord-00000-of-00001", shown=1)
      >>> summary.records, summary.compression, summary.first[0]["label"]
      (64, 'none', [0])

    Attributes:
      files: counts of each file.
      features: name -> summary, for records that are `tf.train.Example`; at most 2,000 names.
      first: the first records, each as feature name -> values.
      unreadable: number of records that are not an Example.
      long: number of records that are too long to be parsed.
      left_out: number of requested records that are missing in `first`, because the records before them take 256 MiB.
    """

    files: list[FileFacts] = field(default_factory=list)
    features: dict[str, FeatureSummary] = field(default_factory=dict)
    first: list[dict[str, list]] = field(default_factory=list)
    unreadable: int = 0
    long: int = 0
    left_out: int = 0

    def __post_init__(self) -> None:
        self._lengths = array("Q")
        self._first_bytes = 0

    @property
    def path(self) -> str:
        """The path of the first file; empty when there is none."""
        return self.files[0].path if self.files else ""

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(file.records for file in self.files)

    @property
    def payload_bytes(self) -> int:
        """Size of the records in bytes, unpacked and without their framing."""
        return sum(file.payload_bytes for file in self.files)

    @property
    def compression(self) -> str:
        """Compression of the files; several compressions are joined by `, `."""
        return ", ".join(sorted({file.compression for file in self.files}))

    @property
    def errors(self) -> list[FeedlineError]:
        """The errors of files that were not read completely."""
        return [file.error for file in self.files if file.error]

    @property
    def sizes(self) -> dict[str, float]:
        """`min`, `median` and `max` size of a record, in bytes; empty without records."""
        return size_statistics(self._lengths)

    def add(self, values: dict[str, list], length: int, shown: int) -> None:
        """Adds a record.

        Args:
          values: feature name -> values.
          length: size of the record, in bytes.
          shown: number of first records to keep in `first`.
        """
        for name, feature_values in values.items():
            if name in self.features or len(self.features) < _MAX_NAMES:
                self.features.setdefault(name, FeatureSummary()).add(feature_values)
        if len(self.first) + self.left_out < shown:
            if self._first_bytes + length > _MAX_SHOWN_BYTES or self.left_out:
                self.left_out += 1
            else:
                self._first_bytes += length
                self.first.append(values)

    def add_length(self, length: int) -> None:
        """Adds the size of a record, in bytes."""
        self._lengths.append(length)


def summarise_file(path: str, shown: int = 5) -> FileSummary:
    """Reads any TFRecord file completely, compressed or not.

    Examples:
      >>> from beam_jobs import summarise_file
      >>> sorted(summarise_file("mnist/mnist-train.tfrecord-00000-of-00001").features)
      ['image', 'label']

    Args:
      path: path of the file.
      shown: number of first records to keep.

    Returns:
      compression, counts, every feature of the records with its type and lengths, and the first records.

    Raises:
      SourceError: the file cannot be opened.
      CorruptDataset: the file is not a TFRecord file, or a checksum is wrong.
    """
    summary = summarise([path], shown)
    if summary.errors:
        raise summary.errors[0]
    return summary


def summarise(paths: Iterable[str], shown: int = 5) -> FileSummary:
    """Returns the summary of TFRecord files; a damaged file is read up to the damage, and its `error` is set."""
    summary = FileSummary()
    for path in paths:
        file = FileFacts(path=path)
        summary.files.append(file)
        try:
            _read_file(file, summary, shown)
        except (CorruptDataset, SourceError) as error:
            file.error = error
    return summary


def _is_text(value: bytes) -> bool:
    """Returns whether bytes are a short text in UTF-8."""
    if not value or len(value) > _MAX_TEXT_BYTES:
        return False
    try:
        return value.decode().replace("\n", "").replace("\t", "").isprintable()
    except UnicodeDecodeError:
        return False


def size_statistics(lengths: Any) -> dict[str, float]:
    """Returns `min`, `median` and `max` of lengths, an array of int64 or uint64; empty without lengths."""
    import numpy as np

    sizes = np.asarray(lengths)
    return {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())} if len(sizes) else {}


def _read_file(file: FileFacts, summary: FileSummary, shown: int) -> None:
    from google.protobuf.message import DecodeError

    with open_records(file.path) as (records, file.compression):
        for item in records:
            file.records += 1
            file.payload_bytes += item.length
            summary.add_length(item.length)
            if item.payload is None:
                summary.long += 1
                continue
            try:
                values = record.decode(item.payload)
            except DecodeError:
                summary.unreadable += 1  # records may hold anything; only Examples can be parsed
                continue
            summary.add(values, item.length, shown)
