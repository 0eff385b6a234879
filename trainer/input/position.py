"""The position at which an input pipeline starts, and the host that reads a part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from beam_jobs import errors
from beam_jobs.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class Position:
    """The first record not yet delivered: the complete state of an input pipeline, the same on every host.

    Examples:
      >>> from trainer import Position
      >>> Position.after(records=1250 * 64, epoch_records=32_000)
      Position(epoch=2, records=16000)

    Attributes:
      epoch: number of complete passes over the split, at least 0.
      records: number of records of the next pass that all hosts together have delivered, at least 0.

    Raises:
      OptionError: a number is below 0.
    """

    epoch: int = 0
    records: int = 0

    def __post_init__(self) -> None:
        errors.check_whole("epoch", self.epoch, 0)
        errors.check_whole("records", self.records, 0)

    @classmethod
    def after(cls, records: int, epoch_records: int) -> Position:
        """Returns the position after a number of records since the beginning, over all hosts.

        Args:
          records: number of delivered records, such as steps x global batch size.
          epoch_records: number of records in one pass.
        """
        return cls(epoch=records // epoch_records, records=records % epoch_records)

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Position:
        """Builds a position from `to_json` output."""
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Host:
    """One of several machines that read a split together.

    Examples:
      >>> from trainer import Host, InputOptions, make_dataset
      >>> options = InputOptions(image_side_px=32, batch_size=8)
      >>> part = make_dataset("dataset", "train", options, training=True, host=Host(index=1, count=2))
      >>> next(iter(part))[1].shape
      TensorShape([4])

    Attributes:
      index: number of the host, from 0.
      count: number of hosts, at least 1.
      runs_python: whether the pipeline runs in this process; False for hosts that another process controls, such
        as a slice of TPUs; their pipelines cannot run Python code.

    Raises:
      OptionError: a number is out of range.
    """

    index: int = 0
    count: int = 1
    runs_python: bool = True

    def __post_init__(self) -> None:
        errors.check_whole("host count", self.count, 1)
        errors.check_whole("host index", self.index, 0)
        if self.index >= self.count:
            raise OptionError(f"host index is {self.index}; with {self.count} hosts it must be below {self.count}")
