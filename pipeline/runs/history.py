"""Reads the ML Metadata of a pipeline: the steps of the newest run, and all artifacts and executions as a graph."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import ml_metadata
from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as pb

from beam_jobs.errors import OptionError

_SCHEMA_MISMATCH = re.compile(r"database version (?P<database>\d+) is \w+ than library version (?P<library>\d+)")
_JOURNAL = "-journal"  # suffix of the file that SQLite keeps beside a database during a change


@dataclass(frozen=True, kw_only=True)
class Step:
    """One component of a run.

    Attributes:
      component: id of the component, such as `Trainer`.
      state: `complete`, `cached`, `failed` or another state of ML Metadata.
      seconds: time from the registration of the execution to its last change.
      outputs: output key -> directory.
      properties: output key -> custom text properties of the artifact.
    """

    component: str
    state: str
    seconds: float
    outputs: Mapping[str, str]
    properties: Mapping[str, Mapping[str, str]]


def open_store(path: str, write: bool = False) -> MetadataStore:
    """Opens the SQLite database of a pipeline.

    Args:
      path: path of the database file.
      write: whether to open it for changes. Otherwise no file is changed, and a pipeline may use the database.

    Raises:
      OptionError: the file cannot be read, is not a database of ML Metadata, or has another version of the schema.
    """
    modes = pb.SqliteMetadataSourceConfig
    try:
        try:
            return _connect(path, modes.READWRITE if write else modes.READONLY)
        except RuntimeError:
            if write or not os.path.isfile(path + _JOURNAL):
                raise
            return _connect_to_copy(path)
    except (OSError, sqlite3.Error, RuntimeError) as error:
        if versions := _SCHEMA_MISMATCH.search(str(error)):
            raise OptionError(
                f"{path} has schema {versions['database']} of ML Metadata, and ml-metadata {ml_metadata.__version__} "
                f"reads schema {versions['library']}; open it with the release of Feedline that wrote it, or choose "
                "another root"
            ) from error
        raise OptionError(f"{path} is not a database of ML Metadata, or is damaged; choose another root") from error


def newest_run(store: MetadataStore, pipeline: str = "") -> dict[str, Step]:
    """Returns component -> step of the newest run, in order of execution; empty before the first run.

    Args:
      store: database of one or several pipelines.
      pipeline: name of the pipeline; empty selects all.
    """
    executions = newest_executions(store, pipeline)
    steps = [_step(store, execution) for execution in executions]
    return {step.component: step for step in steps}


def newest_executions(store: MetadataStore, pipeline: str = "") -> list[pb.Execution]:
    """Returns the executions of the newest run, in order; see `newest_run`."""
    runs = [
        run
        for run in store.get_contexts_by_type("pipeline_run")
        if not pipeline or any(parent.name == pipeline for parent in store.get_parent_contexts_by_context(run.id))
    ]
    if not runs:
        return []
    newest = max(runs, key=lambda context: (context.create_time_since_epoch, context.id))
    return sorted(store.get_executions_by_context(newest.id), key=lambda execution: execution.id)


def _connect(path: str, mode: int) -> MetadataStore:
    config = pb.ConnectionConfig()
    config.sqlite.filename_uri = path
    config.sqlite.connection_mode = mode
    return MetadataStore(config)


def _connect_to_copy(path: str) -> MetadataStore:
    """Opens a temporary copy of a database in which a killed run left an unfinished change.

    SQLite rolls the change back when it opens the copy, which changes the file; the next run rolls back the original.
    """
    with tempfile.TemporaryDirectory() as directory:
        copy = os.path.join(directory, os.path.basename(path))
        for suffix in ("", _JOURNAL):
            shutil.copyfile(path + suffix, copy + suffix)
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        # The open file stays readable after the directory is removed.
        return _connect(copy, pb.SqliteMetadataSourceConfig.READONLY)


def _step(store: MetadataStore, execution: pb.Execution) -> Step:
    contexts = {context.type: context.name for context in store.get_contexts_by_execution(execution.id)}
    events = store.get_events_by_execution_ids([execution.id])
    output_keys = {event.artifact_id: event.path.steps[0].key for event in events if event.type == pb.Event.OUTPUT}
    artifacts = store.get_artifacts_by_id(list(output_keys)) if output_keys else []
    milliseconds = execution.last_update_time_since_epoch - execution.create_time_since_epoch
    return Step(
        component=contexts["node"].rpartition(".")[2],
        state=pb.Execution.State.Name(execution.last_known_state).lower(),
        seconds=milliseconds / 1000,
        outputs={output_keys[artifact.id]: artifact.uri for artifact in artifacts},
        properties={output_keys[artifact.id]: _text_properties(artifact) for artifact in artifacts},
    )


def _text_properties(artifact: pb.Artifact) -> dict[str, str]:
    return {name: value.string_value for name, value in artifact.custom_properties.items() if value.string_value}


ArtifactsByKey = dict[str, tuple[int, ...]]


class Graph:
    """All artifacts and executions of a database, read once.

    Attributes:
      artifacts: artifact id -> artifact.
      executions: execution id -> execution.
      producers: artifact id -> id of the execution that made it, not of one that took it from the cache.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.artifacts = {artifact.id: artifact for artifact in store.get_artifacts()}
        self.executions = {execution.id: execution for execution in store.get_executions()}
        self._inputs: dict[int, list[tuple[str, int]]] = defaultdict(list)
        self._outputs: dict[int, list[tuple[str, int]]] = defaultdict(list)
        self._component_ids: dict[int, str] = {}
        self._run_names: dict[int, str] = {}
        self._pipeline_names: dict[str, str] = {}
        self.producers: dict[int, int] = {}
        events = store.get_events_by_execution_ids(list(self.executions)) if self.executions else []
        for event in sorted(events, key=lambda event: event.execution_id):
            self._add_event(event)
        for context in store.get_contexts_by_type("node"):
            for execution in store.get_executions_by_context(context.id):
                self._component_ids[execution.id] = context.name.rpartition(".")[2]
        for context in store.get_contexts_by_type("pipeline_run"):
            for parent in store.get_parent_contexts_by_context(context.id):
                self._pipeline_names[context.name] = parent.name
            for execution in store.get_executions_by_context(context.id):
                self._run_names[execution.id] = context.name

    def _add_event(self, event: pb.Event) -> None:
        key = event.path.steps[0].key if event.path.steps else ""
        if event.type == pb.Event.INPUT:
            self._inputs[event.execution_id].append((key, event.artifact_id))
        elif event.type == pb.Event.OUTPUT:
            self._outputs[event.execution_id].append((key, event.artifact_id))
            # Later events are of executions that took the artifact from the cache.
            self.producers.setdefault(event.artifact_id, event.execution_id)

    def artifact_type(self, artifact: int) -> str:
        """Returns the type name of an artifact."""
        return self.artifacts[artifact].type

    def run_name(self, execution: int) -> str:
        """Returns the name of the run of an execution; empty when it belongs to no run."""
        return self._run_names.get(execution, "")

    def pipeline_name(self, run: str) -> str:
        """Returns the name of the pipeline of a run; empty when the run is not in the database."""
        return self._pipeline_names.get(run, "")

    def component_id(self, execution: int) -> str:
        """Returns the id of the component of an execution."""
        return self._component_ids.get(execution, "unknown")

    def state_name(self, execution: int) -> str:
        """Returns the state of an execution in lower case."""
        return pb.Execution.State.Name(self.executions[execution].last_known_state).lower()

    def inputs(self, execution: int) -> ArtifactsByKey:
        """Returns input key -> ids of the artifacts that an execution read."""
        return _group_by_key(self._inputs[execution])

    def outputs(self, execution: int) -> ArtifactsByKey:
        """Returns output key -> ids of the artifacts that an execution wrote."""
        return _group_by_key(self._outputs[execution])

    def siblings(self, artifact: int) -> set[int]:
        """Returns the ids of all outputs of the execution that made an artifact, the artifact included."""
        producer = self.producers.get(artifact)
        return {output for _, output in self._outputs[producer]} if producer else {artifact}

    def ancestors(self, starts: Iterable[int], expand: Callable[[int], bool]) -> set[int]:
        """Returns the ids of artifacts and of all artifacts that they were made from, directly or indirectly.

        Args:
          starts: ids of the artifacts to start from; their inputs are always followed.
          expand: whether to follow the inputs of an ancestor; the ancestor itself is returned in any case.
        """
        ancestors = set(starts)
        queue = list(ancestors)
        while queue:
            for _, artifact in self._inputs[self.producers.get(queue.pop(), 0)]:
                if artifact not in ancestors:
                    ancestors.add(artifact)
                    if expand(artifact):
                        queue.append(artifact)
        return ancestors

    def derived_outputs(self, run: str, inputs: set[int]) -> Iterator[int]:
        """Yields the outputs of the executions of a run that read any of the artifacts `inputs`."""
        for execution, name in self._run_names.items():
            if name == run and inputs & {artifact for _, artifact in self._inputs[execution]}:
                yield from (artifact for _, artifact in self._outputs[execution])

    def was_cached(self, execution: int, run: str) -> bool:
        """Whether a run took the outputs of an execution of another run from the cache."""
        outputs = {artifact for _, artifact in self._outputs[execution]}
        return any(
            name == run
            and other_execution != execution
            and self.executions[other_execution].last_known_state == pb.Execution.CACHED
            and outputs & {artifact for _, artifact in self._outputs[other_execution]}
            for other_execution, name in self._run_names.items()
        )


def _group_by_key(pairs: Iterable[tuple[str, int]]) -> ArtifactsByKey:
    groups: ArtifactsByKey = {}
    for key, artifact in pairs:
        groups[key] = (*groups.get(key, ()), artifact)
    return groups
