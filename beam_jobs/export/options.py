"""Options of an export, checked in the constructor, and names of exported images."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

from beam_jobs import errors
from beam_jobs.errors import OptionError
from beam_jobs.options import About

STREAMED = ("webdataset", "array_record", "parquet")  # files with every record
DESCRIBED = ("croissant", "dali")  # small files about the dataset, without its records
FORMATS = (*STREAMED, *DESCRIBED)
WITH_ABOUT = ("croissant", "parquet")  # formats that store `ExportOptions.about`


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of an export.

    Attributes:
      dataset: directory of a published dataset, local or remote.
      to: format, one of `FORMATS`.
      out: directory of the export, new or empty, local or remote; for `croissant` also the dataset itself.
      splits: splits to export, in this order; empty means all. Croissant always describes all splits.
      shard_mb: target size of a file in MB (1e6 bytes) of records; None makes as many files as the dataset has shards.
      about: properties that override those in the dataset; for `croissant` and `parquet` only.

    Raises:
      OptionError: a value is not allowed; the message gives the value and the allowed values.
    """

    dataset: str
    to: str
    out: str
    splits: tuple[str, ...] = ()
    shard_mb: float | None = None
    about: About = field(default_factory=About)

    def __post_init__(self) -> None:
        errors.check_choice("to", self.to, FORMATS)
        if self.shard_mb is not None:
            errors.check_at_least("shard_mb", self.shard_mb, 0.001)
            if self.to in DESCRIBED:
                raise OptionError(f"shard_mb has no effect with {self.to}, which copies no records; leave it out")
        if self.splits and self.to == "croissant":
            raise OptionError(
                "splits have no effect with croissant, which describes the complete dataset; leave them out"
            )
        if self.about != About() and self.to not in WITH_ABOUT:
            option = next(name for name, value in vars(self.about).items() if value)
            raise OptionError(f"{option} has no effect with {self.to}, which does not store it; leave it out")
        repeated_splits = [name for index, name in enumerate(self.splits) if name in self.splits[:index]]
        if repeated_splits:
            raise OptionError(f"the split {repeated_splits[0]!r} is given twice; give each split once")


MAX_CHARACTERS = 80  # with its suffix a name fits into the 100 characters of the oldest tar header

_NAME_PART = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
_SAFE_KEY = re.compile(rf"({_NAME_PART}(?:/{_NAME_PART})*)\.(jpg|jpeg|png|bmp|gif|webp|tif|tiff)")
# Names that `safe_name` makes of other keys; a key of this form is treated as unsafe.
_GENERATED = re.compile(r".*(_(jpeg|png|bmp|gif|webp|tif|tiff)|-[0-9a-f]{16})")
# Device names of Windows, where files cannot have these names.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_HASH_DIGITS = 16


def safe_name(key: str) -> str:
    """Returns a unique relative path for a key, without dots, of at most `MAX_CHARACTERS` ASCII characters."""
    match = _SAFE_KEY.fullmatch(key)
    if match and not _GENERATED.fullmatch(match[1]) and not any(map(_DEVICES.fullmatch, match[1].split("/"))):
        name = match[1] if match[2] == "jpg" else f"{match[1]}_{match[2]}"
        if len(name) <= MAX_CHARACTERS:
            return name
    parts = (_UNSAFE.sub("_", part).strip("_-") for part in re.split(r"[/\\]", key))
    readable = "_".join(filter(None, parts))[: MAX_CHARACTERS - _HASH_DIGITS - 1]
    digest = hashlib.sha256(key.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{readable or 'image'}-{digest}"
