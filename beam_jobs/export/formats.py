"""What a format that copies records must say of itself, and the list of those formats."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from beam_jobs.export.samples import Sample
from beam_jobs.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """One file of an export.

    Attributes:
      name: relative to the export.
      samples: records in it.
      bytes: size of the file.
    """

    name: str
    samples: int
    bytes: int


class Shard(Protocol):
    """A file that is being written."""

    def write(self, sample: Sample) -> None:
        """Takes one sample."""


class Format(Protocol):
    """A format; made of the directory of a dataset and its manifest."""

    def file_name(self, split: str, index: int, count: int) -> str:
        """Returns the name of file `index` of `count`, relative to the export."""

    def open(self, path: str) -> AbstractContextManager[Shard]:
        """Writes a file that is complete under its name when the block ends, or not there."""

    def beside(self, files: Mapping[str, tuple[ExportedFile, ...]]) -> dict[str, bytes]:
        """Returns name -> content of the small files that readers of the format look for; `files` by split."""


def make(name: str, directory: str, dataset: Manifest) -> Format:
    """Returns a format; of all of them, its libraries alone are imported.

    Raises:
      OptionError: a package that it needs is not installed.
    """
    if name == "webdataset":
        from beam_jobs.export.webdataset import WebDataset

        return WebDataset(directory, dataset)
    if name == "array_record":
        from beam_jobs.export.array_record import ArrayRecord

        return ArrayRecord(directory, dataset)
    from beam_jobs.export.parquet import Parquet

    return Parquet(directory, dataset)
