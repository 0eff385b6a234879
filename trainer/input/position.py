"""Where in the endless order of a training an input pipeline starts, and which part of it one host reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from beam_jobs import errors
from beam_jobs.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class Position:
    """The first record not yet delivered. It is the whole state of an input pipeline: two numbers, on any host.

    Examples:
      >>> from trainer import Position
      >>> Position.after(records=1250 * 64, epoch_records=32_000)
      Position(epoch=2, records=16000)

    Attributes:
      epoch: passes over the split that are complete.
      records: records of the next pass that all hosts together have delivered.

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
        """Returns the position after so many records since the beginning, over all hosts.

        Args:
          records: what was delivered, such as steps x global batch size.
          epoch_records: records in one pass.
        """
        return cls(epoch=records // epoch_records, records=records % epoch_records)

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; `from_json` takes them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Position:
        """Builds a position from `to_json` output."""
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Host:
    """One of the machines that read a split together.

    Examples:
      >>> from trainer import Host, InputOptions, make_dataset
      >>> options = InputOptions(image_side_px=32, batch_size=8)
      >>> part = make_dataset("dataset", "train", options, training=True, host=Host(index=1, count=2))
      >>> next(iter(part))[1].shape
      TensorShape([4])

    Attributes:
      index: its number, from 0.
      count: how many there are.

    Raises:
      OptionError: there is no such host.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        errors.check_whole("host count", self.count, 1)
        errors.check_whole("host index", self.index, 0)
        if self.index >= self.count:
            raise OptionError(f"host index is {self.index}; of {self.count} hosts it must be below {self.count}")
