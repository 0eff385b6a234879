"""Globs: the files that a pattern of paths matches, such as `photos/*/*.jpg` or `s3://bucket/data/**/*.{jpg,png}`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from beam_jobs import storage
from beam_jobs.errors import SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources import walk
from beam_jobs.sources.hidden import OnHidden, ignore
from beam_jobs.sources.patterns import Pattern
from beam_jobs.types import ImageRef, Reject

_SPECIAL = re.compile(r"[*?\[{]")


@dataclass(frozen=True)
class GlobSource:
    """The files that a pattern matches; those that are hidden are passed over unless their part begins with a dot.

    The base is what stands before the first part that is a pattern. Key and uri are relative to it, and the first
    folder below it is the class.

    Attributes:
      path: the pattern.
      columns: with an empty `label` the folders are no classes.
    """

    path: str
    columns: TableColumns

    @property
    def base(self) -> str:
        """Directory that relative uris start from."""
        directory, separator, _ = self._fixed.rpartition("/")
        return directory or separator or "."

    @property
    def label_kind(self) -> str:
        """One class an image, its folder, or none."""
        return "single" if self.columns.label else "none"

    def check(self) -> None:
        """Raises `SourceError` unless there is at least one file that matches and can be used."""
        if not _SPECIAL.search(self.path):
            raise SourceError(f"{self.path} is no pattern; write * for the names that differ, as in photos/*/*.jpg")
        if storage.is_remote(self.path) and not storage.is_remote(self.base):
            raise SourceError(f"{self.path} has a pattern for a bucket; name the bucket")
        if not storage.is_remote(self.base) and not os.path.isdir(self.base):
            raise SourceError(f"{self.path} matches nothing: there is no directory {self.base}")
        usable, reject = walk.first_usable(self.entries())
        if usable:
            return
        if not reject:
            raise SourceError(f"{self.path} matches no file; correct the pattern")
        first = f"{reject.uri}: {reject.reason} ({reject.detail})"
        raise SourceError(
            f"{self.path} matches only files that cannot be used, the first {first}. The class is the first folder "
            "below the part without wildcards, as in photos/*/*.jpg"
        )

    def entries(self, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject a matching file.

        Raises:
          SourceError: a directory cannot be entered or listed.
        """
        below = self.path[self._fixed.rfind("/") + 1 :]
        return walk.entries(self.base, Pattern.parse(below), self.label_kind, on_hidden)

    @property
    def _fixed(self) -> str:
        return _SPECIAL.split(self.path, maxsplit=1)[0]
