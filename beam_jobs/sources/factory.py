"""Which source reads what the options name. A source yields an `ImageRef` or a `Reject` an image, and holds nothing.

The fingerprint is the identity of a source: keys, labels and content. Neither names alone nor times tell whether images
changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from beam_jobs import storage
from beam_jobs.common.system import map_ordered
from beam_jobs.dataset import schemas
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import BadImage, OptionError, SourceError, Unreadable
from beam_jobs.options import IngestOptions, TableColumns
from beam_jobs.sources import row_reader
from beam_jobs.sources.archive import TarSource, ZipSource
from beam_jobs.sources.base import OnHidden, ignore
from beam_jobs.sources.class_folders import ClassFolders, GlobSource
from beam_jobs.sources.coco import CocoSource
from beam_jobs.sources.image_reader import Reader
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
        source: Source = _NAMING[kind](options.source, options.columns, row_reader.allowed_buckets(options))
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


# Touching a file changes nothing; the content hash covers its size; where it lies in an archive says nothing of it.
_TIMES = ("mtime_ns", "bytes", "slice")


def source_fingerprint(options: IngestOptions) -> str:
    """Returns the sha256, in hex, of everything a source says and holds.

    Every file is read once, which costs a small part of what decoding it would. Moving an image to another class,
    renaming it, or editing it under an unchanged size and time each give another fingerprint; touching it does not.

    Raises:
      SourceError: the source cannot be ingested.
      Unreadable: an image may be there and cannot be read, unless `unreadable` is `reject`.
    """
    source = open_source(options)
    hasher = hashlib.sha256()
    base = source.base if storage.is_remote(source.base) else os.path.abspath(source.base)
    reader = Reader(base=base, max_bytes=options.limits.max_bytes, http=options.http)
    describe = partial(_describe, reader=reader, rejecting=options.unreadable == "reject")
    for line in map_ordered(describe, source.entries(), options.thread_count):
        hasher.update(line)
    return hasher.hexdigest()


def dataset_fingerprint(dataset: Manifest) -> str:
    """Returns the sha256, in hex, of everything the manifest of a published dataset says.

    That is the digest of its shards, and what the digest leaves out but gates and reports read: rejects, tables and
    options. Where the dataset lies and when its files were written is no part of it.
    """
    return dataset.to_json()["checksum"]


def _describe(entry: ImageRef | Reject, reader: Reader, rejecting: bool) -> bytes:
    if isinstance(entry, Reject):
        return json.dumps(schemas.reject_row(entry), sort_keys=True).encode()
    row = {name: value for name, value in schemas.ref_row(entry).items() if name not in _TIMES}
    try:
        data = reader.read(entry.uri, entry.slice)
        mask = reader.read(entry.annotations.mask) if entry.annotations and entry.annotations.mask else b""
    except BadImage as bad:
        return json.dumps([row, bad.detail], sort_keys=True).encode()
    except Unreadable as fault:
        if not rejecting:
            raise Unreadable(
                f"{entry.key} cannot be read: {fault}; repair that, or set unreadable to reject"
            ) from fault
        return json.dumps([row, str(fault)], sort_keys=True).encode()
    return json.dumps([row, *(hashlib.sha256(part).hexdigest() for part in (data, mask))], sort_keys=True).encode()
