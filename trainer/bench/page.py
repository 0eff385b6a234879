"""The figures as one HTML file that loads and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from beam_jobs.common.html import render_page
from trainer.bench.bottleneck import find_bottleneck
from trainer.bench.figures import STEP, TRANSFER, Figures
from trainer.bench.meter import Cost
from trainer.bench.text import title, totals

_TEMPLATES = Path(__file__).parent / "templates"
_ROOM = 1.06  # right of the longest bar


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar.

    Attributes:
      name: beside it.
      value: at its end.
      remark: below the name.
      start: where it begins, as a percentage of the width.
      length: how long it is, likewise.
      color: number of a colour of the page.
    """

    name: str
    value: str
    remark: str = ""
    start: float = 0.0
    length: float = 0.0
    color: int = 0


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The chart of rates.

    Attributes:
      bars: pipeline, with model, baselines.
      limit: place of the line, as a percentage of the width.
      label: beside the line.
    """

    bars: Sequence[Bar]
    limit: float
    label: str


def render(figures: Figures) -> str:
    """Returns the page. Every name in it comes from outside and is escaped."""
    values = {
        "figures": figures,
        "facts": figures.facts,
        "bottleneck": find_bottleneck(figures),
        "rates": _rates(figures),
        "shares": _shares(figures),
        "stages": [(title(stage, figures), stage) for stage in figures.stages],
        "totals": totals(figures),
        "ablation": sorted(figures.ablation, key=lambda row: -row.worth),
    }
    return render_page(_TEMPLATES, "bench", values)


def _rates(figures: Figures) -> Rates:
    rows = [(name, cost, remark) for name, cost, remark in totals(figures) if cost is not figures.limit]
    # The limit of stored pixels is so far away that the bars would look alike: then its line stays outside.
    longest = max(cost.rate for _, cost, _ in rows)
    width = max(longest, figures.limit.rate if figures.limit.rate < 4 * longest else 0) * _ROOM
    bars = [
        Bar(name=name, value=_number(cost), remark=remark, length=100 * cost.rate / width, color=min(place, 2))
        for place, (name, cost, remark) in enumerate(rows)
    ]
    return Rates(
        bars=bars,
        limit=100 * figures.limit.rate / width,
        label=f"limit {_number(figures.limit)}: {figures.limit_is}",
    )


def _shares(figures: Figures) -> list[Bar]:
    """Returns where the CPU time of an image goes in the input pipeline, part behind part."""
    whole = figures.parts_cpu_us or 1.0
    bars: list[Bar] = []
    start = 0.0
    for stage in figures.stages:
        if stage.kind in (TRANSFER, STEP):
            continue
        length = 100 * stage.cost.cpu_us / whole
        value = f"{stage.cost.cpu_us:,.1f} us, {length:.0f} %"
        color = len(bars) % 6
        bars.append(Bar(name=title(stage, figures), value=value, start=start, length=length, color=color))
        start += length
    return bars


def _number(cost: Cost) -> str:
    return f"{cost.rate:,.0f} images/s"
