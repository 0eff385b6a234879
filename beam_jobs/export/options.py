"""Options of an export, checked in the constructor; file names; and the owner's description of a dataset."""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

from beam_jobs import errors
from beam_jobs.errors import OptionError

_URL = re.compile(r"https?://[^\s/]+\S*", re.ASCII)
_SPDX_PAGE = "https://spdx.org/licenses/{}.html"


@dataclass(frozen=True, kw_only=True)
class About:
    """The creators and the licence of a dataset; empty values are unknown and left out.

    Attributes:
      license: URL of the licence, or its SPDX identifier, such as `CC-BY-4.0`.
      creators: names of the people who made the dataset.
      organizations: names of the organisations that made the dataset.
      citation: citation of the dataset, preferably as BibTeX.
      url: web page of the dataset.
      date_published: day of publication, as `2026-01-31`.

    Raises:
      OptionError: a value is not allowed; the message gives the value and what is allowed.
    """

    license: str = ""
    creators: tuple[str, ...] = ()
    organizations: tuple[str, ...] = ()
    citation: str = ""
    url: str = ""
    date_published: str = ""

    def __post_init__(self) -> None:
        if self.license:
            _license_url(self.license)
        if self.url and not _URL.fullmatch(self.url):
            raise OptionError(f"url is {self.url!r}; it must begin with https:// or http:// and have no space")
        if not all(name.strip() for name in (*self.creators, *self.organizations)):
            raise OptionError("a creator is empty; name one, or leave it out")
        if self.date_published:
            _check_day(self.date_published)

    def to_jsonld(self) -> dict[str, Any]:
        """Returns the known properties under their names in schema.org and Croissant."""
        properties = {
            "license": _license_url(self.license) if self.license else "",
            "creator": [*_agents("sc:Person", self.creators), *_agents("sc:Organization", self.organizations)],
            "citeAs": self.citation,
            "url": self.url,
            "datePublished": self.date_published,
        }
        return {name: value for name, value in properties.items() if value}


def _agents(kind: str, names: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"@type": kind, "name": name} for name in names]


def _license_url(name: str) -> str:
    """Returns the URL of a licence; for an SPDX identifier, its page at spdx.org."""
    if _URL.fullmatch(name):
        return name
    from packaging import licenses

    try:
        identifier = str(licenses.canonicalize_license_expression(name))
    except licenses.InvalidLicenseExpression:
        identifier = ""
    if not identifier or " " in identifier or identifier.startswith("LicenseRef-"):
        raise OptionError(
            f"license is {name!r}; it must be the URL of a licence, or an SPDX identifier of "
            "https://spdx.org/licenses, such as CC-BY-4.0"
        )
    return _SPDX_PAGE.format(identifier)


def _check_day(text: str) -> None:
    try:
        datetime.datetime.strptime(text, "%Y-%m-%d")
    except ValueError as error:
        raise OptionError(f"date_published is {text!r}; it must be a day, such as 2026-01-31") from error


STREAMED = ("webdataset", "array_record", "parquet")
DESCRIBED = ("croissant", "dali")  # small files about the dataset, without its records
FORMATS = (*STREAMED, *DESCRIBED)

_MIN_SHARD_MB = 0.001


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of an export.

    Attributes:
      dataset: directory of a published dataset, local or remote.
      to: format, one of `FORMATS`.
      out: directory of the export, new or empty, local or remote; for `croissant` also the dataset itself.
      splits: splits to export, in this order; empty means all. Croissant always describes all splits.
      shard_mb: target size of a file in MB (1e6 bytes) of records; None makes as many files as the dataset has shards.
      about: additional metadata, for `croissant` only.

    Raises:
      OptionError: a value is not allowed; the message gives the value and what is allowed.
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
            errors.check_at_least("shard_mb", self.shard_mb, _MIN_SHARD_MB)
            if self.to in DESCRIBED:
                raise OptionError(f"shard_mb has no effect with {self.to}, which copies no records; leave it out")
        if self.splits and self.to == "croissant":
            raise OptionError(
                "splits have no effect with croissant, which describes the complete dataset; leave them out"
            )
        if self.about != About() and self.to != "croissant":
            option = next(name for name, value in vars(self.about).items() if value)
            raise OptionError(f"{option} has no effect with {self.to}, which does not store it; leave it out")
        duplicates = [name for index, name in enumerate(self.splits) if name in self.splits[:index]]
        if duplicates:
            raise OptionError(f"the split {duplicates[0]!r} is given twice; give each split once")


MAX_CHARACTERS = 80  # with its suffix a name fits into the 100 characters of the oldest tar header

_PART = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
_PLAIN = re.compile(rf"({_PART}(?:/{_PART})*)\.(jpg|jpeg|png|bmp|gif|webp|tif|tiff)")
# Names that the rules for unsafe keys produce; a key of this form is not used as a name.
_GENERATED = re.compile(r".*(_(jpeg|png|bmp|gif|webp|tif|tiff)|-[0-9a-f]{16})")
# Device names of Windows, where files cannot have these names.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_HASH_DIGITS = 16


def safe_name(key: str) -> str:
    """Returns a unique relative path for a key, without dots, of at most `MAX_CHARACTERS` ASCII characters."""
    match = _PLAIN.fullmatch(key)
    if match and not _GENERATED.fullmatch(match[1]) and not any(map(_DEVICES.fullmatch, match[1].split("/"))):
        name = match[1] if match[2] == "jpg" else f"{match[1]}_{match[2]}"
        if len(name) <= MAX_CHARACTERS:
            return name
    parts = (_UNSAFE.sub("_", part).strip("_-") for part in re.split(r"[/\\]", key))
    readable = "_".join(filter(None, parts))[: MAX_CHARACTERS - _HASH_DIGITS - 1]
    digest = hashlib.sha256(key.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{readable or 'image'}-{digest}"
