"""How far a training has come: everything of it that is not a variable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

DIVERGED_NAME = "assets.extra/diverged.txt"  # beside an exported model, which is then not to be pushed


@dataclass(kw_only=True)
class Progress:
    """The state of a training between two steps. Callbacks change it, checkpoints hold it.

    Examples:
      >>> from trainer import Progress
      >>> progress = Progress()
      >>> progress.add_epoch({"loss": 0.7, "val_accuracy": 0.9})
      >>> progress.history
      {'loss': [0.7], 'val_accuracy': [0.9]}

    Attributes:
      step: steps done.
      history: figure -> its value at the end of each epoch.
      best: the best value of the monitored figure; None before the first.
      best_epoch: the epoch it is of, from 0.
      stale: epochs since then.
      stopped: early stopping has ended the training.
      diverged: when the loss stopped being a number, in words; empty when it did not.
      train_seconds: seconds that the steps of the epoch under way took.
      counted_seconds: seconds of those that `waited_seconds` is a share of: without first executions, which compile.
      waited_seconds: seconds that those steps waited for input.
    """

    step: int = 0
    history: dict[str, list[float]] = field(default_factory=dict)
    best: float | None = None
    best_epoch: int = 0
    stale: int = 0
    stopped: bool = False
    diverged: str = ""
    train_seconds: float = 0.0
    counted_seconds: float = 0.0
    waited_seconds: float = 0.0

    def add_epoch(self, logs: Mapping[str, float]) -> None:
        """Adds the figures of a finished epoch to the history."""
        for name, value in logs.items():
            self.history.setdefault(name, []).append(float(value))

    def begin_epoch(self) -> None:
        """Sets the clocks of an epoch to zero."""
        self.train_seconds = self.counted_seconds = self.waited_seconds = 0.0

    @property
    def input_wait(self) -> float:
        """Share of the time of the steps that went into waiting for input, 0 to 1."""
        return min(1.0, self.waited_seconds / self.counted_seconds) if self.counted_seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; `from_json` takes them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        """Builds the state from `to_json` output."""
        return cls(**values)
