"""What the gate has to say: findings, comparisons and notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_MOST = 5


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One crossed limit.

    Attributes:
      check: name of the check.
      split: where.
      feature: what.
      value: what was found.
      limit: what is allowed.
      remedy: what to do.
    """

    check: str
    split: str
    feature: str
    value: str
    limit: str
    remedy: str

    def __str__(self) -> str:
        """Returns the finding as one sentence."""
        return f"{self.check}: {self.feature} in {self.split}: {self.value}; allowed: {self.limit}; {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One measured difference, within its limit or not.

    Attributes:
      kind: `drift` from the dataset before, or `skew` between splits.
      baseline: what was compared with: `span 3`, `dataset 0123abcd`, or the first split.
      split: what was compared.
      feature: such as `image/brightness`.
      measure: `l_infinity` or `jensen_shannon`.
      value: 0-1.
      limit: over which it is a finding, 0-1: the limit of the settings and `sampling` together, at most 1.
      sampling: what sampling alone would give, 0-1.
    """

    kind: str
    baseline: str
    split: str
    feature: str
    measure: str
    value: float
    limit: float
    sampling: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the limit is crossed."""
        return self.value > self.limit


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Everything that was found.

    Attributes:
      findings: crossed limits; empty when the dataset may pass.
      comparisons: drift and skew, measured.
      notes: one line for each check that could not look, and why.
    """

    findings: tuple[Finding, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]


def some(names: Iterable[str], most: int = _MOST) -> str:
    """Returns the first names, and how many more there are."""
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
