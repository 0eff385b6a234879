"""Writes one self-contained HTML page about a dataset.

What it says of the run that made a model is handed in as plain values, so that the page knows nothing of ML Metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class StepDetail:
    """One component of a run.

    Attributes:
      component: its id, such as `Trainer`.
      state: `complete`, `cached` or `failed`.
      seconds: it took; of a cached one, of looking it up.
    """

    component: str
    state: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ArtifactDetail:
    """One artifact and what it came from.

    Attributes:
      id: its number in ML Metadata.
      type: such as `Examples`.
      producer: id of the component that made it.
      inputs: ids of the artifacts that component read.
      facts: name -> value of what identifies it, such as `dataset_digest`; never a path of the machine.
    """

    id: int
    type: str
    producer: str
    inputs: tuple[int, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunDetails:
    """A run.

    Attributes:
      steps: in order of execution.
      artifacts: what the pushed model came from, in order of their making.
    """

    steps: tuple[StepDetail, ...]
    artifacts: tuple[ArtifactDetail, ...] = ()
