"""What TFRecord files hold: counts, sizes and what is seen under each name, from one pass over every record.

Also how the values of a feature are shown, and the names that well-known writers of image records give to features: a
table, and no guess beyond it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from beam_jobs.dataset import record
from beam_jobs.errors import BadImage, CorruptDataset, FeedlineError, SourceError
from beam_jobs.images.headers import sniff
from beam_jobs.inspect.records import opened

_SHOWN_CHARACTERS = 48
_SHOWN_NAME = 120


def shown_value(values: list) -> str:
    """Returns the values of a feature as a short piece of text; long and binary ones only say their length."""
    if len(values) == 1 and isinstance(values[0], bytes):
        return _shown_bytes(values[0])
    some = (_shown_bytes(value) if isinstance(value, bytes) else _shown_number(value) for value in values[:4])
    return ", ".join(some) + (f", ... ({len(values)} values)" if len(values) > 4 else "")


def shown_name(name: str) -> str:
    """Returns the name of a feature; of one that is very long, its beginning."""
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
    """Which features of records hold the image, its class and its identity.

    Attributes:
      looks_like: who writes records with these names; empty when the names are unknown.
      image: features that hold the encoded image, or its bare pixels.
      labels: features that hold the class, as a number or as a name.
      keys: features that hold the identity of the image.
      marks: features that tell these records from others with the same `image`.
    """

    looks_like: str = ""
    image: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    marks: frozenset[str] = frozenset()

    def of(self, feature: str) -> str:
        """Returns `image`, `label` or `key`; empty for a feature without a role."""
        roles = {"image": self.image, "label": self.labels, "key": self.keys}
        return next((role for role, names in roles.items() if feature in names), "")


_OBJECT_LABELS = (record.OBJECT_LABEL, record.OBJECT_TEXT)

# The first row counts that has an image and all of its marks among the features of a file.
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
    FeatureRoles(
        looks_like="WebDataset",
        image=("jpg", "jpeg", "png", "webp"),
        labels=("cls",),
        keys=("__key__",),
    ),
    FeatureRoles(looks_like="the TFRecord tutorial of TensorFlow", image=("image_raw",), labels=("label",)),
)


def roles_of(features: Collection[str]) -> FeatureRoles:
    """Returns the row of the table that fits, reduced to the features that are there; an empty one when none fits.

    Args:
      features: names of all features of the records.
    """
    for known in KNOWN_ROLES:
        image, labels, keys = (_present_features(names, features) for names in (known.image, known.labels, known.keys))
        if image and known.marks <= set(features):
            return replace(known, image=image, labels=labels, keys=keys)
    return FeatureRoles()


def _present_features(names: tuple[str, ...], features: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in features)


_MOST_DISTINCT = 1000  # values of a feature that are counted apart

_KEPT_BYTES = 256 << 20  # of the records that are kept to be shown
_MOST_NAMES = 2000  # of features; a file that has a new one in every record must not fill the memory
_TEXT_BYTES = 4096  # of a value that may be text
_DISTINCT_BYTES = 256  # of a value that is remembered
_KINDS = {int: "int64", float: "float", bytes: "bytes"}


@dataclass(kw_only=True)
class FeatureSummary:
    """What the records of a file, or of several, hold under one name.

    Examples:
      >>> from beam_jobs import summarise_file
      >>> summary = summarise_file("dataset/Split-train/data-00000-of-00001.tfrecord")
      >>> summary.features["image/mean_rgb"]
      FeatureSummary(kind='float', records=..., least=3, most=3)

    Attributes:
      kind: `int64`, `float` or `bytes`; `none` while every value list was empty, `mixed` for several.
      records: records that have it.
      least: shortest list of values.
      most: longest list of values.
      low: smallest finite number; None without any.
      high: largest finite number.
      formats: image format -> records whose first value begins like a file of it.
    """

    kind: str = "none"
    records: int = 0
    least: int = 0
    most: int = 0
    low: float | None = field(default=None, repr=False)
    high: float | None = field(default=None, repr=False)
    formats: dict[str, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._seen: set[Any] = set()

    @property
    def distinct(self) -> int:
        """Different first values, 1,001 for more than 1,000; those of many bytes do not count."""
        return len(self._seen)

    def add(self, values: list) -> None:
        """Counts the values of one record."""
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
        if len(self._seen) <= _MOST_DISTINCT and (kind != "bytes" or len(values[0]) <= _DISTINCT_BYTES):
            self._seen.add(values[0])

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {name: value for name, value in vars(self).items() if name != "_seen"} | {"distinct": self.distinct}

    def _add_bytes(self, value: bytes) -> None:
        if _is_text(value):  # BMW is a car, and no BMP file
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
    """What one file holds.

    Attributes:
      path: of the file.
      compression: `none`, `gzip` or `zlib`.
      records: number of records, up to where it is damaged.
      payload_bytes: bytes of the records, unpacked and without their framing.
      error: why it was not read to its end; None when it was.
    """

    path: str
    compression: str = "none"
    records: int = 0
    payload_bytes: int = 0
    error: FeedlineError | None = None


@dataclass(kw_only=True)
class FileSummary:
    """What a TFRecord file, or several of them together, hold.

    Examples:
      >>> from beam_jobs import summarise_file
      >>> summary = summarise_file("mnist/mnist-train.tfrecord-00000-of-00001", shown=1)
      >>> summary.records, summary.compression, summary.first[0]["label"]
      (64, 'none', [0])

    Attributes:
      files: each of them.
      features: name -> summary, of the records that are `tf.train.Example`; of 2,000 names at most.
      first: the first records, each feature name -> values.
      unreadable: records that are no Example.
      long: records too long to be looked into.
      left_out: records that were to be shown, and are not because those before take 256 MiB.
    """

    files: list[FileFacts] = field(default_factory=list)
    features: dict[str, FeatureSummary] = field(default_factory=dict)
    first: list[dict[str, list]] = field(default_factory=list)
    unreadable: int = 0
    long: int = 0
    left_out: int = 0

    def __post_init__(self) -> None:
        self._lengths = array("Q")
        self._kept = 0

    @property
    def path(self) -> str:
        """The path of the first file; empty without any."""
        return self.files[0].path if self.files else ""

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(file.records for file in self.files)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the records, unpacked and without their framing."""
        return sum(file.payload_bytes for file in self.files)

    @property
    def compression(self) -> str:
        """How the files are compressed; several ways are joined by `, `."""
        return ", ".join(sorted({file.compression for file in self.files}))

    @property
    def errors(self) -> list[FeedlineError]:
        """Why files were not read to their end."""
        return [file.error for file in self.files if file.error]

    @property
    def sizes(self) -> dict[str, float]:
        """`min`, `median` and `max` bytes of a record; empty without any."""
        return sizes_of(self._lengths)

    def add(self, values: dict[str, list], length: int, shown: int) -> None:
        """Counts one record.

        Args:
          values: its features.
          length: bytes of it.
          shown: how many of the first records to keep.
        """
        for name, found in values.items():
            if name in self.features or len(self.features) < _MOST_NAMES:
                self.features.setdefault(name, FeatureSummary()).add(found)
        if len(self.first) + self.left_out < shown:
            if self._kept + length > _KEPT_BYTES or self.left_out:
                self.left_out += 1
            else:
                self._kept += length
                self.first.append(values)

    def add_length(self, length: int) -> None:
        """Counts the bytes of one record."""
        self._lengths.append(length)


def summarise_file(path: str, shown: int = 5) -> FileSummary:
    """Reads a TFRecord file from end to end, ours or not, compressed or not.

    Examples:
      >>> from beam_jobs import summarise_file
      >>> sorted(summarise_file("mnist/mnist-train.tfrecord-00000-of-00001").features)
      ['image', 'label']

    Args:
      path: of the file.
      shown: how many of the first records to keep.

    Returns:
      compression, counts, every feature of the records with its type and lengths, and the first records.

    Raises:
      SourceError: the file cannot be opened.
      CorruptDataset: it is not a TFRecord file, or a checksum in it is wrong.
    """
    summary = summarise([path], shown)
    if summary.errors:
        raise summary.errors[0]
    return summary


def summarise(paths: Iterable[str], shown: int = 5) -> FileSummary:
    """Reads TFRecord files from end to end; one that is damaged up to there, which its `error` says.

    Args:
      paths: of the files.
      shown: how many of the first records to keep.
    """
    summary = FileSummary()
    for path in paths:
        facts = FileFacts(path=path)
        summary.files.append(facts)
        try:
            _read(facts, summary, shown)
        except (CorruptDataset, SourceError) as error:
            facts.error = error
    return summary


def _is_text(value: bytes) -> bool:
    """Returns whether bytes are a short text in UTF-8."""
    if not value or len(value) > _TEXT_BYTES:
        return False
    try:
        return value.decode().replace("\n", "").replace("\t", "").isprintable()
    except UnicodeDecodeError:
        return False


def sizes_of(lengths: Any) -> dict[str, float]:
    """Returns `min`, `median` and `max` of lengths, an array of int64 or uint64; empty without any."""
    import numpy as np

    found = np.asarray(lengths)
    if not len(found):
        return {}
    return {"min": int(found.min()), "median": float(np.median(found)), "max": int(found.max())}


def _read(facts: FileFacts, summary: FileSummary, shown: int) -> None:
    from google.protobuf.message import DecodeError

    with opened(facts.path) as (found, facts.compression):
        for one in found:
            facts.records += 1
            facts.payload_bytes += one.length
            summary.add_length(one.length)
            if one.payload is None:
                summary.long += 1
                continue
            try:
                values = record.decode(one.payload)
            except DecodeError:
                summary.unreadable += 1  # records may hold anything; only Examples can be looked into
                continue
            summary.add(values, one.length, shown)
