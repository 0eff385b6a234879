"""Where images come from. A source yields an `ImageRef` an image, or a `Reject`, and holds nothing else in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

from beam_jobs.errors import SourceError
from beam_jobs.options import IngestOptions
from beam_jobs.sources.folders import ClassFolders
from beam_jobs.sources.tables import TABLES
from beam_jobs.types import ImageRef, Reject

_SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


class Source(Protocol):
    """A stream of references."""

    @property
    def base(self) -> str:
        """What relative uris are relative to."""

    def check(self) -> None:
        """Looks at the source cheaply, before anything is written.

        Raises:
          SourceError: it cannot be ingested as it stands.
        """

    def entries(self) -> Iterator[ImageRef | Reject]:
        """Yields every image in a fixed order, so that the same source gives the same work units."""


def open_source(options: IngestOptions) -> Source:
    """Returns the source that the options name, checked.

    Raises:
      SourceError: there is no such source, or it cannot be ingested as it stands.
    """
    kind = options.source_kind if options.source_kind != "auto" else _guess(options.source)
    source: Source
    source = ClassFolders(options.source) if kind == "folder" else TABLES[kind](options.source, options.columns)
    source.check()
    return source


def _guess(path: str) -> str:
    if os.path.isdir(path):
        return "folder"
    wanted = f"a folder with one sub-folder a class, or a table that ends in {', '.join(_SUFFIXES)}"
    if not os.path.isfile(path):
        raise SourceError(f"{path} does not exist; give {wanted}")
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _SUFFIXES:
        raise SourceError(f"{path} is not a source; give {wanted}")
    return _SUFFIXES[suffix]
