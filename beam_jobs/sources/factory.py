"""Opens the source of an ingest. A source yields a reference (`ImageRef`) or a `Reject` for each image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from beam_jobs.errors import OptionError
from beam_jobs.options import IngestOptions, TableColumns
from beam_jobs.rejects import Reject
from beam_jobs.sources import row_reader
from beam_jobs.sources.archive import TarSource, ZipSource
from beam_jobs.sources.base import OnHidden, ignore
from beam_jobs.sources.class_folders import ClassFolders, GlobSource
from beam_jobs.sources.coco import CocoSource
from beam_jobs.sources.containers import guess_kind
from beam_jobs.sources.table import TABLES, Table
from beam_jobs.sources.tfds import TfdsSource
from beam_jobs.sources.tfrecord import ExampleSource, TfrecordSource
from beam_jobs.types import ImageRef


class Source(Protocol):
    """The images of an ingest, as references."""

    @property
    def base(self) -> str:
        """Directory that relative uris start from."""

    @property
    def label_kind(self) -> str:
        """Kind of the labels, one of `types.LABEL_KINDS`."""

    def check(self) -> None:
        """Checks the source quickly, before anything is written.

        Raises:
          SourceError: the source cannot be ingested.
        """

    def entries(self, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields every image in a fixed order, so that a repeated ingest has the same units of work.

        Args:
          on_hidden: called with each path that is skipped because it is hidden.
        """


_KINDS: dict[str, Callable[[str, TableColumns], Source]] = {
    "folder": lambda path, _: ClassFolders(path),
    "glob": GlobSource,
    "tar": TarSource,
    "zip": ZipSource,
    "tfrecord": TfrecordSource,
    "tfds": TfdsSource,
}

# Sources whose rows name images by path or URL, in any directory or bucket.
_TABLE_KINDS: dict[str, type[Table] | type[CocoSource]] = {**TABLES, "coco": CocoSource}


def open_source(options: IngestOptions, on_cluster: Callable[[], bool] = lambda: False) -> Source:
    """Returns the source of the options, after its `check`.

    Args:
      options: options of the ingest.
      on_cluster: returns whether workers of a cluster read the images; called only for sources that may be too large.

    Raises:
      SourceError: the source does not exist or cannot be ingested.
      OptionError: an option does not fit the source, or the source is too large for the workers of a cluster.
    """
    kind = options.source_kind if options.source_kind != "auto" else guess_kind(options.source)
    _check_columns(kind, options)
    if kind in _TABLE_KINDS:
        source: Source = _TABLE_KINDS[kind](options.source, options.columns, row_reader.allowed_buckets(options))
    else:
        source = _KINDS[kind](options.source, options.columns)
    if isinstance(source, (TarSource, ExampleSource)) and on_cluster():
        source.check_for_workers()
    source.check()
    return source


def _check_columns(kind: str, options: IngestOptions) -> None:
    """Raises `OptionError` for columns that a source without columns would ignore silently; a glob only has `label`."""
    if kind not in ("folder", "glob"):
        return
    values, defaults = vars(options.columns), vars(TableColumns())
    ignored = [name for name in values if values[name] != defaults[name] and (kind, name) != ("glob", "label")]
    if ignored:
        raise OptionError(
            f"columns.{ignored[0]} is {values[ignored[0]]!r}, but {options.source} is a {kind} and has no columns"
        )
