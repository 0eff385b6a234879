"""Options of the ingest; their values are checked on construction."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, Any

from annotated_types import Ge, Le
from pydantic import BeforeValidator, PlainSerializer
from pydantic.dataclasses import dataclass

from beam_jobs.common.settings import STRICT, AboveZero, Count, Field, OneOf, Options, Positive, Share, fields
from beam_jobs.common.system import cores
from beam_jobs.errors import CorruptDataset, OptionError

TABLE_KINDS = ("csv", "jsonl", "parquet")
SOURCE_KINDS = ("auto", "folder", "glob", *TABLE_KINDS, "coco", "tar", "zip", "tfrecord", "tfds")
DUPLICATE_POLICIES = ("keep", "drop", "report")
NEAR_DUPLICATE_POLICIES = ("auto", "off", "report", "group", "drop")
_NEAR_DUPLICATE_IMAGES = 10_000_000  # largest number of images for which `auto` is `report`
PIXEL_POLICIES = ("copy", "resize", "raw")
RESIZE_FITS = ("short", "inside")
SPLIT_CONFLICTS = ("report", "refuse")
FACTS = ("all", "basic")
FLOAT32_LOSSES = ("report", "refuse")
UNREADABLE = ("stop", "reject")

# Beam's in-process runner by name: the default runner would first try to download another runner. The last argument
# stops TFX from building a package for workers, which takes seconds and leaves 42 MB of temporary files per component.
LOCAL_BEAM_ARGS = ("--runner=FnApiRunner", "--direct_running_mode=in_memory", "--sdk_container_image=unused")

_MAX_RAW_SIDE = 4096  # pixels
MAX_VALUE_BYTES = 16 << 20  # largest cell in bytes, and longest line of a text table in characters
PILLOW_MAX_PIXELS = 178_956_970  # twice `PIL.Image.MAX_IMAGE_PIXELS`; more is a decompression bomb for Pillow

_SPLITS, _DUPLICATES, _PIXELS, _COLUMNS = "Splits and shards", "Duplicates", "Pixels", "Columns of a table"
_URL = re.compile(r"https?://[^\s/]+\S*", re.ASCII)
_SPDX_PAGE = "https://spdx.org/licenses/{}.html"
_MODE = Field(option=None, scope="run", in_pipeline=False)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ImageLimits(Options):
    """Limits of an image; an image beyond a limit is rejected. All but `max_seconds` are checked before decoding.

    Examples:
      >>> from beam_jobs import ImageLimits, IngestOptions, run
      >>> limits = ImageLimits(min_side_px=48, max_bytes=5 << 20)
      >>> manifest = run(IngestOptions(source="photos", out="larger", limits=limits, max_reject_ratio=0.5))
      >>> manifest.counts.rejects
      {'too_small': 10, 'not_an_image': 1}

    Attributes:
      max_bytes: largest file in bytes. Beam starts to warn about elements of 512 MB; photographs stay under 50 MB.
      max_pixels: largest height x width, in pixels. 64 megapixels decode to 192 MB in each thread; Pillow refuses to
        decode more than 178,956,970 pixels.
      max_side_px: longest side in pixels.
      min_side_px: shortest side in pixels.
      max_aspect: longest side divided by shortest.
      max_seconds: longest computing time of decoding, in seconds. The elapsed time may be ten times as long. 64
        megapixels take a second or two; a file that takes a minute was made to be slow.
      mask_classes: number of classes of the masks; 0 allows every value. Other numbers allow the values from 0 to
        `mask_classes` - 1, and `mask_ignore`.
      mask_ignore: value of mask pixels without a class, such as 255; -1 for none.

    Raises:
      OptionError: a value is out of range; the message gives the value and the allowed values.
    """

    max_bytes: Positive = 50 << 20  # 50 MiB
    max_pixels: Annotated[Positive, Le(PILLOW_MAX_PIXELS)] = 64_000_000
    max_side_px: Positive = 32_768
    min_side_px: Positive = 8
    max_aspect: Annotated[float, Ge(1)] = 20.0
    max_seconds: Annotated[float, Ge(1)] = 60.0
    mask_classes: Annotated[Count, Le(256)] = 0
    mask_ignore: Annotated[int, Ge(-1), Le(255)] = -1


# Limits that accept the images of every dataset, with a decoding time that is short enough for interactive commands.
STORED_LIMITS = ImageLimits(
    max_bytes=1 << 30,
    max_pixels=PILLOW_MAX_PIXELS,
    max_side_px=PILLOW_MAX_PIXELS,
    min_side_px=1,
    max_aspect=float(PILLOW_MAX_PIXELS),
    max_seconds=10.0,
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TableColumns(Options):
    """Roles of the columns of a table; a role with an empty column name is not used.

    Examples:
      >>> from beam_jobs import IngestOptions, TableColumns, run
      >>> with open("labels.csv", "w") as table:
      ...     for row in ("file,kind,owner", "photos/cat/000.jpg,cat,ann", "photos/dog/000.jpg,dog,bob"):
      ...         print(row, file=table)
      >>> columns = TableColumns(image="file", label="kind", extra=("owner",))
      >>> run(IngestOptions(source="labels.csv", out="from_table", columns=columns, splits={"train": 1})).labels
      ('cat', 'dog')

    Attributes:
      image: column with the path or URL. A path is absolute or relative to the table.
      label: column with the class name; '' for none.
      labels: column with any number of class names, instead of `label`. A list, or text split by `label_separator`.
      label_separator: separator of the names in `labels`.
      mask: column with the path of a class mask: PNG, TIFF or BMP. It has class indices, and the size of the image.
      weight: column with the weight of the image in the loss. A number of at least 0.
      key: column with the key of the image; empty uses the path as written in the table. The key must never change.
      group: column with a group; images of one group stay in one split.
      split: column with the name of the split. It overrides the split by hash.
      extra: column to copy into the records. The name of its feature is `extra/NAME`.
      max_value_bytes: largest cell of a column of `extra`, and largest sum of the labels of an image, in bytes. A row
        over the limit is rejected as `bad_annotation`. Captions have thousands of bytes. At most 16 MiB.

    Raises:
      OptionError: `image` or `label_separator` is empty, or `max_value_bytes` is out of range.
    """

    image: str = "image"
    label: str = "label"
    labels: str = ""
    label_separator: Annotated[str, Field(option="--label-separator", metavar="TEXT")] = "|"
    mask: str = ""
    weight: str = ""
    key: str = ""
    group: str = ""
    split: str = ""
    extra: tuple[str, ...] = ()
    max_value_bytes: Annotated[Positive, Le(MAX_VALUE_BYTES), Field(option="--max-value-bytes")] = 1 << 20

    def __post_init__(self) -> None:
        for role in ("image", "label_separator"):
            if not getattr(self, role):
                raise OptionError(f"the {role} column is {getattr(self, role)!r}; name a column of the table")

    @property
    def label_kind(self) -> str:
        """Kind of labels of the images, one of `LABEL_KINDS`."""
        return "multi" if self.labels else "single" if self.label else "none"

    def named(self) -> dict[str, str]:
        """Returns role -> column name for every role that is used."""
        roles = {name: getattr(self, name) for name in ("image", "mask", "weight", "key", "group", "split")}
        roles |= {"labels": self.labels} if self.labels else {"label": self.label}
        return {role: column for role, column in roles.items() if column} | {f"extra {c}": c for c in self.extra}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PixelOptions(Options):
    """Policy for the pixels of the images.

    Examples:
      >>> from beam_jobs import IngestOptions, PixelOptions, find_record, run
      >>> pixels = PixelOptions(policy="raw", side_px=32)
      >>> manifest = run(IngestOptions(source="photos", out="stored_pixels", pixels=pixels))
      >>> row, record = find_record("stored_pixels", "cat/000.jpg")
      >>> record["image/format"], len(record["image/encoded"][0]) == 32 * 32 * 3
      ([b'raw'], True)

    Attributes:
      policy: copy files unchanged, resize them, or store raw pixels of one size. `copy` converts files only if needed,
        `resize` stores smaller JPEG or PNG files, `raw` stores uint8 pixels, which training reads without decoding.
      side_px: side of the images that resize and raw store, in pixels. For `resize` the short side, or with `fit` the
        long side, never enlarged; for `raw` height and width, cropped at the centre of the image.
      fit: side that resize scales to `side_px`: short, or inside for the long side.
      quality: JPEG quality of resized images, 1-100.

    Raises:
      OptionError: a value is out of range; the message gives the value and the allowed values.
    """

    policy: Annotated[str, OneOf(PIXEL_POLICIES)] = "copy"
    side_px: Annotated[Positive, Field(needs=("policy", ("resize", "raw")))] = 256
    fit: Annotated[str, OneOf(RESIZE_FITS), Field(needs=("policy", ("resize",)))] = "short"
    quality: Annotated[Positive, Le(100), Field(needs=("policy", ("resize",)))] = 90

    def __post_init__(self) -> None:
        if self.policy == "raw" and self.side_px > _MAX_RAW_SIDE:
            raise OptionError(f"side_px is {self.side_px}; its maximum is {_MAX_RAW_SIDE}, a raw image of 50 MB")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HttpOptions(Options):
    """Options for fetching images from web servers.

    Examples:
      >>> from beam_jobs import HttpOptions, IngestOptions
      >>> http = HttpOptions(timeout_s=5.0, per_host=4)
      >>> options = IngestOptions(source="urls.csv", out="from_urls", http=http)
      >>> options.http.retries
      3

    Attributes:
      timeout_s: seconds without received data after which an attempt fails.
      retries: number of further attempts after a failed one. An attempt fails by a time-out, a broken connection or
        the status 429, 500, 502, 503 or 504.
      per_host: maximum number of simultaneous requests to one host, from all processes of a machine. `feedline ingest`
        on Dataflow and Flink divides it by the number of worker processes; each process may make at least one.
      allow_private: fetch from loopback, link-local and private addresses too.
      ignore_robots_tag: use images even if their server forbids it by the header `X-Robots-Tag`, with `noai`,
        `noimageai`, `noindex`, `noimageindex` or `none`.

    Raises:
      OptionError: a value is out of range; the message gives the value and the allowed values.
    """

    timeout_s: AboveZero = 20.0
    retries: Count = 3
    per_host: Positive = 8
    allow_private: bool = False
    ignore_robots_tag: Annotated[bool, Field(option="--ignore-robots-tag")] = False


@dataclass(frozen=True, kw_only=True, config=STRICT)
class About(Options):
    """Description of a dataset by its authors; empty values are unknown and omitted.

    Examples:
      >>> from beam_jobs import About
      >>> About(title="Cats and dogs", license="CC-BY-4.0", creators=("A. Photographer",)).license_url
      'https://spdx.org/licenses/CC-BY-4.0.html'

    Attributes:
      title: title of the dataset.
      creators: people who made the dataset.
      organizations: organisations that made the dataset.
      license: URL of the licence, or its SPDX identifier, such as CC-BY-4.0.
      intended_use: purposes for which the dataset is intended, and purposes for which it is not.
      citation: how to cite the dataset, preferably as BibTeX.
      url: web page of the dataset.
      date_published: day of publication, such as 2026-01-31.

    Raises:
      OptionError: a value is not allowed; the message gives the value and the allowed values.
    """

    title: Annotated[str, Field(metavar="TEXT")] = ""
    creators: Annotated[tuple[str, ...], Field(option="--creator", metavar="NAME")] = ()
    organizations: Annotated[tuple[str, ...], Field(option="--organization", metavar="NAME")] = ()
    license: str = ""
    intended_use: Annotated[str, Field(metavar="TEXT")] = ""
    citation: Annotated[str, Field(metavar="TEXT")] = ""
    url: Annotated[str, Field(metavar="URL")] = ""
    date_published: Annotated[str, Field(metavar="DAY")] = ""

    @classmethod
    def recorded(cls, options: Mapping[str, Any]) -> About:
        """Returns the description in the options of `dataset.json`; empty for a dataset of an earlier release.

        Raises:
          CorruptDataset: the description is invalid: a later release wrote it, or it was edited.
        """
        try:
            return cls.from_json(options.get("about", {}))
        except (OptionError, AttributeError, TypeError) as error:
            raise CorruptDataset(f"dataset.json has an unusable description: {error}") from error

    def __post_init__(self) -> None:
        _ = self.license_url
        if self.url and not _URL.fullmatch(self.url):
            raise OptionError(f"url is {self.url!r}; it must begin with https:// or http:// and have no space")
        for name, texts in (("title", (self.title,)), ("creator", self.creators), ("organization", self.organizations)):
            if any(text != text.strip() or "\n" in text or not (text or name == "title") for text in texts):
                raise OptionError(f"{name} is {texts!r}; it must be one line without spaces around it")
        if self.date_published:
            _check_day(self.date_published)

    @property
    def license_url(self) -> str:
        """URL of the licence; for an SPDX identifier, its page at spdx.org."""
        if not self.license or _URL.fullmatch(self.license):
            return self.license
        from packaging import licenses

        try:
            identifier = str(licenses.canonicalize_license_expression(self.license))
        except licenses.InvalidLicenseExpression:
            identifier = ""
        if not re.fullmatch(r"(?!LicenseRef-)[A-Za-z0-9.-]+", identifier):
            raise OptionError(
                f"license is {self.license!r}; it must be the URL of a licence, or an SPDX identifier of "
                "https://spdx.org/licenses, such as CC-BY-4.0"
            )
        return _SPDX_PAGE.format(identifier)


def _check_day(text: str) -> None:
    try:
        datetime.datetime.strptime(text, "%Y-%m-%d")
    except ValueError as error:
        raise OptionError(f"date_published is {text!r}; it must be a day, such as 2026-01-31") from error


def _parse_pairs(shares: object) -> object:
    with contextlib.suppress(TypeError, ValueError):  # pydantic checks the type next
        return dict(shares) if isinstance(shares, tuple) else shares
    return shares


# A list of pairs in JSON: the order of the splits fixes their hash ranges, and JSON objects have no order.
_Shares = Annotated[
    Mapping[str, AboveZero],
    PlainSerializer(lambda shares: [list(pair) for pair in shares.items()], when_used="json"),
    BeforeValidator(_parse_pairs),
]


def default_splits() -> dict[str, float]:
    """Returns the default splits and their shares, 0-1."""
    return {"train": 0.9, "eval": 0.1}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class IngestOptions(Options):
    """Source, output and options of one ingest.

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
      source_kind: kind of the source: `SOURCE_KINDS`; auto detects it.
      columns: columns of a table source.
      splits: splits and their shares, scaled to a sum of 1. The order matters: it fixes the hash ranges.
      seed: seed of the splits and of the order; another seed assigns images to other splits.
      shard_mb: target size of a shard in MB. A MB is 1e6 bytes; 128 MB take a few seconds on any disk.
      shards: number of shards per split; 0 derives it from `shard_mb`.
      duplicates: images with the same bytes: keep all in one split, drop all but one, or keep and report them. The
        image with the first key stays.
      near_duplicates: similar images: report them, group them in one split, or drop all but one. The image with the
        first key stays. `auto` is `report`; with over 10 million images or `facts="basic"` it is `off`.
      near_distance: maximum number of different bits, of 64 hash bits, 0-8. Over 8, unlike images are near duplicates.
      split_conflicts: images of one unit that a split column or an existing dataset assigns to several splits: report
        them, or refuse to publish. A unit is a set of duplicates, a group or a set of grouped near duplicates.
      stratify: apply the shares to every class separately. The numbers of images are exact within one image, or as
        close as possible without dividing units. Images added to the source later may move others to another split.
      pixels: policy for the stored pixels.
      facts: facts to measure of each image; basic omits channel statistics. That makes `copy` faster.
      max_reject_ratio: share of bad images, 0-1, above which nothing is published.
      unreadable: images that exist but cannot be read in three passes: report them and publish nothing, or reject them,
        and try them again in the next run. A permission may be missing, or a disk, a network or a store fails.
      float32_loss: numbers of extra columns that float32 would change: report them, or refuse to publish.
      limits: limits of an image.
      http: options for fetching images from web servers.
      about: title, authors, licence and intended use, for the report and for exports. When it changes, a pipeline
        ingests again.
      allow_buckets: bucket that the URLs of a table may use besides the buckets of the table and of `out`, such as
        s3://photos. It is read with the credentials of this process.
      plan_memory_mb: memory limit of the database that plans splits and shards, in MB; a later sort takes up to half as
        much. Data over the limit is written to a disk.
      spill_dir: local directory for data over `plan_memory_mb`; by default the work directory, or the directory of
        temporary files if the work directory is in a store.
      threads: threads per worker process; 0 is one per core on this machine, one per worker process in a cluster. The
        threads share one unit of work. From 4,096 local images on, each thread writes a shard in a separate process.
      overwrite: replace the dataset in `out`, by rename, when the new dataset is complete.
      append: add the images with new keys to the dataset in `out`; its shards keep their bytes, not their names.
      retry_rejects: add the images that an earlier run rejected and that are good now.
      bucket_images: number of images in a unit of work when examining; a killed run repeats unfinished units.

    Raises:
      OptionError: a value is out of range; the message gives the value and the allowed values.
    """

    source: Annotated[str, Field(option=None, scope="run")]
    out: Annotated[str, _MODE]
    source_kind: Annotated[str, OneOf(SOURCE_KINDS), Field(metavar="KIND", append="free")] = "auto"
    columns: Annotated[TableColumns, Field(heading=_COLUMNS, suffix="_column", metavar="NAME", append="free")] = field(
        default_factory=TableColumns
    )
    splits: Annotated[_Shares, Field(heading=_SPLITS, metavar="NAME=SHARE,...", append="same")] = field(
        default_factory=default_splits
    )
    seed: Annotated[int, Field(heading=_SPLITS, append="same")] = 0
    shard_mb: Annotated[float, Ge(0.001), Field(heading=_SPLITS)] = 128.0
    shards: Annotated[Count, Field(heading=_SPLITS)] = 0
    duplicates: Annotated[str, OneOf(DUPLICATE_POLICIES), Field(heading=_DUPLICATES)] = "keep"
    near_duplicates: Annotated[str, OneOf(NEAR_DUPLICATE_POLICIES), Field(heading=_DUPLICATES)] = "auto"
    near_distance: Annotated[
        Count, Le(8), Field(heading=_DUPLICATES, needs=("near_duplicates", NEAR_DUPLICATE_POLICIES[2:]))
    ] = 3
    split_conflicts: Annotated[str, OneOf(SPLIT_CONFLICTS), Field(heading=_SPLITS, scope="run")] = "report"
    stratify: Annotated[bool, Field(heading=_SPLITS, append="same")] = False
    pixels: Annotated[PixelOptions, Field(heading=_PIXELS, append="same")] = field(default_factory=PixelOptions)
    facts: Annotated[str, OneOf(FACTS), Field(heading=_PIXELS, append="same")] = "all"
    max_reject_ratio: Annotated[Share, Field(scope="dataset", append="free")] = 0.05
    unreadable: Annotated[str, OneOf(UNREADABLE), Field(scope="run")] = "stop"
    float32_loss: Annotated[str, OneOf(FLOAT32_LOSSES), Field(heading=_COLUMNS, scope="run")] = "report"
    limits: Annotated[ImageLimits, Field(heading="Limits of an image")] = field(default_factory=ImageLimits)
    http: Annotated[HttpOptions, Field(heading="Images on web servers", prefix="http_", scope="run")] = field(
        default_factory=HttpOptions
    )
    about: Annotated[About, Field(heading="About the dataset", scope="dataset")] = field(default_factory=About)
    allow_buckets: Annotated[tuple[str, ...], Field(option="--allow-bucket", metavar="URL", scope="run")] = ()
    plan_memory_mb: Annotated[int, Ge(100), Field(scope="run")] = 1000
    spill_dir: Annotated[str, Field(metavar="DIR", scope="run")] = ""
    threads: Annotated[Count, Field(scope="run")] = 0
    overwrite: Annotated[bool, _MODE] = False
    append: Annotated[bool, _MODE] = False
    retry_rejects: Annotated[bool, _MODE] = False
    bucket_images: Annotated[Positive, Field(option=None, scope="run")] = 2048

    def __post_init__(self) -> None:
        modes = [name for name in ("overwrite", "append", "retry_rejects") if getattr(self, name)]
        if len(modes) > 1:
            raise OptionError(f"{' and '.join(modes)} exclude one another; give one of them")
        _check_splits(self.splits)

    @property
    def thread_count(self) -> int:
        """Number of threads that share a unit of work, at least 1."""
        return self.threads or cores()

    @property
    def shares(self) -> dict[str, float]:
        """Split -> share, summing to 1, in order."""
        total = sum(self.splits.values())
        return {name: share / total for name, share in self.splits.items()}

    def resolve(self, images: int) -> IngestOptions:
        """Returns the options with `near_duplicates="auto"` replaced for a number of images, added images included."""
        if self.near_duplicates != "auto":
            return self
        is_reported = self.facts == "all" and images <= _NEAR_DUPLICATE_IMAGES
        return replace(self, near_duplicates="report" if is_reported else "off")

    def digest(self) -> str:
        """Returns the sha256, hex, of all options that change the bytes of the dataset."""
        scopes = {name: item.field.scope for name, item in fields(type(self)).items()}
        values = {name: value for name, value in self.to_json().items() if scopes[name] == "bytes"}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def parse_splits(text: str) -> dict[str, float]:
    """Parses `train=0.9,eval=0.1`; `:` may replace `=`.

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


def apportion(total: int, shares: Sequence[float]) -> list[int]:
    """Divides a total by shares that add up to 1, by largest remainder; of equal remainders the first is rounded up."""
    quotas = [total * share for share in shares]
    counts = [int(quota) for quota in quotas]
    for index in sorted(range(len(shares)), key=lambda index: counts[index] - quotas[index])[: total - sum(counts)]:
        counts[index] += 1
    return counts


def _check_splits(splits: Mapping[str, float]) -> None:
    if not splits:
        raise OptionError("splits is empty; name at least one, as in train=1")
    for name in splits:
        # The name becomes a directory, `Split-NAME`, and TFX inserts it into file patterns.
        if not name.isidentifier() or not name.isascii():
            raise OptionError(f"split name {name!r} is not allowed; use ASCII letters, digits and _, as in train")
