"""The limits of the gate, checked when they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from beam_jobs import validate
from beam_jobs.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class GateLimits:
    """What a dataset may be before the pipeline stops.

    Attributes:
      max_anomalies: features that ExampleValidator may find wrong in a split.
      max_leaks: images of one split whose exact copy is in another.
      min_images_per_class: images of every class in the first split.
      allow_missing_classes: whether a class of another split may be absent from the first.

    Raises:
      OptionError: a value is out of range; the message names it and what is allowed.
    """

    max_anomalies: int = 0
    max_leaks: int = 0
    min_images_per_class: int = 1
    allow_missing_classes: bool = False

    def __post_init__(self) -> None:
        for name in ("max_anomalies", "max_leaks", "min_images_per_class"):
            validate.whole(name, getattr(self, name), 0)
        if not isinstance(self.allow_missing_classes, bool):
            raise OptionError(f"allow_missing_classes is {self.allow_missing_classes!r}; it must be true or false")

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; `from_json` takes them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> GateLimits:
        """Builds the limits from `to_json` output.

        Raises:
          OptionError: a value is out of range.
        """
        return cls(**values)
