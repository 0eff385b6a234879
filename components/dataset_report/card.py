"""Sections of the report about the dataset, the results of the gate, and the run with its durations and lineage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from beam_jobs.common.strings import plural
from beam_jobs.dataset import lookup
from beam_jobs.dataset.lookup import Leak
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.options import About
from beam_jobs.types import LABEL_KINDS
from components.dataset_gate.limits import Check, Comparison, Finding, Remark
from components.dataset_report import ArtifactDetail, RunDetails, shown

_MAX_SPLITS = 50
_MAX_CHARACTERS = 1000  # maximum length of a warning, which may name several columns or classes


@dataclass(frozen=True, kw_only=True)
class SplitRow:
    """A row of the table of splits.

    Attributes:
      name: name of the split.
      images: number of images.
      share: share of all written images, 0-1.
      classes: number of classes with images.
      shards: number of shards.
      bytes: size of all shards, bytes.
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
    """The dataset card.

    Attributes:
      title: title of the dataset, or its source if it has no title.
      digest: digest of the dataset.
      about: names and texts of the description; texts may have several lines, or be empty.
      properties: names and values of the main properties.
      options: names and values of the options of the ingest.
      versions: package and version of the software that wrote the dataset.
      splits: a row for each split.
      channels: statistics of red, green and blue; empty if not measured.
      channel_split: name of the split on which they were measured.
      warnings: warnings of the ingest.
    """

    title: str
    digest: str
    about: Sequence[tuple[str, str]]
    properties: Sequence[tuple[str, str]]
    options: Sequence[tuple[str, str]]
    versions: Sequence[tuple[str, str]]
    splits: Sequence[SplitRow]
    channels: Sequence[Channel]
    channel_split: str
    warnings: Sequence[str]


def title(dataset: Manifest) -> str:
    """Returns the title of a dataset, or its source if it has no title."""
    return shown.text(About.recorded(dataset.options).title, 200) or shown.short_path(dataset.source, 100)


def card(dataset: Manifest, leaks: Sequence[Leak]) -> Card:
    """Returns the card of a dataset; `leaks` are the sets of images in several splits."""
    counts, channels = dataset.counts, dataset.channels
    warnings = [*dataset.warnings[:_MAX_SPLITS], *([lookup.leak_sentence(leaks)] if leaks else [])]
    about = About.recorded(dataset.options)
    properties = [
        ("Source", shown.short_path(dataset.source, 100) if about.title else ""),
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
        title=title(dataset),
        about=[
            ("Authors", ", ".join((*about.creators, *about.organizations))),
            ("Licence", about.license),
            ("Intended use", about.intended_use),
            ("Published", about.date_published),
            ("Page", about.url),
            ("Citation", about.citation),
        ],
        digest=dataset.digest,
        properties=[(name, shown.text(value, 400)) for name, value in properties if value],
        options=[
            (name, shown.text(value)) for name, value in _flatten(dataset.options) if not name.startswith("about.")
        ],
        versions=[(shown.text(name), shown.text(value)) for name, value in dataset.producer.items()],
        splits=_split_rows(dataset),
        channels=[
            Channel(name=name, mean=mean, std=std)
            for name, mean, std in zip(("Red", "Green", "Blue"), channels.mean_rgb, channels.std_rgb, strict=True)
        ]
        if channels
        else (),
        channel_split=channels.split if channels else "",
        warnings=[shown.text(line, _MAX_CHARACTERS) for line in warnings],
    )


def _split_rows(dataset: Manifest) -> list[SplitRow]:
    return [
        SplitRow(
            name=name,
            images=info.records,
            share=info.records / max(1, dataset.counts.written),
            classes=len(info.classes),
            shards=len(info.shards),
            bytes=info.bytes,
        )
        for name, info in list(dataset.splits.items())[:_MAX_SPLITS]
    ]


def _flatten(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields dotted name and text of every option that is not empty."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif name == "splits":
            yield name, ", ".join(f"{split} {share:g}" for split, share in value)
        elif value not in ("", [], None):
            yield prefix + name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


_MAX_FINDINGS = 50
_MAX_TEXT_LENGTH = 240  # characters
_MAX_COMPARISONS = 200
_MEASURES = {"l_infinity": "L-infinity", "jensen_shannon": "Jensen-Shannon"}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The section of the gate, with the content of its `verdict.json`.

    Attributes:
      only_reports: whether the mode is `report`, in which the pipeline continues after findings.
      findings: the first exceeded limits.
      findings_left_out: number of omitted findings.
      remarks: the first remarks.
      remarks_left_out: number of omitted remarks.
      comparisons: comparisons that exceed their limit, then the others, by descending value.
      comparisons_left_out: number of omitted comparisons.
      anomalies: split -> number of anomalous features.
      checks: all checks, with the measured and the allowed value.
      notes: a line with the reason for each check that was not possible.
    """

    only_reports: bool
    findings: Sequence[Finding]
    findings_left_out: int
    remarks: Sequence[Remark]
    remarks_left_out: int
    comparisons: Sequence[Comparison]
    comparisons_left_out: int
    anomalies: Mapping[str, int]
    checks: Sequence[Check]
    notes: Sequence[str]


def verdict(values: Mapping[str, Any]) -> Verdict:
    """Returns the section for the content of a `verdict.json`; missing keys result in empty fields."""
    finding_fields = ("check", "split", "feature", "value", "limit", "remedy")
    findings = [
        Finding(**{name: shown.text(item.get(name, ""), _MAX_TEXT_LENGTH) for name in finding_fields})
        for item in values.get("findings", ())
    ]
    remarks = [
        Remark(**{name: shown.text(item.get(name, ""), 2 * _MAX_TEXT_LENGTH) for name in ("check", "value", "remedy")})
        for item in values.get("remarks", ())
    ]
    comparisons = sorted(
        (_comparison(item) for item in values.get("comparisons", ())),
        key=lambda item: (not item.is_over, -item.value, item.feature, item.split),
    )
    return Verdict(
        only_reports=values.get("mode") == "report",
        findings=findings[:_MAX_FINDINGS],
        findings_left_out=max(0, len(findings) - _MAX_FINDINGS),
        remarks=remarks[:_MAX_FINDINGS],
        remarks_left_out=max(0, len(remarks) - _MAX_FINDINGS),
        comparisons=comparisons[:_MAX_COMPARISONS],
        comparisons_left_out=max(0, len(comparisons) - _MAX_COMPARISONS),
        anomalies=dict(values.get("anomalies", {})),
        checks=[
            Check(**{name: shown.text(item.get(name, ""), _MAX_TEXT_LENGTH) for name in Check.__dataclass_fields__})
            for item in values.get("checks", ())
        ],
        notes=[shown.text(note, _MAX_TEXT_LENGTH) for note in values.get("notes", ())][:_MAX_FINDINGS],
    )


def _comparison(item: Mapping[str, Any]) -> Comparison:
    return Comparison(
        kind=shown.text(item["kind"], 40),
        baseline=shown.short_path(str(item["baseline"]), 80),
        split=shown.text(item["split"], 60),
        feature=shown.text(item["feature"], 80),
        measure=_MEASURES.get(item["measure"], shown.text(item["measure"], 40)),
        value=float(item["value"]),
        limit=float(item["limit"]),
    )


_MAX_STEPS = _MAX_ARTIFACTS = 60
# Sizes in the drawing of the lineage, in pixels. It has a row for each artifact, with arcs from its inputs on the left.
_ROW_HEIGHT = 34
_ARC_STEP, _ARC_MIN, _ARC_MAX = 11, 16, 130  # width of an arc: increase per row, minimum, maximum
_NAME_LENGTH = 40  # maximum number of characters of a name in a row
_PROPERTIES_LENGTH = 80  # maximum number of characters of the properties in a row
_DIGEST = re.compile(r"\b([0-9a-f]{16})[0-9a-f]{16,}\b")  # shortened in the drawing; the table has the digest


@dataclass(frozen=True, kw_only=True)
class StepBar:
    """A component in the chart of durations.

    Attributes:
      component: id of the component.
      state: `complete`, `cached`, `failed` or another state.
      seconds: duration, seconds.
      start: start of its bar, as a share of the total duration, 0-1.
      length: length of its bar, as a share of the total duration, 0-1.
    """

    component: str
    state: str
    seconds: float
    start: float
    length: float


@dataclass(frozen=True, kw_only=True)
class Node:
    """An artifact in the drawing of the lineage.

    Attributes:
      y: vertical middle of its row, pixels.
      title: type and id.
      producer: id of the component that created it.
      properties: identifying properties, as text.
      arcs: SVG path of the arc from each input.
    """

    y: int
    title: str
    producer: str
    properties: str
    arcs: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The drawing of the lineage.

    Attributes:
      nodes: artifacts in the order of creation.
      x: right end of the arcs and left end of the rows, pixels.
      row_height: height of a row, pixels.
      height: height of the drawing, pixels.
    """

    nodes: Sequence[Node]
    x: int
    row_height: int
    height: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """The section of a run.

    Attributes:
      steps: components in the order of execution.
      steps_left_out: number of omitted components.
      seconds: duration of all components, seconds.
      artifacts: artifacts in the order of creation.
      artifacts_left_out: number of omitted artifacts.
      lineage: drawing of the artifacts.
    """

    steps: Sequence[StepBar]
    steps_left_out: int
    seconds: float
    artifacts: Sequence[ArtifactDetail]
    artifacts_left_out: int
    lineage: Lineage


def run_view(details: RunDetails) -> Run:
    """Returns the section of a run."""
    total = sum(max(0.0, step.seconds) for step in details.steps)
    steps, elapsed = [], 0.0
    for step in details.steps[:_MAX_STEPS]:
        seconds = max(0.0, step.seconds)
        steps.append(
            StepBar(
                component=shown.text(step.component, 60),
                state=shown.text(step.state, 20),
                seconds=seconds,
                start=elapsed / total if total else 0.0,
                length=seconds / total if total else 0.0,
            )
        )
        elapsed += seconds
    artifacts = details.artifacts[:_MAX_ARTIFACTS]
    return Run(
        steps=steps,
        steps_left_out=len(details.steps) - len(steps),
        seconds=total,
        artifacts=artifacts,
        artifacts_left_out=len(details.artifacts) - len(artifacts),
        lineage=lineage(artifacts),
    )


def lineage(artifacts: Sequence[ArtifactDetail]) -> Lineage:
    """Returns the drawing of artifacts in rows, with an arc from each input."""
    rows = {artifact.id: row for row, artifact in enumerate(artifacts)}
    row_distances = [
        abs(rows[artifact.id] - rows[source]) for artifact in artifacts for source in artifact.inputs if source in rows
    ]
    x = _arc_width(max(row_distances, default=0)) + 8
    return Lineage(
        nodes=[
            Node(
                y=_row_middle(rows[artifact.id]),
                title=shown.text(f"{artifact.type} {artifact.id}", _NAME_LENGTH),
                producer=shown.text(artifact.producer, _NAME_LENGTH),
                properties=shown.text(_properties_line(artifact), _PROPERTIES_LENGTH),
                arcs=[_arc(x, rows[source], rows[artifact.id]) for source in artifact.inputs if source in rows],
            )
            for artifact in artifacts
        ],
        x=x,
        row_height=_ROW_HEIGHT,
        height=_ROW_HEIGHT * len(artifacts),
    )


def _properties_line(artifact: ArtifactDetail) -> str:
    values = {name: shown.short_path(value) for name, value in artifact.properties.items() if value}
    return ", ".join(name + " " + _DIGEST.sub(r"\1", value) for name, value in values.items())


def _row_middle(row: int) -> int:
    return row * _ROW_HEIGHT + _ROW_HEIGHT // 2


def _arc_width(row_distance: int) -> int:
    return min(_ARC_MAX, _ARC_MIN + _ARC_STEP * max(0, row_distance - 1))


def _arc(x: int, source_row: int, target_row: int) -> str:
    # The width of a Bezier curve is three quarters of the distance of its control points.
    control = x - _arc_width(abs(target_row - source_row)) * 4 // 3
    start_y, end_y = _row_middle(source_row), _row_middle(target_row)
    return f"M{x} {start_y}C{control} {start_y} {control} {end_y} {x} {end_y}"
