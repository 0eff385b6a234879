"""The run that made a model: how long each component took, and which artifact came from which."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from components.dataset_report import shown
from components.dataset_report.run_details import ArtifactDetail, RunDetails

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
                facts=shown.text(_facts(artifact), _MOST_FACT_LETTERS),
                arcs=[_arc(x, places[source], places[artifact.id]) for source in artifact.inputs if source in places],
            )
            for artifact in artifacts
        ],
        x=x,
        row_height=_ROW_HEIGHT,
        height=_ROW_HEIGHT * len(artifacts),
    )


def _facts(artifact: ArtifactDetail) -> str:
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
