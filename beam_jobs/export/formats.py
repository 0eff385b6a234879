"""The interface of a format that copies records."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from beam_jobs.export.samples import Sample


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
