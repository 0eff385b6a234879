"""The report of a measurement: text for a terminal, and an HTML page without scripts and external resources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from beam_jobs.common import strings
from beam_jobs.common.html import render_page
from trainer.bench.bottleneck import BATCH, CALL, STEP, TRANSFER, Effect, Figures, Stage, find_bottleneck
from trainer.bench.meter import Cost

_WIDTH = 34  # characters of the column of names


def as_text(figures: Figures) -> str:
    """Returns the tables of stages, totals and ablation, and the sentence about the bottleneck, as text."""
    parts = [_dataset_lines(figures), _stage_lines(figures), _total_lines(figures)]
    if figures.ablation:
        parts.append(_ablation_lines(figures.ablation))
    return "\n\n".join(strings.lines(part) for part in [*parts, _conclusion_lines(figures)])


def title(stage: Stage, figures: Figures) -> str:
    """Returns the name of a stage for the reports."""
    facts = figures.facts
    destination = "a copy in memory" if facts.device.startswith("CPU") else f"to {facts.device}"
    titles = {
        CALL: "call of the ops",
        BATCH: f"batch of {facts.batch_size}",
        TRANSFER: f"transfer, {destination}",
        STEP: f"training step, {stage.name}",
    }
    return titles.get(stage.kind, stage.name)


def totals(figures: Figures) -> list[tuple[str, Cost, str]]:
    """Returns (name, cost, remark) of the pipeline, the limit and the baselines."""
    facts, rate = figures.facts, figures.pipeline.rate
    rows = [("input pipeline", figures.pipeline, f"{figures.efficiency:.0%} of the limit")]
    if figures.trained:
        rows.append((f"with {facts.model}", figures.trained, f"on {facts.device}, input and training together"))
    rows.append(("limit", figures.limit, f"{figures.limit_description} on {strings.plural(facts.cores, 'core')}"))
    baselines = sorted(figures.baselines.items(), key=lambda item: -item[1].rate)
    rows += [(name, cost, f"the input pipeline is {rate / cost.rate:.2f} times as fast") for name, cost in baselines]
    return rows


def _dataset_lines(figures: Figures) -> Iterator[str]:
    facts = figures.facts
    record_size, shards = strings.size(facts.record_bytes), strings.plural(facts.shards, "shard")
    yield f"{facts.dataset}, {facts.split}: {facts.records:,} records of {record_size} in {shards}"
    yield f"{facts.ops}, batches of {facts.batch_size}, {facts.threads} threads on {facts.cores} cores"


def _stage_lines(figures: Figures) -> Iterator[str]:
    yield f"{'each stage alone':<{_WIDTH}} {'images/s':>12} {'CPU us':>10} {'wall us':>10} {'up to here':>12}"
    for stage in figures.stages:
        cumulative_rate = f"{stage.cumulative_rate:>12,.0f}" if stage.cumulative_rate else ""
        name = title(stage, figures)
        line = f"{name:<{_WIDTH}} {stage.cost.rate:>12,.0f} {stage.cost.cpu_us:>10,.1f} {stage.cost.wall_us:>10,.1f}"
        yield f"{line} {cumulative_rate}".rstrip()


def _total_lines(figures: Figures) -> Iterator[str]:
    yield f"{'all together':<{_WIDTH}} {'images/s':>12} {'CPU us':>10}"
    for name, cost, remark in totals(figures):
        yield f"{name:<{_WIDTH}} {cost.rate:>12,.0f} {cost.cpu_us:>10,.1f}   {remark}"


def _ablation_lines(rows: Sequence[Effect]) -> Iterator[str]:
    yield f"{'without':<{_WIDTH}} {'images/s':>12} {'CPU us':>10} {'worth':>8}"
    for row in sorted(rows, key=lambda row: -row.worth):
        note = f"   {row.note}" if row.note else ""
        name = f"{row.name}: {row.without}"
        yield f"{name:<{_WIDTH + 6}} {row.rate:>6,.0f} {row.cpu_us:>10,.1f} {row.worth:>7.2f}x{note}"


def _conclusion_lines(figures: Figures) -> Iterator[str]:
    yield find_bottleneck(figures).sentence
    if figures.disturbed:
        yield (
            f"Other processes used the cores: a bare decode had {figures.limit.cores:.1f} of "
            f"{figures.facts.cores} cores. Rates are too low; CPU times are still correct."
        )
    if not figures.facts.in_memory:
        yield "The shards were not read into memory before measuring, so reading includes the disk or the network."


_TEMPLATES = Path(__file__).parent / "templates"
_WIDTH_FACTOR = 1.06  # width of the chart divided by the length of the longest bar


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar of a chart.

    Attributes:
      name: text beside the bar.
      value: text at the end of the bar.
      remark: text below the name.
      start: position of the left end of the bar, percent of the width of the chart.
      length: length of the bar, percent of the width of the chart.
      color: index of a colour of the style sheet.
    """

    name: str
    value: str
    remark: str = ""
    start: float = 0.0
    length: float = 0.0
    color: int = 0


@dataclass(frozen=True, kw_only=True)
class RateChart:
    """The chart of rates, with a line for the limit.

    Attributes:
      bars: bars of pipeline, training and baselines.
      limit: position of the line, percent of the width of the chart.
      label: text beside the line.
    """

    bars: Sequence[Bar]
    limit: float
    label: str


def as_page(figures: Figures) -> str:
    """Returns the report as an HTML page, in which all names are escaped."""
    values = {
        "figures": figures,
        "facts": figures.facts,
        "bottleneck": find_bottleneck(figures),
        "rates": _rate_chart(figures),
        "shares": _shares(figures),
        "stages": [(title(stage, figures), stage) for stage in figures.stages],
        "totals": totals(figures),
        "ablation": sorted(figures.ablation, key=lambda row: -row.worth),
    }
    return render_page(_TEMPLATES, "bench", values, {"size": strings.size, "plural": strings.plural})


def _rate_chart(figures: Figures) -> RateChart:
    rows = [row for row in totals(figures) if row[1] is not figures.limit]
    # The limit of stored pixels may be so high that all bars would be very short; its line is then outside the chart.
    longest = max(cost.rate for _, cost, _ in rows)
    width = max(longest, figures.limit.rate if figures.limit.rate < 4 * longest else 0) * _WIDTH_FACTOR
    bars = [
        Bar(name=name, value=_rate_text(cost), remark=remark, length=100 * cost.rate / width, color=min(index, 2))
        for index, (name, cost, remark) in enumerate(rows)
    ]
    return RateChart(
        bars=bars,
        limit=100 * figures.limit.rate / width,
        label=f"limit {_rate_text(figures.limit)}: {figures.limit_description}",
    )


def _shares(figures: Figures) -> list[Bar]:
    """Returns adjacent bars: the share of each stage in the summed CPU time of all stages of the input pipeline."""
    stages = [stage for stage in figures.stages if stage.kind not in (TRANSFER, STEP)]
    total = sum(stage.cost.cpu_us for stage in stages) or 1.0
    bars: list[Bar] = []
    start = 0.0
    for stage in stages:
        length = 100 * stage.cost.cpu_us / total
        value = f"{stage.cost.cpu_us:,.1f} us, {length:.0f} %"
        bars.append(Bar(name=title(stage, figures), value=value, start=start, length=length, color=len(bars) % 6))
        start += length
    return bars


def _rate_text(cost: Cost) -> str:
    return f"{cost.rate:,.0f} images/s"
