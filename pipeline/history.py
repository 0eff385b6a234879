"""What ML Metadata knows of the newest run: which component ran or came from the cache, and what it left behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2

_STATES = metadata_store_pb2.Execution.State
_EVENTS = metadata_store_pb2.Event


@dataclass(frozen=True, kw_only=True)
class Step:
    """One component of a run.

    Attributes:
      component: its id, such as `Trainer`.
      state: `complete`, `cached`, `failed` or another state of ML Metadata.
      seconds: from its registration to its last change.
      outputs: output key -> directory.
      properties: output key -> custom properties of the artifact that are text.
    """

    component: str
    state: str
    seconds: float
    outputs: Mapping[str, str]
    properties: Mapping[str, Mapping[str, str]]


def open_store(path: str) -> MetadataStore:
    """Opens the SQLite database of a pipeline."""
    config = metadata_store_pb2.ConnectionConfig()
    config.sqlite.filename_uri = path
    return MetadataStore(config)


def newest_run(store: MetadataStore) -> dict[str, Step]:
    """Returns component -> step of the newest run, in order of execution; empty before the first run."""
    runs = store.get_contexts_by_type("pipeline_run")
    if not runs:
        return {}
    newest = max(runs, key=lambda context: context.create_time_since_epoch)
    executions = sorted(store.get_executions_by_context(newest.id), key=lambda execution: execution.id)
    steps = [_step(store, execution) for execution in executions]
    return {step.component: step for step in steps}


def _step(store: MetadataStore, execution: metadata_store_pb2.Execution) -> Step:
    contexts = {context.type: context.name for context in store.get_contexts_by_execution(execution.id)}
    events = store.get_events_by_execution_ids([execution.id])
    produced = {event.artifact_id: event.path.steps[0].key for event in events if event.type == _EVENTS.OUTPUT}
    artifacts = store.get_artifacts_by_id(list(produced)) if produced else []
    milliseconds = execution.last_update_time_since_epoch - execution.create_time_since_epoch
    return Step(
        component=contexts["node"].rpartition(".")[2],
        state=_STATES.Name(execution.last_known_state).lower(),
        seconds=milliseconds / 1000,
        outputs={produced[artifact.id]: artifact.uri for artifact in artifacts},
        properties={produced[artifact.id]: _texts(artifact) for artifact in artifacts},
    )


def _texts(artifact: metadata_store_pb2.Artifact) -> dict[str, str]:
    return {name: value.string_value for name, value in artifact.custom_properties.items() if value.string_value}
