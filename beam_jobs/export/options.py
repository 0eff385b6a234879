"""Options of an export, checked when they are made; names of files; what a description says about a dataset."""

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
    """Who made a dataset and what one may do with it; empty is unknown, and left out.

    Attributes:
      license: URL of the licence, or its SPDX identifier, such as `CC-BY-4.0`.
      creators: names of the people who made it.
      organizations: names of the organisations that made it.
      citation: how to cite it, best as BibTeX.
      url: its page on the web.
      date_published: day on which it was published, as `2026-01-31`.

    Raises:
      OptionError: a value is not of that form; the message names it and what is allowed.
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
            raise OptionError(f"url is {self.url!r}; it must begin with https:// or http:// and hold no blank")
        if not all(name.strip() for name in (*self.creators, *self.organizations)):
            raise OptionError("a creator is empty; name one, or leave it out")
        if self.date_published:
            _check_day(self.date_published)

    def to_jsonld(self) -> dict[str, Any]:
        """Returns the properties that are known, as schema.org and Croissant name them."""
        found = {
            "license": _license_url(self.license) if self.license else "",
            "creator": [*_named("sc:Person", self.creators), *_named("sc:Organization", self.organizations)],
            "citeAs": self.citation,
            "url": self.url,
            "datePublished": self.date_published,
        }
        return {name: value for name, value in found.items() if value}


def _named(kind: str, names: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"@type": kind, "name": name} for name in names]


def _license_url(name: str) -> str:
    """Returns the URL of a licence; that of an SPDX identifier is its page there."""
    if _URL.fullmatch(name):
        return name
    from packaging import licenses

    try:
        found = str(licenses.canonicalize_license_expression(name))
    except licenses.InvalidLicenseExpression:
        found = ""
    if not found or " " in found or found.startswith("LicenseRef-"):
        raise OptionError(
            f"license is {name!r}; it must be the URL of a licence, or one SPDX identifier of "
            "https://spdx.org/licenses, such as CC-BY-4.0"
        )
    return _SPDX_PAGE.format(found)


def _check_day(text: str) -> None:
    try:
        datetime.datetime.strptime(text, "%Y-%m-%d")
    except ValueError as error:
        raise OptionError(f"date_published is {text!r}; it must be a day, such as 2026-01-31") from error


STREAMED = ("webdataset", "array_record", "parquet")
DESCRIBED = ("croissant", "dali")  # small files about the dataset; its records stay where they are
FORMATS = (*STREAMED, *DESCRIBED)

_LEAST_MB = 0.001


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """One export: of what, to which format, where to.

    Attributes:
      dataset: directory of a published dataset, local or remote.
      to: one of `FORMATS`.
      out: directory that becomes the export, new or empty, local or remote; of `croissant` also the dataset itself.
      splits: splits to export, in this order; all when empty. Croissant describes all of them.
      shard_mb: aimed size of a file in MB (1e6 bytes) of records; None makes as many files as the dataset has shards.
      about: what Croissant metadata says besides; of `croissant` alone.

    Raises:
      OptionError: a value is not allowed; the message names it and what is.
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
            errors.check_at_least("shard_mb", self.shard_mb, _LEAST_MB)
            if self.to in DESCRIBED:
                raise OptionError(f"shard_mb is of no use to {self.to}, which copies no records; leave it out")
        if self.splits and self.to == "croissant":
            raise OptionError("splits are of no use to croissant, which describes the whole dataset; leave them out")
        if self.about != About() and self.to != "croissant":
            given = next(name for name, value in vars(self.about).items() if value)
            raise OptionError(f"{given} is of no use to {self.to}, which has no place for it; leave it out")
        twice = [name for place, name in enumerate(self.splits) if name in self.splits[:place]]
        if twice:
            raise OptionError(f"the split {twice[0]!r} is named twice; name each once")


MAX_CHARACTERS = 80  # with its ending it fits into the 100 of the oldest tar header

_PART = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
_PLAIN = re.compile(rf"({_PART}(?:/{_PART})*)\.(jpg|jpeg|png|bmp|gif|webp|tif|tiff)")
# What the other rules make; a plain name must never look like it.
_MADE = re.compile(r".*(_(jpeg|png|bmp|gif|webp|tif|tiff)|-[0-9a-f]{16})")
# Devices of Windows, which cannot be unpacked there.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_HASH_DIGITS = 16


def safe_name(key: str) -> str:
    """Returns a relative path without dots, of at most `MAX_CHARACTERS` ASCII characters; two keys never share one."""
    found = _PLAIN.fullmatch(key)
    if found and not _made(found[1]) and not any(map(_DEVICES.fullmatch, found[1].split("/"))):
        name = found[1] if found[2] == "jpg" else f"{found[1]}_{found[2]}"
        if len(name) <= MAX_CHARACTERS:
            return name
    parts = (_UNSAFE.sub("_", part).strip("_-") for part in re.split(r"[/\\]", key))
    harmless = "_".join(filter(None, parts))[: MAX_CHARACTERS - _HASH_DIGITS - 1]
    digest = hashlib.sha256(key.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{harmless or 'image'}-{digest}"


def _made(stem: str) -> bool:
    return bool(_MADE.fullmatch(stem))
