"""Which source reads what the options name. A source yields an `ImageRef` or a `Reject` an image, and holds nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Protocol

from beam_jobs import storage
from beam_jobs.errors import OptionError, SourceError
from beam_jobs.options import IngestOptions, TableColumns
from beam_jobs.sources import allowed_buckets
from beam_jobs.sources.archive import TarSource, ZipSource
from beam_jobs.sources.class_folders import ClassFolders, GlobSource
from beam_jobs.sources.coco import CocoSource
from beam_jobs.sources.hidden import OnHidden, ignore
from beam_jobs.sources.table import TABLES, Table
from beam_jobs.sources.tfds import TfdsSource
from beam_jobs.sources.tfrecord import TfrecordSource
from beam_jobs.types import ImageRef, Reject

_TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".json": "coco",
    **dict.fromkeys(_TAR_SUFFIXES, "tar"),
    ".zip": "zip",
    ".tfrecord": "tfrecord",
    ".tfrecord.gz": "tfrecord",
    ".tfrecords": "tfrecord",
}
_GLOB = "*?[{"


class Source(Protocol):
    """A stream of references."""

    @property
    def base(self) -> str:
        """What relative uris are relative to."""

    @property
    def label_kind(self) -> str:
        """What it says of the class of an image, one of `types.LABEL_KINDS`."""

    def check(self) -> None:
        """Looks at the source cheaply, before anything is written.

        Raises:
          SourceError: it cannot be ingested as it stands.
        """

    def entries(self, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields every image in a fixed order, so that the same source gives the same work units.

        Args:
          on_hidden: takes the names that are passed over because they are hidden.
        """


_KINDS: dict[str, Callable[[str, TableColumns], Source]] = {
    "folder": lambda path, _: ClassFolders(path),
    "glob": GlobSource,
    "tar": TarSource,
    "zip": ZipSource,
    "tfrecord": TfrecordSource,
    "tfds": TfdsSource,
}

# Their rows name images that may lie anywhere.
_NAMING: dict[str, type[Table] | type[CocoSource]] = {**TABLES, "coco": CocoSource}


def open_source(options: IngestOptions) -> Source:
    """Returns the source that the options name, checked.

    Raises:
      SourceError: there is no such source, or it cannot be ingested as it stands.
    """
    kind = options.source_kind if options.source_kind != "auto" else guess_kind(options.source)
    _check_columns(kind, options)
    if kind in _NAMING:
        source: Source = _NAMING[kind](options.source, options.columns, allowed_buckets.allowed(options))
    else:
        source = _KINDS[kind](options.source, options.columns)
    source.check()
    return source


def _check_columns(kind: str, options: IngestOptions) -> None:
    """Raises `OptionError` for columns that a source without any would pass over in silence."""
    if kind not in ("folder", "glob"):
        return
    given, usual = vars(options.columns), vars(TableColumns())
    named = [name for name in given if given[name] != usual[name] and (kind, name) != ("glob", "label")]
    if named:
        raise OptionError(
            f"columns.{named[0]} is {given[named[0]]!r}, but {options.source} is a {kind} and has no columns"
        )


def guess_kind(path: str) -> str:
    """Returns what kind of source a path is, by what is there and by its name.

    Raises:
      SourceError: there is nothing, or it is not a source.
    """
    if os.path.isdir(path):
        return "tfds" if os.path.isfile(os.path.join(path, "features.json")) else "folder"
    known = _by_suffix(path)
    if known and (storage.is_remote(path) or os.path.isfile(path) or any(sign in path for sign in _GLOB)):
        return known
    if any(sign in path for sign in _GLOB):
        return "glob"
    if storage.is_remote(path):
        return "folder"
    wanted = f"a folder with one sub-folder a class, a glob, or a file that ends in {', '.join(_SUFFIXES)}"
    if not os.path.isfile(path):
        raise SourceError(f"{path} does not exist; give {wanted}")
    raise SourceError(f"{path} is not a source; give {wanted}")


def _by_suffix(path: str) -> str:
    """Returns the kind that the end of a name stands for; empty for none. `-00000-of-00016` counts for nothing."""
    name = path.rpartition("/")[2].lower()
    stem = name.partition("-of-")[0].rpartition("-")[0] if "-of-" in name else name
    for suffix, kind in _SUFFIXES.items():
        if name.endswith(suffix) or (kind == "tfrecord" and stem.endswith(suffix)):
            return kind
    return ""
