"""The graph of an ML Metadata database in memory: which execution made an artifact, and what it had read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as pb

Keyed = dict[str, tuple[int, ...]]

_STATES = pb.Execution.State
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
        return _STATES.Name(self.executions[execution].last_known_state).lower()

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
