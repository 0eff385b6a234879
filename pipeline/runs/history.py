"""What ML Metadata knows of the newest run: which component ran or came from the cache, and what it left behind.

And its database as a graph in memory: which execution made an artifact, and what it had read.
"""

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
from ml_metadata.proto import metadata_store_pb2
from ml_metadata.proto import metadata_store_pb2 as pb

from beam_jobs.errors import OptionError

_STATES = metadata_store_pb2.Execution.State
_EVENTS = metadata_store_pb2.Event
_OTHER_SCHEMA = re.compile(r"database version (?P<there>\d+) is \w+ than library version (?P<here>\d+)")
_JOURNAL = "-journal"  # SQLite's, beside the database while it is being changed


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


def open_store(path: str, write: bool = False) -> MetadataStore:
    """Opens the SQLite database of a pipeline.

    Args:
      path: of the database.
      write: whether it is going to be changed. If not, nothing in it or beside it is: a pipeline may be running on it.

    Raises:
      OptionError: it cannot be read, or is not a database of ML Metadata, or of another schema than the library reads.
    """
    modes = metadata_store_pb2.SqliteMetadataSourceConfig
    try:
        try:
            return _connect(path, modes.READWRITE if write else modes.READONLY)
        except RuntimeError:
            if write or not os.path.isfile(path + _JOURNAL):
                raise
            return _connect_to_copy(path)
    except (OSError, sqlite3.Error, RuntimeError) as error:
        if schema := _OTHER_SCHEMA.search(str(error)):
            raise OptionError(
                f"{path} has schema {schema['there']} of ML Metadata, and ml-metadata {ml_metadata.__version__} reads "
                f"schema {schema['here']}; open it with the release of Feedline that wrote it, or choose another root"
            ) from error
        raise OptionError(f"{path} is not a database of ML Metadata, or not one that can be read here") from error


def newest_run(store: MetadataStore, pipeline: str = "") -> dict[str, Step]:
    """Returns component -> step of the newest run, in order of execution; empty before the first run.

    Args:
      store: database of one or several pipelines.
      pipeline: name of the one that is meant; any when empty.
    """
    executions = newest_executions(store, pipeline)
    steps = [_step(store, execution) for execution in executions]
    return {step.component: step for step in steps}


def newest_executions(store: MetadataStore, pipeline: str = "") -> list[metadata_store_pb2.Execution]:
    """Returns the executions of the newest run, in order; see `newest_run`."""
    runs = [
        run for run in store.get_contexts_by_type("pipeline_run") if not pipeline or pipeline in _parents(store, run)
    ]
    if not runs:
        return []
    newest = max(runs, key=lambda context: (context.create_time_since_epoch, context.id))
    return sorted(store.get_executions_by_context(newest.id), key=lambda execution: execution.id)


def _parents(store: MetadataStore, context: metadata_store_pb2.Context) -> set[str]:
    return {parent.name for parent in store.get_parent_contexts_by_context(context.id)}


def _connect(path: str, mode: int) -> MetadataStore:
    config = metadata_store_pb2.ConnectionConfig()
    config.sqlite.filename_uri = path
    config.sqlite.connection_mode = mode
    return MetadataStore(config)


def _connect_to_copy(path: str) -> MetadataStore:
    """Opens a private copy of a database that a killed run left in the middle of a change.

    Opening it takes that change back first, which writes to it; the next run does so to the original.
    """
    with tempfile.TemporaryDirectory() as directory:
        copy = os.path.join(directory, os.path.basename(path))
        for suffix in ("", _JOURNAL):
            shutil.copyfile(path + suffix, copy + suffix)
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        # It stays readable when the directory goes: the file is open.
        return _connect(copy, metadata_store_pb2.SqliteMetadataSourceConfig.READONLY)


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


Keyed = dict[str, tuple[int, ...]]

_ARTIFACT_STATES = pb.Execution.State
_MISSING = "unknown"


class Graph:
    """Everything in one database, read once.

    Attributes:
      artifacts: number -> artifact.
      executions: number -> execution.
      makers: artifact -> the execution that made it; those that took it from the cache are not meant.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.artifacts = {artifact.id: artifact for artifact in store.get_artifacts()}
        self.executions = {execution.id: execution for execution in store.get_executions()}
        self._inputs: dict[int, list[tuple[str, int]]] = defaultdict(list)
        self._outputs: dict[int, list[tuple[str, int]]] = defaultdict(list)
        self._nodes: dict[int, str] = {}
        self._runs: dict[int, str] = {}
        self._pipelines: dict[str, str] = {}
        self.makers: dict[int, int] = {}
        events = store.get_events_by_execution_ids(list(self.executions)) if self.executions else []
        for event in sorted(events, key=lambda event: event.execution_id):
            self._take(event)
        for context in store.get_contexts_by_type("node"):
            for execution in store.get_executions_by_context(context.id):
                self._nodes[execution.id] = context.name.rpartition(".")[2]
        for context in store.get_contexts_by_type("pipeline_run"):
            for parent in store.get_parent_contexts_by_context(context.id):
                self._pipelines[context.name] = parent.name
            for execution in store.get_executions_by_context(context.id):
                self._runs[execution.id] = context.name

    def _take(self, event: pb.Event) -> None:
        key = event.path.steps[0].key if event.path.steps else ""
        if event.type == pb.Event.INPUT:
            self._inputs[event.execution_id].append((key, event.artifact_id))
        elif event.type == pb.Event.OUTPUT:
            self._outputs[event.execution_id].append((key, event.artifact_id))
            self.makers.setdefault(event.artifact_id, event.execution_id)  # later ones took it from the cache

    def type_of(self, artifact: int) -> str:
        """Returns the name of an artifact's type."""
        return self.artifacts[artifact].type

    def run_of(self, execution: int) -> str:
        """Returns the name of the run that an execution was part of; empty for one of no run."""
        return self._runs.get(execution, "")

    def pipeline_of(self, run: str) -> str:
        """Returns the name of the pipeline of a run; empty for none."""
        return self._pipelines.get(run, "")

    def component_of(self, execution: int) -> str:
        """Returns the id of the component that an execution was one of."""
        return self._nodes.get(execution, _MISSING)

    def state_of(self, execution: int) -> str:
        """Returns the state of an execution in lower case."""
        return _ARTIFACT_STATES.Name(self.executions[execution].last_known_state).lower()

    def inputs(self, execution: int) -> Keyed:
        """Returns input key -> artifacts."""
        return _keyed(self._inputs[execution])

    def outputs(self, execution: int) -> Keyed:
        """Returns output key -> artifacts."""
        return _keyed(self._outputs[execution])

    def siblings(self, artifact: int) -> set[int]:
        """Returns what the same execution made, the artifact included."""
        maker = self.makers.get(artifact)
        return {other for _, other in self._outputs[maker]} if maker else {artifact}

    def back(self, starts: Iterable[int], through: Callable[[int], bool]) -> set[int]:
        """Returns everything on the way from artifacts back to their sources.

        Args:
          starts: where to begin; from these the walk always goes on.
          through: whether it goes on from an artifact that it meets; those where it ends are returned too.
        """
        found = set(starts)
        waiting = list(found)
        while waiting:
            for _, artifact in self._inputs[self.makers.get(waiting.pop(), 0)]:
                if artifact not in found:
                    found.add(artifact)
                    if through(artifact):
                        waiting.append(artifact)
        return found

    def made_in(self, run: str, having_read: set[int]) -> Iterator[int]:
        """Yields what a run made, or took from the cache, of any of the artifacts."""
        for execution, name in self._runs.items():
            if name == run and having_read & {artifact for _, artifact in self._inputs[execution]}:
                yield from (artifact for _, artifact in self._outputs[execution])

    def was_cached(self, execution: int, run: str) -> bool:
        """Returns whether a run took the outputs of an execution of another run from the cache."""
        outputs = {artifact for _, artifact in self._outputs[execution]}
        return any(
            name == run
            and other != execution
            and self.executions[other].last_known_state == pb.Execution.CACHED
            and outputs & {artifact for _, artifact in self._outputs[other]}
            for other, name in self._runs.items()
        )


def _keyed(pairs: Iterable[tuple[str, int]]) -> Keyed:
    keyed: Keyed = {}
    for key, artifact in pairs:
        keyed[key] = (*keyed.get(key, ()), artifact)
    return keyed
