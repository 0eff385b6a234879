"""Options of the ingest, checked when they are made."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from beam_jobs.common import validate
from beam_jobs.common.system import cores
from beam_jobs.errors import OptionError

TABLE_KINDS = ("csv", "jsonl", "parquet")
SOURCE_KINDS = ("auto", "folder", "glob", *TABLE_KINDS, "coco", "tar", "zip", "tfrecord", "tfds")
DUPLICATE_POLICIES = ("keep", "drop", "report")
NEAR_DUPLICATE_POLICIES = ("off", "report", "group", "drop")
PIXEL_POLICIES = ("copy", "resize", "raw")
RESIZE_FITS = ("short", "inside")
SPLIT_CONFLICTS = ("report", "refuse")
FACTS = ("all", "basic")
FLOAT32_LOSSES = ("report", "refuse")
UNREADABLE = ("stop", "reject")

# Beam in process, by name: its default runner would try to download another one first. The last argument keeps TFX from
# packing itself for workers that there are none of: seconds and 42 MB of temporary files a component, never removed.
LOCAL_BEAM_ARGS = ("--runner=FnApiRunner", "--direct_running_mode=in_memory", "--sdk_container_image=unused")

_MAX_RAW_SIDE = 4096
MAX_VALUE_BYTES = 16 << 20  # of a cell; a line of a text table has no more characters
PILLOW_MAX_PIXELS = 178_956_970  # twice `PIL.Image.MAX_IMAGE_PIXELS`: a decompression bomb to it

# They say where the data is or how the work is cut, never which bytes come out.
_NOT_IN_DIGEST = frozenset(
    {
        *("source", "out", "threads", "overwrite", "append", "retry_rejects", "bucket_images", "http"),
        *("allow_buckets", "max_reject_ratio", "unreadable", "float32_loss", "split_conflicts"),
    }
)


@dataclass(frozen=True, kw_only=True)
class ImageLimits:
    """What an image may be; everything outside is rejected, images by their header alone but for `max_seconds`.

    Examples:
      >>> from beam_jobs import ImageLimits, IngestOptions, run
      >>> limits = ImageLimits(min_side_px=48, max_bytes=5 << 20)
      >>> manifest = run(IngestOptions(source="photos", out="larger", limits=limits, max_reject_ratio=0.5))
      >>> manifest.counts.rejects
      {'too_small': 10, 'not_an_image': 1}

    Attributes:
      max_bytes: largest file, in bytes. Beam starts to warn about elements of 512 MB; photographs stay under 50 MB.
      max_pixels: largest height x width. 64 Mpx decodes to 192 MB, which one thread can hold.
      max_side_px: longest side, in pixels.
      min_side_px: shortest side, in pixels.
      max_aspect: longest side divided by shortest.
      max_seconds: computing time of its decoding, which may take ten times as long by the clock. 64 megapixels take a
        second or two; whatever takes a minute was made to take long.
      mask_classes: classes of the class masks, whose values are then 0 to `mask_classes` - 1 and `mask_ignore`; 0 takes
        every value for a class.
      mask_ignore: value of mask pixels that have no class, often 255; -1 for none.

    Raises:
      OptionError: a value is out of range; the message names it and what is allowed.
    """

    max_bytes: int = 50 << 20  # 50 MiB
    max_pixels: int = 64_000_000
    max_side_px: int = 32_768
    min_side_px: int = 8
    max_aspect: float = 20.0
    max_seconds: float = 60.0
    mask_classes: int = 0
    mask_ignore: int = -1

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels", "max_side_px", "min_side_px"):
            validate.whole(name, getattr(self, name), 1)
        validate.at_least("max_aspect", self.max_aspect, 1)
        validate.at_least("max_seconds", self.max_seconds, 1)
        for name, least, most in (("mask_classes", 0, 256), ("mask_ignore", -1, 255)):
            validate.whole(name, getattr(self, name), least)
            if getattr(self, name) > most:
                raise OptionError(f"{name} is {getattr(self, name)}; it must be from {least} to {most}")
        if self.max_pixels > PILLOW_MAX_PIXELS:
            raise OptionError(f"max_pixels is {self.max_pixels}; Pillow refuses images above {PILLOW_MAX_PIXELS}")


# What a dataset may hold that was made with any options; looked at within a time that a person waits.
STORED_LIMITS = ImageLimits(
    max_bytes=1 << 30,
    max_pixels=PILLOW_MAX_PIXELS,
    max_side_px=PILLOW_MAX_PIXELS,
    min_side_px=1,
    max_aspect=float(PILLOW_MAX_PIXELS),
    max_seconds=10.0,
)


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """Which columns of a table hold what; all but `image` are used when they are named.

    Examples:
      >>> from beam_jobs import IngestOptions, TableColumns, run
      >>> with open("labels.csv", "w") as table:
      ...     for row in ("file,kind,owner", "photos/cat/000.jpg,cat,ann", "photos/dog/000.jpg,dog,bob"):
      ...         print(row, file=table)
      >>> columns = TableColumns(image="file", label="kind", extra=("owner",))
      >>> run(IngestOptions(source="labels.csv", out="from_table", columns=columns, splits={"train": 1})).labels
      ('cat', 'dog')

    Attributes:
      image: path of the image, absolute or relative to the table, or its URL.
      label: class name; empty for images without one.
      labels: class names, a list or text parted by `label_separator`; takes the place of `label`.
      label_separator: what parts the names of a text cell.
      mask: path of the class mask, a PNG, TIFF or BMP file of class indices, of the size of the image.
      weight: weight of the image in the loss, a number of at least 0.
      key: identity of the image for ever; the path as written when not named.
      group: images of one group never part between splits.
      split: name of the split, overriding the hash.
      extra: columns copied into the records as `extra/NAME`.
      max_value_bytes: largest cell of an `extra` column and all labels of one image, in bytes; captions have thousands.
        A row with more is the reject `bad_annotation`. At most 16 MiB, so that a row stays small beside an image.

    Raises:
      OptionError: a column that is needed has no name, or `max_value_bytes` is out of range.
    """

    image: str = "image"
    label: str = "label"
    labels: str = ""
    label_separator: str = "|"
    mask: str = ""
    weight: str = ""
    key: str = ""
    group: str = ""
    split: str = ""
    extra: tuple[str, ...] = ()
    max_value_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for role in ("image", "label_separator"):
            if not getattr(self, role):
                raise OptionError(f"the {role} column is {getattr(self, role)!r}; name a column of the table")
        validate.whole("max_value_bytes", self.max_value_bytes, 1)
        if self.max_value_bytes > MAX_VALUE_BYTES:
            raise OptionError(f"max_value_bytes is {self.max_value_bytes}; at most {MAX_VALUE_BYTES} can be allowed")

    @property
    def label_kind(self) -> str:
        """What the columns say of the class of an image, one of `LABEL_KINDS`."""
        return "multi" if self.labels else "single" if self.label else "none"

    def named(self) -> dict[str, str]:
        """Returns role -> column for every column that is asked for."""
        roles = {name: getattr(self, name) for name in ("image", "mask", "weight", "key", "group", "split")}
        roles |= {"labels": self.labels} if self.labels else {"label": self.label}
        return {role: column for role, column in roles.items() if column} | {f"extra {c}": c for c in self.extra}


@dataclass(frozen=True, kw_only=True)
class PixelOptions:
    """What becomes of the pixels.

    Examples:
      >>> from beam_jobs import IngestOptions, PixelOptions, find_record, run
      >>> pixels = PixelOptions(policy="raw", side_px=32)
      >>> manifest = run(IngestOptions(source="photos", out="stored_pixels", pixels=pixels))
      >>> row, record = find_record("stored_pixels", "cat/000.jpg")
      >>> record["image/format"], len(record["image/encoded"][0]) == 32 * 32 * 3
      ([b'raw'], True)

    Attributes:
      policy: `copy` keeps conforming files as they are, `resize` stores smaller JPEG or PNG files, `raw` stores uint8
        pixels of one size, which training reads without decoding.
      side_px: of `resize`, the short side (or the long one, see `fit`) in pixels, never enlarged; of `raw`, height and
        width, from the centre of the image.
      fit: `short` resizes the short side to `side_px`, `inside` the long one.
      quality: of the JPEG files that `resize` writes, 1-100.

    Raises:
      OptionError: a value is out of range; the message names it and what is allowed.
    """

    policy: str = "copy"
    side_px: int = 256
    fit: str = "short"
    quality: int = 90

    def __post_init__(self) -> None:
        validate.choice("policy", self.policy, PIXEL_POLICIES)
        validate.choice("fit", self.fit, RESIZE_FITS)
        validate.whole("side_px", self.side_px, 1)
        validate.whole("quality", self.quality, 1)
        if self.policy == "raw" and self.side_px > _MAX_RAW_SIDE:
            raise OptionError(f"side_px is {self.side_px}; raw images have at most {_MAX_RAW_SIDE}, or 50 MB each")
        if self.quality > 100:
            raise OptionError(f"quality is {self.quality}; it must be from 1 to 100")


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """How images are fetched from web servers.

    Examples:
      >>> from beam_jobs import HttpOptions, IngestOptions
      >>> http = HttpOptions(timeout_s=5.0, per_host=4)
      >>> options = IngestOptions(source="urls.csv", out="from_urls", http=http)
      >>> options.http.retries
      3

    Attributes:
      timeout_s: seconds without a byte after which an attempt is given up.
      retries: further attempts after a time-out, a broken connection or the answers 429, 500, 502, 503 and 504.
      per_host: requests to one host at a time.
      allow_private: whether addresses that are loopback, link-local or private may be asked.

    Raises:
      OptionError: a value is out of range; the message names it and what is allowed.
    """

    timeout_s: float = 20.0
    retries: int = 3
    per_host: int = 8
    allow_private: bool = False

    def __post_init__(self) -> None:
        validate.above("timeout_s", self.timeout_s, 0)
        validate.whole("retries", self.retries, 0)
        validate.whole("per_host", self.per_host, 1)


def default_splits() -> dict[str, float]:
    """Returns the splits of an ingest that names none, and the share of each, 0-1."""
    return {"train": 0.9, "eval": 0.1}


@dataclass(frozen=True, kw_only=True)
class IngestOptions:
    """One ingest: where from, where to, and how.

    Examples:
      >>> from beam_jobs import IngestOptions
      >>> options = IngestOptions(source="photos", out="new", splits={"train": 8, "eval": 2}, shard_mb=64)
      >>> options.shares
      {'train': 0.8, 'eval': 0.2}
      >>> IngestOptions(source="photos", out="new", max_reject_ratio=5)
      Traceback (most recent call last):
      beam_jobs.errors.OptionError: max_reject_ratio is 5; it must be between 0 and 1

    Attributes:
      source: folder, glob, table, COCO json, archive, TFRecord files or prepared TFDS directory.
      out: directory that becomes the dataset.
      source_kind: one of `SOURCE_KINDS`; `auto` looks at the source.
      columns: columns of a table source.
      splits: split name -> share. Shares are normalised to sum 1; the order matters (it fixes the hash ranges).
      seed: salt of the split and order hashes; another seed is another split.
      shard_mb: aimed size of a shard in MB (1e6 bytes). 128 keeps a shard a few seconds of work on any disk.
      shards: shards per split; 0 derives the number from `shard_mb`.
      duplicates: `keep` writes every copy (into one split), `drop` writes the first by key, `report` keeps all and
        names the sets.
      near_duplicates: `off`, `report` marks images that look alike, `group` keeps them in one split, `drop` writes the
        first by key.
      near_distance: bits in which the perceptual hashes of near duplicates may differ, 0-8.
      split_conflicts: what becomes of images that belong together, as copies, a group or grouped near duplicates, when
        a split column or an existing dataset puts them into two splits: `report` writes and names them, `refuse`
        publishes nothing.
      stratify: whether every class is divided by the shares on its own, to the image, or as closely as copies, groups
        and grouped near duplicates that stay together allow; images added later may then move others.
      pixels: what becomes of the pixels.
      facts: `all`, or `basic` for no channel statistics, which makes `copy` faster.
      max_reject_ratio: share of bad images, 0-1, over which nothing is published.
      unreadable: what becomes of images that may be there and that three passes could not read, because a permission is
        missing, or a disk, a network or a store fails: `stop` names them and publishes nothing, `reject` makes rejects
        of them, which the next run tries again.
      float32_loss: what happens where the float32 of a record changes a number of a user column: `report` publishes
        and warns, `refuse` publishes nothing.
      limits: what an image may be.
      threads: threads of one unit of work; 0 means one per core.
      http: how images are fetched from web servers.
      allow_buckets: buckets, such as `s3://photos`, that a table may name besides its own and that of `out`; what it
        names is read with the credentials of this process.
      overwrite: replace the dataset that `out` holds, by rename, once the new one is whole.
      append: add the images whose key the dataset in `out` does not know; its shards keep their bytes, not their names.
      retry_rejects: add the images that were rejected before and are good now.
      bucket_images: images examined as one unit of work, the grain of resuming. 2048 is seconds of work.

    Raises:
      OptionError: a value is out of range; the message names it and what is allowed.
    """

    source: str
    out: str
    source_kind: str = "auto"
    columns: TableColumns = field(default_factory=TableColumns)
    splits: Mapping[str, float] = field(default_factory=default_splits)
    seed: int = 0
    shard_mb: float = 128.0
    shards: int = 0
    duplicates: str = "keep"
    near_duplicates: str = "off"
    near_distance: int = 3
    split_conflicts: str = "report"
    stratify: bool = False
    pixels: PixelOptions = field(default_factory=PixelOptions)
    facts: str = "all"
    max_reject_ratio: float = 0.05
    unreadable: str = "stop"
    float32_loss: str = "report"
    limits: ImageLimits = field(default_factory=ImageLimits)
    http: HttpOptions = field(default_factory=HttpOptions)
    allow_buckets: tuple[str, ...] = ()
    threads: int = 0
    overwrite: bool = False
    append: bool = False
    retry_rejects: bool = False
    bucket_images: int = 2048

    def __post_init__(self) -> None:
        validate.choice("source_kind", self.source_kind, SOURCE_KINDS)
        validate.choice("duplicates", self.duplicates, DUPLICATE_POLICIES)
        validate.choice("near_duplicates", self.near_duplicates, NEAR_DUPLICATE_POLICIES)
        validate.choice("split_conflicts", self.split_conflicts, SPLIT_CONFLICTS)
        validate.choice("facts", self.facts, FACTS)
        validate.choice("unreadable", self.unreadable, UNREADABLE)
        validate.choice("float32_loss", self.float32_loss, FLOAT32_LOSSES)
        validate.whole("near_distance", self.near_distance, 0)
        if self.near_distance > 8:
            raise OptionError(
                f"near_distance is {self.near_distance}; give 0 to 8: over 8 of 64 bits unlike images meet"
            )
        modes = [name for name in ("overwrite", "append", "retry_rejects") if getattr(self, name)]
        if len(modes) > 1:
            raise OptionError(f"{' and '.join(modes)} exclude one another; give one of them")
        validate.at_least("shard_mb", self.shard_mb, 0.001)
        validate.whole("seed", self.seed)
        validate.whole("shards", self.shards, 0)
        validate.whole("threads", self.threads, 0)
        validate.whole("bucket_images", self.bucket_images, 1)
        validate.share("max_reject_ratio", self.max_reject_ratio)
        _check_splits(self.splits)

    @property
    def thread_count(self) -> int:
        """Threads to use for one unit of work, at least 1."""
        return self.threads or cores()

    @property
    def shares(self) -> dict[str, float]:
        """Split -> share, summing to 1, in order."""
        total = sum(self.splits.values())
        return {name: share / total for name, share in self.splits.items()}

    def digest(self) -> str:
        """Returns the sha256, in hex, of every option that decides which bytes are written."""
        kept = {k: v for k, v in self.to_json().items() if k not in _NOT_IN_DIGEST}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict:
        """Returns plain JSON values; `from_json` takes them back.

        The splits become pairs, because their order fixes the hash ranges and JSON objects have none.
        """
        splits = [[name, share] for name, share in self.splits.items()]
        return {**asdict(self), "splits": splits, "allow_buckets": list(self.allow_buckets)}

    @classmethod
    def from_json(cls, values: Mapping) -> IngestOptions:
        """Builds the options from `to_json` output.

        Raises:
          OptionError: a value is out of range.
        """
        plain = dict(values)
        columns = dict(plain.pop("columns", {}))
        columns["extra"] = tuple(columns.get("extra", ()))
        return cls(
            columns=TableColumns(**columns),
            pixels=PixelOptions(**plain.pop("pixels", {})),
            limits=ImageLimits(**plain.pop("limits", {})),
            http=HttpOptions(**plain.pop("http", {})),
            splits=dict(plain.pop("splits")),
            allow_buckets=tuple(plain.pop("allow_buckets", ())),
            **plain,
        )


def parse_splits(text: str) -> dict[str, float]:
    """Reads `train=0.9,eval=0.1`; `:` works as well as `=`.

    Raises:
      OptionError: the text does not have that form.
    """
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, separator, share = part.replace(":", "=").partition("=")
        if name.strip() in shares:
            raise OptionError(f"splits is {text!r}; it names {name.strip()} twice")
        try:
            shares[name.strip()] = float(share)
        except ValueError:
            separator = ""
        if not separator:
            raise OptionError(f"splits is {text!r}; write it as train=0.9,eval=0.1")
    return shares


def _check_splits(splits: Mapping[str, float]) -> None:
    if not splits:
        raise OptionError("splits is empty; name at least one, as in train=1")
    for name, share in splits.items():
        # The name becomes a directory, `Split-NAME`, and TFX joins it into patterns.
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise OptionError(f"split name {name!r} is not allowed; use ASCII letters, digits and _, as in train")
        if not isinstance(share, (int, float)) or not 0 < share < math.inf:
            raise OptionError(f"split {name} has the share {share!r}; it must be a number above 0")
