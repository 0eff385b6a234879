"""Class folders, `ROOT/CLASS/**/image`, and patterns: the first folder is the class, the path the key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from beam_jobs import storage
from beam_jobs.errors import SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources import walk
from beam_jobs.sources.base import printable
from beam_jobs.sources.containers import EVERYTHING, Pattern
from beam_jobs.sources.hidden import OnHidden, ignore, is_hidden
from beam_jobs.types import ImageRef, Reject

_WANTED = "it must hold one folder a class, with the images in them"


@dataclass(frozen=True)
class ClassFolders:
    """A directory tree, local or in an object store; every file is a reference, a reject or hidden.

    Attributes:
      root: directory of the class folders; of object stores, what their names begin with, such as `s3://bucket/photos`.
    """

    root: str

    @property
    def base(self) -> str:
        """Directory that relative uris start from."""
        return self.root

    @property
    def label_kind(self) -> str:
        """Every image has one class, its folder."""
        return "single"

    def check(self) -> None:
        """Raises `SourceError` unless there is at least one class folder with a file in it, and each can be entered."""
        if storage.is_remote(self.root):
            self._check_remote()
            return
        try:
            entries = list(os.scandir(self.root))
        except OSError as error:
            raise SourceError(f"{self.root} cannot be read: {os.strerror(error.errno or 0)}") from error
        classes = [entry for entry in entries if _is_class(entry)]
        if not classes:
            found = "no visible folder" if entries else "nothing"
            raise SourceError(f"{self.root} holds {found}; {_WANTED}")
        root = os.path.realpath(self.root)
        for entry in classes:
            walk.check_enterable(entry.path, root)
        if not any(isinstance(entry, ImageRef) for entry in self.entries()):
            raise SourceError(f"{self.root} has {len(classes)} class folders and no file in any; put the images there")

    def entries(self, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject a file that is not hidden.

        Raises:
          SourceError: a directory cannot be entered or listed.
        """
        return walk.entries(self.root, EVERYTHING, self.label_kind, on_hidden)

    def classes(self) -> tuple[str, ...]:
        """Returns the names of the class folders, those without an image too; object stores have no such folders."""
        if storage.is_remote(self.root):
            return ()
        try:
            with os.scandir(self.root) as entries:
                return tuple(sorted(printable(entry.name) for entry in entries if _is_class(entry)))
        except OSError:  # gone since it was checked; reading the images raises it
            return ()

    def _check_remote(self) -> None:
        usable, reject = walk.first_usable(self.entries())
        if not usable:
            found = "files in no folder only" if reject else "nothing"
            raise SourceError(f"{self.root} holds {found}; {_WANTED}")


def _is_class(entry: os.DirEntry) -> bool:
    return walk.is_dir(entry) and not is_hidden(entry.name)


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
