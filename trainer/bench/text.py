"""The figures as aligned lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from beam_jobs.common import strings
from trainer.bench.bottleneck import find_bottleneck
from trainer.bench.figures import BATCH, CALL, STEP, TRANSFER, Ablated, Figures, Stage
from trainer.bench.meter import Cost

_WIDTH = 34


def report(figures: Figures) -> str:
    """Returns stages, totals, ablation and bottleneck."""
    parts = [_head(figures), _stages(figures), _totals(figures)]
    if figures.ablation:
        parts.append(_ablation(figures.ablation))
    return "\n\n".join(strings.lines(part) for part in [*parts, _conclusion(figures)])


def title(stage: Stage, figures: Figures) -> str:
    """Returns how a stage is called for people."""
    facts = figures.facts
    where = "a copy in memory" if facts.device.startswith("CPU") else f"to {facts.device}"
    titles = {
        CALL: "call of the ops",
        BATCH: f"batch of {facts.batch_size}",
        TRANSFER: f"transfer, {where}",
        STEP: f"training step, {stage.name}",
    }
    return titles.get(stage.kind, stage.name)


def totals(figures: Figures) -> list[tuple[str, Cost, str]]:
    """Returns name, cost and remark of everything that is more than a stage, the pipeline first."""
    facts, rate = figures.facts, figures.pipeline.rate
    cores = "1 core" if facts.cores == 1 else f"{facts.cores} cores"
    rows = [("input pipeline", figures.pipeline, f"{figures.efficiency:.0%} of the limit")]
    if figures.trained:
        rows.append((f"with {facts.model}", figures.trained, f"on {facts.device}, input and training together"))
    rows.append(("limit", figures.limit, f"{figures.limit_is} on {cores}"))
    rows += [
        (name, cost, f"the input pipeline is {rate / cost.rate:.2f} times as fast") for name, cost in _by_rate(figures)
    ]
    return rows


def _by_rate(figures: Figures) -> list[tuple[str, Cost]]:
    return sorted(figures.baselines.items(), key=lambda item: -item[1].rate)


def _head(figures: Figures) -> Iterator[str]:
    facts = figures.facts
    shards = "1 shard" if facts.shards == 1 else f"{facts.shards} shards"
    yield f"{facts.dataset}, {facts.split}: {facts.records:,} records of {facts.record_bytes / 1e3:,.1f} kB in {shards}"
    yield f"{facts.ops}, batches of {facts.batch_size}, {facts.threads} threads on {facts.cores} cores"


def _stages(figures: Figures) -> Iterator[str]:
    yield f"{'each stage alone':<{_WIDTH}} {'images/s':>12} {'CPU us':>10} {'wall us':>10} {'up to here':>12}"
    for stage in figures.stages:
        so_far = f"{stage.so_far:>12,.0f}" if stage.so_far else ""
        name = title(stage, figures)
        line = f"{name:<{_WIDTH}} {stage.cost.rate:>12,.0f} {stage.cost.cpu_us:>10,.1f} {stage.cost.wall_us:>10,.1f}"
        yield f"{line} {so_far}".rstrip()


def _totals(figures: Figures) -> Iterator[str]:
    yield f"{'all together':<{_WIDTH}} {'images/s':>12} {'CPU us':>10}"
    for name, cost, remark in totals(figures):
        yield f"{name:<{_WIDTH}} {cost.rate:>12,.0f} {cost.cpu_us:>10,.1f}   {remark}"


def _ablation(rows: Sequence[Ablated]) -> Iterator[str]:
    yield f"{'without':<{_WIDTH}} {'images/s':>12} {'CPU us':>10} {'worth':>8}"
    for row in sorted(rows, key=lambda row: -row.worth):
        note = f"   {row.note}" if row.note else ""
        name = f"{row.name}: {row.without}"
        yield f"{name:<{_WIDTH + 6}} {row.rate:>6,.0f} {row.cpu_us:>10,.1f} {row.worth:>7.2f}x{note}"


def _conclusion(figures: Figures) -> Iterator[str]:
    yield find_bottleneck(figures).sentence
    if figures.disturbed:
        yield (
            f"Other processes took part of the machine: a bare decode had {figures.limit.cores:.1f} of "
            f"{figures.facts.cores} cores. Rates are too low; CPU times hold."
        )
    if not figures.facts.in_memory:
        yield "The shards were not read into memory before, so reading includes the disk or the network."
