"""Lineage: the artifacts and executions that a model was made from, also those of earlier runs in the cache."""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as pb

from beam_jobs.common import strings
from components.dataset_report import ArtifactDetail, RunDetails, StepDetail
from pipeline.runs import history
from pipeline.runs.history import Graph
from pipeline.runs.lineage_find import (
    Locate,
    code_parameter,
    decode_parameters,
    identifying_properties,
    recorded_path,
    shareable_properties,
)

MADE, JUDGED, COMPARED = "made", "judged", "compared"
_RESULT_TYPES = {"ModelBlessing", "ModelEvaluation", "InfraBlessing", "DatasetVerdict", "ExampleAnomalies"}  # of checks
_SUBJECTS = frozenset(("Examples", "Model", "PushedModel"))  # types of artifacts that checks judge or compare with
_FINISHED_STATES = {"complete", "cached", "failed", "canceled"}


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One artifact of a lineage.

    Attributes:
      id: id in ML Metadata.
      type: type name, such as `Examples`.
      uri: path that the artifact was written to.
      maker: id of the execution that made the artifact; None when this execution is not part of the lineage.
      role: `made`, the model was made from it; `judged`, a result of checking the model or its data; `compared`, an
        earlier model or dataset that a check compared them with, without its lineage.
      facts: name -> value that identifies the artifact; only `pushed_destination` is a path of this machine.
    """

    id: int
    type: str
    uri: str
    maker: int | None
    role: str
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One execution of a lineage: the one that made the outputs, not a later one that took them from the cache.

    Attributes:
      id: id in ML Metadata.
      component: id of the component, such as `Trainer`.
      type: class of the component.
      state: `complete`, or another state of ML Metadata.
      cached: whether the run that made the model took the result from the cache.
      run: name of the run that made the outputs.
      started_ms: start time in milliseconds since the epoch.
      seconds: duration.
      code: version of the code, from the parameters; empty when they have none.
      parameters: name -> value, JSON decoded.
      inputs: input key -> ids of artifacts.
      outputs: output key -> ids of artifacts, those outside of the lineage included.
    """

    id: int
    component: str
    type: str
    state: str
    cached: bool
    run: str
    started_ms: int
    seconds: float
    code: str
    parameters: Mapping[str, Any]
    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The artifacts and executions that an artifact was made from.

    Attributes:
      model: id of the artifact whose lineage this is.
      pipeline: name of the pipeline that made the artifact.
      run: name of the run that made the artifact.
      artifacts: artifacts in order of creation.
      executions: executions in order of their start.
    """

    model: int
    pipeline: str
    run: str
    artifacts: tuple[Artifact, ...]
    executions: tuple[Execution, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the graph: nodes, and edges from inputs to executions and from executions to outputs."""
        artifact_ids = {artifact.id for artifact in self.artifacts}
        edges = [
            {"from": f"artifact:{artifact_id}", "to": f"execution:{execution.id}", "key": key}
            for execution in self.executions
            for key, artifact_id in _key_id_pairs(execution.inputs)
            if artifact_id in artifact_ids
        ] + [
            {"from": f"execution:{execution.id}", "to": f"artifact:{artifact_id}", "key": key}
            for execution in self.executions
            for key, artifact_id in _key_id_pairs(execution.outputs)
            if artifact_id in artifact_ids
        ]
        return {
            "model": self.model,
            "pipeline": self.pipeline,
            "run": self.run,
            "artifacts": [asdict(artifact) for artifact in self.artifacts],
            "executions": [asdict(execution) for execution in self.executions],
            "edges": edges,
        }


def trace(store: MetadataStore, model: int, locate: Locate = recorded_path, run: str = "") -> Lineage:
    """Follows an artifact back to its sources.

    Args:
      store: open database.
      model: id of an artifact of any type; see `lineage_find.find`.
      locate: function: recorded path -> current path, for properties that are read from files.
      run: name of the run whose check results are included; empty selects the run that made the artifact.
    """
    graph = Graph(store)
    run = run or graph.run_name(graph.producers.get(model, 0))
    ancestors = graph.ancestors([model], expand=lambda artifact: graph.artifact_type(artifact) not in _RESULT_TYPES)
    check_results = {artifact for artifact in ancestors if graph.artifact_type(artifact) in _RESULT_TYPES} - {model}
    ancestors -= check_results
    # The result of the gate (`DatasetVerdict`) is not an input of the model, and so not among the ancestors.
    outputs = set(graph.derived_outputs(run, ancestors)) - {model}
    check_results |= {artifact for artifact in outputs if graph.artifact_type(artifact) in _RESULT_TYPES}
    check_results |= {sibling for artifact in check_results for sibling in graph.siblings(artifact)}
    # Includes statistics and anomalies, but not the lineage of another model or dataset.
    checks = graph.ancestors(check_results, lambda artifact: graph.artifact_type(artifact) not in _SUBJECTS) - ancestors
    roles = dict.fromkeys(ancestors, MADE)
    roles |= {artifact: COMPARED if graph.artifact_type(artifact) in _SUBJECTS else JUDGED for artifact in checks}
    traced = {artifact for artifact, role in roles.items() if role != COMPARED}
    producers = {graph.producers[artifact] for artifact in traced & graph.producers.keys()}
    return Lineage(
        model=model,
        pipeline=graph.pipeline_name(run),
        run=run,
        artifacts=tuple(_artifact(graph, number, role, locate) for number, role in sorted(roles.items())),
        executions=tuple(_execution(graph, number, run) for number in sorted(producers)),
    )


def run_details(store: MetadataStore, pipeline: str = "") -> RunDetails:
    """Returns the details of the newest run for the report, without paths and unfinished steps.

    Args:
      store: open database.
      pipeline: name of the pipeline; empty selects all.
    """
    steps = [step for step in history.newest_run(store, pipeline).values() if step.state in _FINISHED_STATES]
    executions = history.newest_executions(store, pipeline)
    subject = _select_subject(store, executions)
    run = Graph(store).run_name(executions[-1].id) if executions else ""
    lineage = trace(store, subject, run=run) if subject is not None else None
    return RunDetails(
        steps=tuple(StepDetail(component=step.component, state=step.state, seconds=step.seconds) for step in steps),
        artifacts=tuple(_artifact_details(lineage)) if lineage else (),
    )


def _artifact_details(lineage: Lineage) -> Iterator[ArtifactDetail]:
    executions = {execution.id: execution for execution in lineage.executions}
    artifact_ids = {artifact.id for artifact in lineage.artifacts}
    for artifact in lineage.artifacts:
        producer = executions.get(artifact.maker or 0)
        inputs = {number for _, number in _key_id_pairs(producer.inputs)} & artifact_ids if producer else ()
        code = {"code": producer.code} if producer and producer.code else {}
        yield ArtifactDetail(
            id=artifact.id,
            type=artifact.type,
            producer=producer.component if producer else artifact.role,
            inputs=tuple(sorted(inputs)),
            properties=shareable_properties(artifact.facts) | code,
        )


def _artifact(graph: Graph, artifact_id: int, role: str, locate: Locate) -> Artifact:
    artifact = graph.artifacts[artifact_id]
    producer = graph.producers.get(artifact_id)
    return Artifact(
        id=artifact_id,
        type=artifact.type,
        uri=artifact.uri,
        maker=None if role == COMPARED else producer,
        role=role,
        facts=identifying_properties(artifact, graph.executions[producer] if producer else None, locate),
    )


def _execution(graph: Graph, execution_id: int, run: str) -> Execution:
    execution = graph.executions[execution_id]
    parameters = decode_parameters(execution)
    return Execution(
        id=execution_id,
        component=graph.component_id(execution_id),
        type=execution.type,
        state=graph.state_name(execution_id),
        cached=graph.was_cached(execution_id, run),
        run=graph.run_name(execution_id),
        started_ms=execution.create_time_since_epoch,
        seconds=(execution.last_update_time_since_epoch - execution.create_time_since_epoch) / 1000,
        code=code_parameter(parameters),
        parameters=parameters,
        inputs=graph.inputs(execution_id),
        outputs=graph.outputs(execution_id),
    )


def _select_subject(store: MetadataStore, executions: Iterable[pb.Execution]) -> int | None:
    """Returns the id of the pushed model of a run, else of its model, else of its dataset, else None."""
    execution_ids = [execution.id for execution in executions]
    events = store.get_events_by_execution_ids(execution_ids) if execution_ids else []
    outputs = {event.artifact_id for event in events if event.type == pb.Event.OUTPUT}
    artifacts = store.get_artifacts_by_id(sorted(outputs)) if outputs else []
    for type_name in ("PushedModel", "Model", "Examples"):
        if candidates := [artifact.id for artifact in artifacts if artifact.type == type_name]:
            return max(candidates)
    return None


def _key_id_pairs(artifacts_by_key: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, int]]:
    return ((key, artifact_id) for key, artifact_ids in artifacts_by_key.items() for artifact_id in artifact_ids)


_WIDTH = 100
_LABEL_WIDTH = 26  # columns of the label of a line
_DIGEST_DIGITS = 16
_MAX_VALUE_CHARS = 60  # longer parameters are not printed
_MAX_PARAMETERS = 6  # of a component that `_MAIN_PARAMETERS` does not list
_NO_BREAK = "\N{NO-BREAK SPACE}"  # between name and value, until the text is wrapped
_HEX_DIGITS = frozenset("0123456789abcdef")
# Kind of threshold -> text.
_BOUNDS = {
    "lower_bound": "at least",
    "upper_bound": "at most",
    "absolute": "against the baseline",
    "relative": "of the baseline",
}
_LABELS = {"dataset_digest": "digest", "input_fingerprint": "fingerprint", "pushed_destination": "at"}  # in the text
# Component -> names of the main parameters; a name includes all names below it.
_MAIN_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "ImageExampleGen": (
        *("dataset", "span", "version"),
        *("options.splits", "options.stratify", "options.seed", "options.duplicates", "options.near_duplicates"),
        *("options.pixels.policy", "options.max_reject_ratio"),
    ),
    "StatisticsGen": (),
    "InferredSchema": (),
    "ReviewedSchema": (),
    "ExampleValidator": (),
    "DatasetGate": (
        *("limits.mode", "limits.max_anomalies", "limits.max_leaks", "limits.max_reject_ratio"),
        *("limits.max_drift_l_infinity", "limits.max_drift_jensen_shannon"),
        *("limits.max_skew_l_infinity", "limits.max_skew_jensen_shannon"),
    ),
    "Transform": ("preprocessing_fn",),
    "Trainer": (
        *("custom_config.trainer.train", "custom_config.trainer.input.image_side_px"),
        *("custom_config.trainer.input.batch_size", "custom_config.trainer.input.seed"),
    ),
    "Evaluator": ("example_splits",),  # `_thresholds` adds the thresholds
    "Pusher": (),
}


def text(lineage: Lineage, model: str, note: str = "") -> str:
    """Returns the lineage as text.

    Args:
      lineage: the lineage of an artifact.
      model: directory of the model, for the first line.
      note: remark about the model; empty for none.
    """
    artifacts = {artifact.id: artifact for artifact in lineage.artifacts}
    codes = {execution.code for execution in lineage.executions if execution.code}
    lines = [model + (f" ({note})" if note else "")]
    lines.append(f"pipeline {lineage.pipeline or 'unknown'}, run {lineage.run or 'unknown'}")
    if len(codes) == 1:
        lines.append(f"code {next(iter(codes))}")
    for execution in lineage.executions:
        lines += ["", *_execution_lines(execution, artifacts, with_code=len(codes) > 1)]
    return strings.lines(lines)


def _execution_lines(execution: Execution, artifacts: Mapping[int, Artifact], with_code: bool) -> Iterator[str]:
    started = datetime.datetime.fromtimestamp(execution.started_ms / 1000, datetime.timezone.utc)
    state = "cached" if execution.cached else execution.state
    yield f"{execution.component:<{_LABEL_WIDTH}}{started:%Y-%m-%d %H:%M:%S} UTC {execution.seconds:>9.1f} s   {state}"
    inputs = [artifacts[artifact_id] for _, artifact_id in _key_id_pairs(execution.inputs) if artifact_id in artifacts]
    yield from _wrap_line("from", ", ".join(_describe_input(artifact) for artifact in inputs))
    yield from _wrap_line("with", _join_pairs(_main_parameters(execution)))
    if with_code:
        yield from _wrap_line("code", execution.code)
    for _, artifact_id in _key_id_pairs(execution.outputs):
        if artifact_id in artifacts:
            artifact = artifacts[artifact_id]
            properties = {_LABELS.get(name, name): _shorten_digest(value) for name, value in artifact.facts.items()}
            yield from _wrap_line(f"{artifact.type} #{artifact_id}", _join_pairs(properties), always=True)


def _describe_input(artifact: Artifact) -> str:
    if artifact.role != COMPARED:
        return f"{artifact.type} #{artifact.id}"
    properties = {
        _LABELS.get(name, name): _shorten_digest(value) for name, value in artifact.facts.items() if name in _IDENTITY
    }
    return f"{artifact.type} #{artifact.id}, for comparison" + (f" ({_join_pairs(properties)})" if properties else "")


_IDENTITY = ("dataset_digest", "span", "sha256")  # properties to print of an artifact with the role `compared`


def _wrap_line(label: str, value: str, always: bool = False) -> list[str]:
    """Returns a labelled value as wrapped lines; no line for an empty value, unless `always`."""
    if not value and not always:
        return []
    # A path or digest is never broken, even if it is wider than the terminal.
    lines = textwrap.wrap(
        f"  {strings.line(label):<{_LABEL_WIDTH - 2}}{strings.line(value)}",
        _WIDTH,
        subsequent_indent=" " * _LABEL_WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _join_pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}{_NO_BREAK}{value}" for name, value in values.items())


def _shorten_digest(value: str) -> str:
    return value[:_DIGEST_DIGITS] if len(value) > _DIGEST_DIGITS and set(value) <= _HEX_DIGITS else value


def _main_parameters(execution: Execution) -> dict[str, str]:
    """Returns last part of the name -> value of the main parameters of an execution."""
    leaves = dict(_leaves(execution.parameters))
    prefixes = _MAIN_PARAMETERS.get(execution.component)
    if prefixes is None:
        short_values = {name: value for name, value in leaves.items() if len(value) <= _MAX_VALUE_CHARS}
        return dict(list(short_values.items())[:_MAX_PARAMETERS])
    parameters: dict[str, str] = dict(_thresholds(execution.parameters.get("eval_config")))
    for prefix in prefixes:
        for name, value in leaves.items():
            if (name == prefix or name.startswith(prefix + ".")) and len(value) <= _MAX_VALUE_CHARS:
                parameters[name.rpartition(".")[2]] = value
    return parameters


def _thresholds(evaluation_config: Any) -> Iterator[tuple[str, str]]:
    """Yields the name (metric and bound) and the value of every threshold in a configuration of TFMA."""
    specs = evaluation_config.get("metrics_specs", []) if isinstance(evaluation_config, Mapping) else []
    for metric in (metric for spec in specs for metric in spec.get("metrics", [])):
        for name, value in _leaves(metric):
            if (bound := name.rpartition(".")[2]) in _BOUNDS:
                # The bounds given to TFMA have a margin for its single precision.
                yield f"{metric.get('class_name', '')} {_BOUNDS[bound]}".strip(), f"{round(float(value), 5) + 0.0:g}"


def _leaves(values: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields dotted name and text of every value that is not empty or false."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(values, list) and any(isinstance(value, Mapping) for value in values):
        for value in values:
            yield from _leaves(value, name)
    elif isinstance(values, list):
        if values:
            yield name, " ".join("=".join(map(str, item)) if isinstance(item, list) else str(item) for item in values)
    elif values is not False and values not in (None, ""):
        yield name, str(values)
