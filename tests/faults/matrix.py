"""The fault matrix: what was broken, how often, and how often something hung, got lost or came out wrong.

A test asks the fixture `fault` for a row, breaks things, and says of each try how it went. A row that is not all zeros
fails its test. The rows of a run are printed at its end, with what could not be tried on this machine and how long it
all took; `python -m tests.faults.page` puts those of a full run into the docs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# Groups in the order of the page; a row of any other group is refused.
GROUPS = {
    "kills": "Processes that are killed",
    "disk": "Disks",
    "bytes": "Torn and flipped bytes",
    "trees": "File trees",
    "archives": "Archives",
    "tables": "Tables",
    "images": "Images",
    "network": "Network",
    "untrusted": "Untrusted names and values",
    "fuzz": "Random input",
}
# Form -> the minutes that all of it may take on two cores; a run that takes longer says so.
MINUTES = {"full": 20, "short": 5}
_HEAD = ("fault", "tries", "hangs", "losses", "wrong bytes", "what happens")


@dataclass
class Row:
    """One fault.

    Attributes:
      group: key of `GROUPS`.
      fault: what is broken, in a few words.
      outcome: what the user gets, in a few words.
      tries: how often it was broken.
      hangs: tries that did not end in time.
      losses: tries after which something was neither in the dataset nor among the rejects, or damage was not noticed.
      wrong: tries after which bytes differ from those of a run in peace, or something else than data came through.
      failures: a line for each try that went wrong.
    """

    group: str
    fault: str
    outcome: str
    tries: int = 0
    hangs: int = 0
    losses: int = 0
    wrong: int = 0
    failures: list[str] = field(default_factory=list)

    def tried(self, about: str, *, hang: bool = False, lost: bool = False, wrong: bool = False) -> None:
        """Counts a try.

        Args:
          about: names the try in the message of a failure.
          hang: whether it did not end in time.
          lost: whether something got lost, see `losses`.
          wrong: whether something is wrong, see `wrong`.
        """
        self.tries += 1
        self.hangs += hang
        self.losses += lost
        self.wrong += wrong
        names = [name for name, value in (("hang", hang), ("loss", lost), ("wrong bytes", wrong)) if value]
        if names:
            self.failures.append(f"{about}: {', '.join(names)}")

    def verdict(self) -> str:
        """Returns why the row fails its test; empty when it does not."""
        if not self.tries:
            return f"{self.fault}: nothing was tried"
        return "\n".join([f"{self.fault}:", *self.failures]) if self.failures else ""

    def to_json(self) -> dict[str, Any]:
        """Returns what the page needs."""
        return {name: value for name, value in asdict(self).items() if name != "failures"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of the tests.

    Attributes:
      form: key of `MINUTES`.
      whole: whether all tests of `tests/faults` were run, or skipped for a reason.
      passed: whether none failed.
      seconds: that it took.
      rows: of the matrix, in its order.
      skipped: test -> why it was not tried.
    """

    form: str
    whole: bool
    passed: bool
    seconds: float
    rows: tuple[Row, ...]
    skipped: dict[str, str]

    def problem(self) -> str:
        """Returns why it is not for the page; empty when it is."""
        if self.form != "full":
            return f"the last run was of the {self.form} form"
        if not self.whole:
            return "the last run left tests out"
        return "" if self.passed else "the last run failed"

    def summary(self) -> list[str]:
        """Returns the lines below the matrix: what was not tried, and how long it took."""
        lines = [f"not tried: {reason} ({test})" for test, reason in sorted(self.skipped.items())]
        lines.append(f"{self.form} form, {self.seconds:,.0f} seconds")
        if self.seconds > 60 * MINUTES[self.form]:
            lines.append(f"that is more than the {MINUTES[self.form]} minutes of the {self.form} form")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Returns what the page needs."""
        return {**vars(self), "rows": [row.to_json() for row in self.rows]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Run:
        """Returns the run that `to_json` told of."""
        return cls(**{**values, "rows": tuple(merged(values["rows"]))})


def merged(rows: Iterable[dict[str, Any]]) -> list[Row]:
    """Returns the rows in the order of the page; those of one fault, of several tests, are added up."""
    found: dict[tuple[str, str], Row] = {}
    for values in rows:
        row = found.setdefault(
            (values["group"], values["fault"]), Row(values["group"], values["fault"], values["outcome"])
        )
        for name in ("tries", "hangs", "losses", "wrong"):
            setattr(row, name, getattr(row, name) + values[name])
    order = list(GROUPS)
    return sorted(found.values(), key=lambda row: order.index(row.group))


def markdown(rows: Sequence[Row]) -> str:
    """Returns a table a group, each below its title."""
    parts = []
    for group, title in GROUPS.items():
        cells = [_cells(row) for row in rows if row.group == group]
        if cells:
            lines = [_HEAD, tuple("---" if place in (0, 5) else "---:" for place in range(6)), *cells]
            parts.append("\n".join([f"### {title}", "", *(f"| {' | '.join(line)} |" for line in lines)]))
    total = [sum(getattr(row, name) for row in rows) for name in ("tries", "hangs", "losses", "wrong")]
    counts = "{:,} tries, {:,} hangs, {:,} losses, {:,} with wrong bytes".format(*total)
    return "\n\n".join([f"{len(rows)} faults, {counts}.", *parts])


def _cells(row: Row) -> tuple[str, ...]:
    return (row.fault, f"{row.tries:,}", str(row.hangs), str(row.losses), str(row.wrong), row.outcome)
