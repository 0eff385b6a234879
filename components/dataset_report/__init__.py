"""A self-contained HTML page about a dataset.

The caller passes a run of the pipeline as plain values, so that the page is independent of ML Metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class StepDetail:
    """A component in a run.

    Attributes:
      component: id of the component, such as `Trainer`.
      state: `complete`, `cached` or `failed`.
      seconds: duration, seconds; for a cached component, that of the cache lookup.
    """

    component: str
    state: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ArtifactDetail:
    """An artifact and its origin.

    Attributes:
      id: id in ML Metadata.
      type: type of the artifact, such as `Examples`.
      producer: id of the component that created it.
      inputs: ids of the input artifacts of that component.
      properties: name -> value of properties that identify it, such as `dataset_digest`, without local paths.
    """

    id: int
    type: str
    producer: str
    inputs: tuple[int, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunDetails:
    """A run of a pipeline.

    Attributes:
      steps: components in the order of execution.
      training: content of `training.json`, which the Trainer writes; None if the file does not exist.
      artifacts: artifacts from which the pushed model was created, in the order of creation.
    """

    steps: tuple[StepDetail, ...] = ()
    training: Mapping[str, Any] | None = None
    artifacts: tuple[ArtifactDetail, ...] = ()
