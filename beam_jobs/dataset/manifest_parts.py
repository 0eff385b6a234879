"""What `dataset.json` says of shards, splits, images and channels: plain values, each with its sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from beam_jobs.common.strings import plural


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One published file.

    Examples:
      >>> from beam_jobs import load
      >>> shard = load("dataset").split("train").shards[0]
      >>> shard.name, len(shard.sha256)
      ('data-00000-of-00001.tfrecord', 64)

    Attributes:
      name: file name inside the directory of its split.
      records: number of records.
      bytes: size of the file.
      sha256: of the file, hex.
    """

    name: str
    records: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SplitInfo:
    """One split.

    Examples:
      >>> from beam_jobs import load
      >>> train = load("dataset").split("train")
      >>> train.records == sum(train.classes.values())
      True

    Attributes:
      shards: in order.
      classes: class name -> images.
    """

    shards: tuple[Shard, ...]
    classes: Mapping[str, int]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SplitInfo:
        """Builds it from the plain values of `dataset.json`.

        Raises:
          KeyError, TypeError: a field is missing, unknown or of the wrong shape.
        """
        return cls(shards=tuple(Shard(**shard) for shard in values["shards"]), classes=dict(values["classes"]))

    @property
    def records(self) -> int:
        """Images in the split."""
        return sum(shard.records for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)


@dataclass(frozen=True, kw_only=True)
class ImageCounts:
    """What became of every image that was found: found = rejected + dropped + written.

    Examples:
      >>> from beam_jobs import load
      >>> counts = load("dataset").counts
      >>> counts.found == counts.written + counts.rejected + counts.dropped
      True

    Attributes:
      found: entries of the source.
      written: records in the shards.
      rejects: reason -> images.
      normalised: reason -> images that were re-encoded.
      duplicate_clusters: sets of images with the same bytes.
      duplicate_images: images in those sets.
      duplicates_dropped: copies left out by the `drop` policy.
      near_clusters: sets of images that look alike.
      near_images: images in those sets.
      near_dropped: images left out by the `drop` policy of near duplicates.
      label_conflicts: duplicate sets whose copies carry different labels.
      near_unsearched: images that were not compared with all that may look like them: their hashes say too little and
        `facts` is `basic`, or too many images are all but alike.
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
        """Returns plain values; `near_unsearched` only where there are some, as datasets were written before it."""
        values = asdict(self)
        if not self.near_unsearched:
            del values["near_unsearched"]
        return values

    @property
    def dropped(self) -> int:
        """Images left out as copies or near duplicates."""
        return self.duplicates_dropped + self.near_dropped

    @property
    def rejected(self) -> int:
        """Images rejected for any reason."""
        return sum(self.rejects.values())


@dataclass(frozen=True, kw_only=True)
class Remarks:
    """What an ingest noticed and went on with.

    Examples:
      >>> from beam_jobs import load
      >>> load("dataset").remarks.warnings
      ()

    Attributes:
      warnings: sentences for people.
      float32_changes: user column -> how many of its numbers the float32 of a record changes.
      hidden: names, such as `.DS_Store`, that the last ingest passed over; a folder counts once, whatever it holds.
      hidden_names: paths of the first of them, below the source; a folder ends in `/`.
    """

    warnings: tuple[str, ...] = ()
    float32_changes: Mapping[str, int] = field(default_factory=dict)
    hidden: int = 0
    hidden_names: tuple[str, ...] = ()

    @property
    def hidden_text(self) -> str:
        """How many names were passed over and which; empty for none."""
        more = " ..." * (self.hidden > len(self.hidden_names))
        return f"{plural(self.hidden, 'name')} passed over: {', '.join(self.hidden_names)}{more}" if self.hidden else ""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Remarks:
        """Builds it from the plain values of `dataset.json`.

        Raises:
          KeyError, TypeError: a field is missing, unknown or of the wrong shape.
        """
        return cls(**{**values, **{name: tuple(values[name]) for name in ("warnings", "hidden_names")}})


@dataclass(frozen=True, kw_only=True)
class ChannelStatistics:
    """Exact statistics of the pixels of one split, weighted by pixels, from the moments of each image.

    Examples:
      >>> from beam_jobs import load
      >>> channels = load("dataset").channels
      >>> channels.split, [0 < value < 255 for value in channels.mean_rgb]
      ('train', [True, True, True])

    Attributes:
      split: the split they describe.
      mean_rgb: mean of each channel, 0-255.
      std_rgb: population standard deviation of each channel.
    """

    split: str
    mean_rgb: tuple[float, ...]
    std_rgb: tuple[float, ...]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ChannelStatistics:
        """Builds it from the plain values of `dataset.json`.

        Raises:
          KeyError, TypeError: a field is missing or of the wrong shape.
        """
        return cls(split=values["split"], mean_rgb=tuple(values["mean_rgb"]), std_rgb=tuple(values["std_rgb"]))
