"""The dataset card, what the gate found, and the run: what identifies a dataset and a model, and what shaped them.

Of the run: how long each component took, and which artifact came from which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from beam_jobs.common.strings import plural
from beam_jobs.dataset import lookup
from beam_jobs.dataset.lookup import Leak
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.types import LABEL_KINDS
from components.dataset_gate.limits import Comparison, Finding
from components.dataset_report import ArtifactDetail, RunDetails, shown

_MOST_SPLITS = 50
_MOST_CHARACTERS = 1000  # of a warning, which may name several columns or classes


@dataclass(frozen=True, kw_only=True)
class SplitRow:
    """One split.

    Attributes:
      name: of the split.
      images: in it.
      share: of all written images, 0-1.
      classes: that it has images of.
      shards: files.
      bytes: of all files.
    """

    name: str
    images: int
    share: float
    classes: int
    shards: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Channel:
    """Mean and standard deviation of a channel of the first split, 0-255."""

    name: str
    mean: float
    std: float


@dataclass(frozen=True, kw_only=True)
class Card:
    """The card.

    Attributes:
      source: what the dataset was made of.
      digest: identity of its content.
      facts: name and value of what a reader asks first.
      options: name and value of everything that shaped it.
      versions: package and version that wrote it.
      splits: one row a split.
      channels: red, green and blue; empty when they were not measured.
      channel_split: the split that they describe.
      warnings: what the ingest warned of.
    """

    source: str
    digest: str
    facts: Sequence[tuple[str, str]]
    options: Sequence[tuple[str, str]]
    versions: Sequence[tuple[str, str]]
    splits: Sequence[SplitRow]
    channels: Sequence[Channel]
    channel_split: str
    warnings: Sequence[str]


def card(dataset: Manifest, crossing: Sequence[Leak]) -> Card:
    """Returns the card of a dataset, given the sets of images that lie in several splits of it."""
    counts, channels = dataset.counts, dataset.channels
    warnings = [*dataset.warnings[:_MOST_SPLITS], *([lookup.leak_sentence(crossing)] if crossing else [])]
    facts = [
        ("Content", dataset.digest),
        ("Labels", f"{LABEL_KINDS[dataset.label_kind]}, {plural(len(dataset.labels), 'class', 'classes')}"),
        ("Found", plural(counts.found, "image")),
        ("Written", plural(counts.written, "image")),
        ("Rejected", plural(counts.rejected, "image")),
        ("Hidden", dataset.remarks.hidden_text),
        ("Dropped", plural(counts.dropped, "image")),
        ("Re-encoded", ", ".join(f"{count:,} {reason}" for reason, count in counts.normalised.items()) or "none"),
        ("Options", dataset.options_digest),
        ("Format", f"version {dataset.format_version}"),
    ]
    return Card(
        source=shown.place(dataset.source, 100),
        digest=dataset.digest,
        facts=[(name, shown.text(value, 400)) for name, value in facts if value],
        options=[(name, shown.text(value)) for name, value in _flat(dataset.options)],
        versions=[(shown.text(name), shown.text(value)) for name, value in dataset.producer.items()],
        splits=_splits(dataset),
        channels=[
            Channel(name=name, mean=mean, std=std)
            for name, mean, std in zip(("Red", "Green", "Blue"), channels.mean_rgb, channels.std_rgb, strict=True)
        ]
        if channels
        else (),
        channel_split=channels.split if channels else "",
        warnings=[shown.text(line, _MOST_CHARACTERS) for line in warnings],
    )


def _splits(dataset: Manifest) -> list[SplitRow]:
    return [
        SplitRow(
            name=name,
            images=info.records,
            share=info.records / max(1, dataset.counts.written),
            classes=len(info.classes),
            shards=len(info.shards),
            bytes=info.bytes,
        )
        for name, info in list(dataset.splits.items())[:_MOST_SPLITS]
    ]


def _flat(options: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    """Yields dotted name and text of every option that holds something."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{where}{name}.")
        elif name == "splits":
            yield name, ", ".join(f"{split} {share:g}" for split, share in value)
        elif value not in ("", [], None):
            yield where + name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


_MOST_FINDINGS = 50
_LONGEST = 240
_MOST_COMPARISONS = 200
_MEASURES = {"l_infinity": "L-infinity", "jensen_shannon": "Jensen-Shannon"}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the gate wrote.

    Attributes:
      only_reports: whether findings let the pipeline go on.
      findings: crossed limits; of very many the first.
      findings_left_out: further ones.
      comparisons: over their limit first, then the largest.
      comparisons_left_out: further ones.
      anomalies: split -> anomalous features.
      limits: name -> what is allowed.
      notes: what could not be measured, and why.
    """

    only_reports: bool
    findings: Sequence[Finding]
    findings_left_out: int
    comparisons: Sequence[Comparison]
    comparisons_left_out: int
    anomalies: Mapping[str, int]
    limits: Mapping[str, str]
    notes: Sequence[str]


def verdict(values: Mapping[str, Any]) -> Verdict:
    """Returns the content of a `verdict.json`; what it does not hold is empty."""
    names = ("check", "split", "feature", "value", "limit", "remedy")
    findings = [
        Finding(**{name: shown.text(item.get(name, ""), _LONGEST) for name in names})
        for item in values.get("findings", ())
    ]
    comparisons = sorted(
        (_comparison(item) for item in values.get("comparisons", ())),
        key=lambda item: (not item.is_over, -item.value, item.feature, item.split),
    )
    return Verdict(
        only_reports=values.get("mode") == "report",
        findings=findings[:_MOST_FINDINGS],
        findings_left_out=max(0, len(findings) - _MOST_FINDINGS),
        comparisons=comparisons[:_MOST_COMPARISONS],
        comparisons_left_out=max(0, len(comparisons) - _MOST_COMPARISONS),
        anomalies=dict(values.get("anomalies", {})),
        limits={name: shown.text(value) for name, value in sorted(dict(values.get("limits", {})).items())},
        notes=[shown.text(note, _LONGEST) for note in values.get("notes", ())][:_MOST_FINDINGS],
    )


def _comparison(item: Mapping[str, Any]) -> Comparison:
    return Comparison(
        kind=shown.text(item["kind"], 40),
        baseline=shown.place(str(item["baseline"]), 80),
        split=shown.text(item["split"], 60),
        feature=shown.text(item["feature"], 80),
        measure=_MEASURES.get(item["measure"], shown.text(item["measure"], 40)),
        value=float(item["value"]),
        limit=float(item["limit"]),
    )


_MOST_STEPS = 60
_MOST_ARTIFACTS = 60
# The drawing, in pixels: a row an artifact, and left of the rows an arc from everything it was made of.
_ROW_HEIGHT = 34
_ARC_STEP, _ARC_LEAST, _ARC_MOST = 11, 16, 130
_MOST_LETTERS = 40  # of a name in a row
_MOST_FACT_LETTERS = 80
_DIGEST = re.compile(r"\b([0-9a-f]{16})[0-9a-f]{16,}\b")  # its beginning tells it from others; the table has all of it


@dataclass(frozen=True, kw_only=True)
class StepBar:
    """One component.

    Attributes:
      component: its id.
      state: `complete`, `cached`, `failed` or another one.
      seconds: it took.
      start: where its bar begins, as share of the whole time, 0-1.
      length: of its bar, as share of the whole time.
    """

    component: str
    state: str
    seconds: float
    start: float
    length: float


@dataclass(frozen=True, kw_only=True)
class Node:
    """One artifact in the drawing.

    Attributes:
      y: middle of its row.
      title: its type and number.
      producer: the component that made it.
      facts: what identifies it.
      arcs: SVG path of each line from what it was made of.
    """

    y: int
    title: str
    producer: str
    facts: str
    arcs: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The drawing.

    Attributes:
      nodes: one an artifact, in order of their making.
      x: where the arcs end and the rows begin.
      row_height: of a row.
      height: of the drawing.
    """

    nodes: Sequence[Node]
    x: int
    row_height: int
    height: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run.

    Attributes:
      steps: in order of execution.
      steps_left_out: further ones.
      seconds: of all steps.
      artifacts: in order of their making.
      artifacts_left_out: further ones.
      lineage: the drawing of the artifacts.
    """

    steps: Sequence[StepBar]
    steps_left_out: int
    seconds: float
    artifacts: Sequence[ArtifactDetail]
    artifacts_left_out: int
    lineage: Lineage


def run_view(details: RunDetails) -> Run:
    """Returns a run as the page shows it."""
    total = sum(max(0.0, step.seconds) for step in details.steps)
    steps, passed = [], 0.0
    for step in details.steps[:_MOST_STEPS]:
        seconds = max(0.0, step.seconds)
        steps.append(
            StepBar(
                component=shown.text(step.component, 60),
                state=shown.text(step.state, 20),
                seconds=seconds,
                start=passed / total if total else 0.0,
                length=seconds / total if total else 0.0,
            )
        )
        passed += seconds
    artifacts = details.artifacts[:_MOST_ARTIFACTS]
    return Run(
        steps=steps,
        steps_left_out=len(details.steps) - len(steps),
        seconds=total,
        artifacts=artifacts,
        artifacts_left_out=len(details.artifacts) - len(artifacts),
        lineage=lineage(artifacts),
    )


def lineage(artifacts: Sequence[ArtifactDetail]) -> Lineage:
    """Lays artifacts out in rows, each joined by arcs to what it was made of."""
    places = {artifact.id: place for place, artifact in enumerate(artifacts)}
    spans = [
        abs(places[artifact.id] - places[source])
        for artifact in artifacts
        for source in artifact.inputs
        if source in places
    ]
    x = _reach(max(spans, default=0)) + 8
    return Lineage(
        nodes=[
            Node(
                y=_middle(places[artifact.id]),
                title=shown.text(f"{artifact.type} {artifact.id}", _MOST_LETTERS),
                producer=shown.text(artifact.producer, _MOST_LETTERS),
                facts=shown.text(_facts_line(artifact), _MOST_FACT_LETTERS),
                arcs=[_arc(x, places[source], places[artifact.id]) for source in artifact.inputs if source in places],
            )
            for artifact in artifacts
        ],
        x=x,
        row_height=_ROW_HEIGHT,
        height=_ROW_HEIGHT * len(artifacts),
    )


def _facts_line(artifact: ArtifactDetail) -> str:
    facts = ((name, _DIGEST.sub(r"\1", shown.place(value))) for name, value in artifact.facts.items() if value)
    return ", ".join(f"{name} {value}" for name, value in facts)


def _middle(place: int) -> int:
    return place * _ROW_HEIGHT + _ROW_HEIGHT // 2


def _reach(rows: int) -> int:
    return min(_ARC_MOST, _ARC_LEAST + _ARC_STEP * max(0, rows - 1))


def _arc(x: int, source: int, target: int) -> str:
    # A curve reaches three quarters of the way to the points that pull at it.
    pull = x - _reach(abs(target - source)) * 4 // 3
    return f"M{x} {_middle(source)}C{pull} {_middle(source)} {pull} {_middle(target)} {x} {_middle(target)}"
