"""What nobody but the owner of a dataset knows of it, and its Croissant metadata should say."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Any

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
