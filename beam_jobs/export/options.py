"""Options of an export, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field

from beam_jobs.common import validate
from beam_jobs.errors import OptionError
from beam_jobs.export.about import About

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
        validate.choice("to", self.to, FORMATS)
        if self.shard_mb is not None:
            validate.at_least("shard_mb", self.shard_mb, _LEAST_MB)
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
