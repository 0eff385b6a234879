"""Databases as TFX leaves them, written through ML Metadata itself but without running anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as pb

COMPLETE, CACHED, FAILED, RUNNING = (
    pb.Execution.COMPLETE,
    pb.Execution.CACHED,
    pb.Execution.FAILED,
    pb.Execution.RUNNING,
)


class Ledger:
    """One database, one method call an execution."""

    def __init__(self, path: Path) -> None:
        config = pb.ConnectionConfig()
        config.sqlite.filename_uri = str(path)
        config.sqlite.connection_mode = pb.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
        self.store = MetadataStore(config)
        self._runs: dict[str, tuple[str, int]] = {}
        self._types: dict[str, int] = {}
        self._contexts: dict[int, pb.Context] = {}
        self._artifacts = {artifact.id: artifact for artifact in self.store.get_artifacts()}

    def run(self, name: str, pipeline: str = "demo") -> None:
        """Begins a run."""
        parent, run = self._context("pipeline", pipeline), self._context("pipeline_run", name)
        self.store.put_parent_contexts([pb.ParentContext(child_id=run, parent_id=parent)])
        self._runs[name] = (pipeline, run)

    def execute(
        self,
        run: str,
        component: str,
        inputs: Mapping[str, int] | None = None,
        outputs: Mapping[str, Any] | None = None,
        state: int = COMPLETE,
        **parameters: str | int,
    ) -> list[int]:
        """Adds an execution.

        Args:
          run: name of one that has begun.
          component: its id.
          inputs: key -> artifact.
          outputs: key -> artifact that the cache had, or (type, directory, properties) of a new one.
          state: of the execution.
          **parameters: of the component.

        Returns:
          the artifacts, in order of `outputs`.
        """
        pipeline, context = self._runs[run]
        kind = self._type(pb.ExecutionType(name=f"somewhere.{component}"), self.store.put_execution_type)
        execution = pb.Execution(type_id=kind, last_known_state=state)
        _set(execution.custom_properties, parameters)
        pairs = [(self._artifacts[one], _event(pb.Event.INPUT, key)) for key, one in (inputs or {}).items()]
        for key, one in (outputs or {}).items():
            artifact = self._artifacts[one] if isinstance(one, int) else self._artifact(*one)
            pairs.append((artifact, _event(pb.Event.OUTPUT, key)))
        node = self._context("node", f"{pipeline}.{component}")
        _, numbers, _ = self.store.put_execution(execution, pairs, [self._contexts[context], self._contexts[node]])
        for number, (artifact, _) in zip(numbers, pairs, strict=True):
            artifact.id = number
            self._artifacts[number] = artifact
        return numbers[len(inputs or {}) :]

    def _artifact(self, kind: str, uri: Path, properties: Mapping[str, str | int]) -> pb.Artifact:
        artifact = pb.Artifact(uri=str(uri), state=pb.Artifact.LIVE)
        _set(artifact.custom_properties, properties)
        artifact.type_id = self._type(pb.ArtifactType(name=kind), self.store.put_artifact_type)
        return artifact

    def _type(self, kind: Any, put: Callable[[Any], int]) -> int:
        if kind.name not in self._types:
            self._types[kind.name] = put(kind)
        return self._types[kind.name]

    def _context(self, kind: str, name: str) -> int:
        known = self.store.get_context_by_type_and_name(kind, name)
        if not known:
            known = pb.Context(type_id=self._type(pb.ContextType(name=kind), self.store.put_context_type), name=name)
            [known.id] = self.store.put_contexts([known])
        self._contexts[known.id] = known
        return known.id


def _event(kind: int, key: str) -> pb.Event:
    event = pb.Event(type=kind)
    event.path.steps.add().key = key
    event.path.steps.add().index = 0
    return event


def _set(properties: Any, values: Mapping[str, str | int]) -> None:
    for name, value in values.items():
        field = "int_value" if isinstance(value, int) else "string_value"
        setattr(properties[name], field, value)
