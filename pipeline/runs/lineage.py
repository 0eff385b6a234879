"""What a model was made of, read backwards from ML Metadata: through every run that something was cached from."""

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
from pipeline.runs.lineage_find import Locate, as_recorded, code_of, facts_of, parameters_of, public

MADE, JUDGED, COMPARED = "made", "judged", "compared"
_JUDGEMENTS = frozenset(
    ("ModelBlessing", "ModelEvaluation", "InfraBlessing", "DatasetVerdict", "ExampleAnomalies")  # of TFX and our own
)
_SUBJECTS = frozenset(("Examples", "Model", "PushedModel"))  # what judgements are passed on, or are compared with
_OVER = {"complete", "cached", "failed", "canceled"}


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One artifact of a lineage.

    Attributes:
      id: its number in ML Metadata.
      type: such as `Examples`.
      uri: where it was written.
      maker: number of the execution that made it; None when that is not part of the lineage.
      role: `made` when the model came from it, `judged` when it says something about the model or its data,
        `compared` when a judgement compared them with it: an earlier model or dataset, whose lineage is its own.
      facts: name -> value of what identifies it; all of it but `pushed_destination` may be shown to anybody.
    """

    id: int
    type: str
    uri: str
    maker: int | None
    role: str
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One execution of a lineage: the one that did the work, not those that took it from the cache later.

    Attributes:
      id: its number in ML Metadata.
      component: id of the component, such as `Trainer`.
      type: class of the component.
      state: `complete`, or another state of ML Metadata.
      cached: whether the run that made the model took the result from the cache.
      run: name of the run that did the work.
      started_ms: since the epoch.
      seconds: it took.
      code: version of the code that it was given; empty when none was.
      parameters: name -> value, JSON decoded.
      inputs: input key -> numbers of artifacts.
      outputs: output key -> numbers of artifacts, those outside of the lineage included.
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
    """Where an artifact came from.

    Attributes:
      model: number of the artifact that was asked for.
      pipeline: name of the pipeline that made it.
      run: name of the run that made it.
      artifacts: in order of their making.
      executions: in order of their start.
    """

    model: int
    pipeline: str
    run: str
    artifacts: tuple[Artifact, ...]
    executions: tuple[Execution, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the whole graph: nodes, and edges from what was read or ran to what ran or was made."""
        known = {artifact.id for artifact in self.artifacts}
        edges = [
            {"from": f"artifact:{number}", "to": f"execution:{execution.id}", "key": key}
            for execution in self.executions
            for key, number in _pairs(execution.inputs)
            if number in known
        ] + [
            {"from": f"execution:{execution.id}", "to": f"artifact:{number}", "key": key}
            for execution in self.executions
            for key, number in _pairs(execution.outputs)
            if number in known
        ]
        return {
            "model": self.model,
            "pipeline": self.pipeline,
            "run": self.run,
            "artifacts": [asdict(artifact) for artifact in self.artifacts],
            "executions": [asdict(execution) for execution in self.executions],
            "edges": edges,
        }


def trace(store: MetadataStore, model: int, locate: Locate = as_recorded, run: str = "") -> Lineage:
    """Walks from an artifact back to the sources it came from.

    Args:
      store: open database.
      model: number of the artifact, any artifact; see `lineage_find.find`.
      locate: recorded place -> where it is now; the facts are read from the files there.
      run: whose verdicts are meant; that which made the artifact when empty.
    """
    graph = Graph(store)
    run = run or graph.run_of(graph.makers.get(model, 0))
    made = graph.back([model], through=lambda artifact: graph.type_of(artifact) not in _JUDGEMENTS)
    judgements = {artifact for artifact in made if graph.type_of(artifact) in _JUDGEMENTS} - {model}
    made -= judgements
    # The gate guards the model, but nothing that the model is made of comes out of it.
    judgements |= {artifact for artifact in graph.made_in(run, made) if graph.type_of(artifact) in _JUDGEMENTS} - {
        model
    }
    judgements |= {sibling for artifact in judgements for sibling in graph.siblings(artifact)}
    # On through statistics and anomalies, but not into the making of another model or dataset.
    beside = graph.back(judgements, through=lambda artifact: graph.type_of(artifact) not in _SUBJECTS) - made
    roles = dict.fromkeys(made, MADE)
    roles |= {artifact: COMPARED if graph.type_of(artifact) in _SUBJECTS else JUDGED for artifact in beside}
    makers = {graph.makers[one] for one, role in roles.items() if role != COMPARED and one in graph.makers}
    return Lineage(
        model=model,
        pipeline=graph.pipeline_of(run),
        run=run,
        artifacts=tuple(_artifact(graph, number, role, locate) for number, role in sorted(roles.items())),
        executions=tuple(_execution(graph, number, run) for number in sorted(makers)),
    )


def run_details(store: MetadataStore, pipeline: str = "", locate: Locate = as_recorded) -> RunDetails:
    """Returns the newest run as the report shows it: without paths, and while it is still under way, so far.

    Args:
      store: open database.
      pipeline: name of the pipeline; any when empty.
      locate: see `trace`.
    """
    steps = history.newest_run(store, pipeline).values()
    executions = history.newest_executions(store, pipeline)
    newest = _newest_subject(store, executions)
    run = Graph(store).run_of(executions[-1].id) if executions else ""
    lineage = trace(store, newest, locate, run) if newest is not None else None
    return RunDetails(
        steps=tuple(
            StepDetail(component=step.component, state=step.state, seconds=step.seconds)
            for step in steps
            if step.state in _OVER
        ),
        artifacts=tuple(_details(lineage)) if lineage else (),
    )


def _details(lineage: Lineage) -> Iterator[ArtifactDetail]:
    executions = {execution.id: execution for execution in lineage.executions}
    shown = {artifact.id for artifact in lineage.artifacts}
    for artifact in lineage.artifacts:
        maker = executions.get(artifact.maker or 0)
        read = sorted({number for _, number in _pairs(maker.inputs) if number in shown}) if maker else []
        facts = public(artifact.facts) | ({"code": maker.code} if maker and maker.code else {})
        yield ArtifactDetail(
            id=artifact.id,
            type=artifact.type,
            producer=maker.component if maker else artifact.role,
            inputs=tuple(read),
            facts=facts,
        )


def _artifact(graph: Graph, number: int, role: str, locate: Locate) -> Artifact:
    artifact = graph.artifacts[number]
    maker = graph.makers.get(number)
    return Artifact(
        id=number,
        type=artifact.type,
        uri=artifact.uri,
        maker=None if role == COMPARED else maker,
        role=role,
        facts=facts_of(artifact, graph.executions[maker] if maker else None, locate),
    )


def _execution(graph: Graph, number: int, run: str) -> Execution:
    execution = graph.executions[number]
    parameters = parameters_of(execution)
    return Execution(
        id=number,
        component=graph.component_of(number),
        type=execution.type,
        state=graph.state_of(number),
        cached=graph.was_cached(number, run),
        run=graph.run_of(number),
        started_ms=execution.create_time_since_epoch,
        seconds=(execution.last_update_time_since_epoch - execution.create_time_since_epoch) / 1000,
        code=code_of(parameters),
        parameters=parameters,
        inputs=graph.inputs(number),
        outputs=graph.outputs(number),
    )


def _newest_subject(store: MetadataStore, executions: Iterable[pb.Execution]) -> int | None:
    """Returns the artifact of a run that its lineage is shown for: the pushed model, else the model, else the data."""
    numbers = [execution.id for execution in executions]
    events = store.get_events_by_execution_ids(numbers) if numbers else []
    outputs = {event.artifact_id for event in events if event.type == pb.Event.OUTPUT}
    artifacts = store.get_artifacts_by_id(sorted(outputs)) if outputs else []
    for kind in ("PushedModel", "Model", "Examples"):
        if candidates := [artifact.id for artifact in artifacts if artifact.type == kind]:
            return max(candidates)
    return None


def _pairs(keyed: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, int]]:
    return ((key, number) for key, numbers in keyed.items() for number in numbers)


_WIDTH = 100
_LABEL_WIDTH = 26  # of what a line below a component begins with
_DIGITS = 16  # of a digest
_LONG = 60  # characters from which a value is not worth its place
_MOST = 6  # parameters of a component that is not known here
_TIE = "\N{NO-BREAK SPACE}"  # between a name and its value, until the lines are broken
_HEX = frozenset("0123456789abcdef")
# Kind of threshold -> how it reads.
_BOUNDS = {
    "lower_bound": "at least",
    "upper_bound": "at most",
    "absolute": "against the baseline",
    "relative": "of the baseline",
}
_NAMES = {"dataset_digest": "digest", "input_fingerprint": "fingerprint", "pushed_destination": "at"}
# Component -> the parameters that decide about what it makes; a name stands for everything below it.
_DECISIVE: Mapping[str, tuple[str, ...]] = {
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
    "Evaluator": ("example_splits",),  # and the thresholds
    "Pusher": (),
}


def text(lineage: Lineage, model: str, note: str = "") -> str:
    """Returns the lineage as text.

    Args:
      lineage: of an artifact.
      model: what the reader asked for.
      note: what else the reader should know.
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
    read = [artifacts[number] for numbers in execution.inputs.values() for number in numbers if number in artifacts]
    yield from _line("from", ", ".join(_input(artifact) for artifact in read))
    yield from _line("with", _listed(_decisive(execution)))
    if with_code:
        yield from _line("code", execution.code)
    for numbers in execution.outputs.values():
        for number in numbers:
            if number in artifacts:
                artifact = artifacts[number]
                facts = {_NAMES.get(name, name): _short(value) for name, value in artifact.facts.items()}
                yield from _line(f"{artifact.type} #{number}", _listed(facts), always=True)


def _input(artifact: Artifact) -> str:
    if artifact.role != COMPARED:
        return f"{artifact.type} #{artifact.id}"
    facts = {_NAMES.get(name, name): _short(value) for name, value in artifact.facts.items() if name in _IDENTITY}
    return f"{artifact.type} #{artifact.id}, to compare with" + (f" ({_listed(facts)})" if facts else "")


_IDENTITY = ("dataset_digest", "span", "sha256")


def _line(label: str, value: str, always: bool = False) -> list[str]:
    if not value and not always:
        return []
    # A path or digest stays in one piece, even where it is wider than the screen.
    lines = textwrap.wrap(
        f"  {strings.line(label):<{_LABEL_WIDTH - 2}}{strings.line(value)}",
        _WIDTH,
        subsequent_indent=" " * _LABEL_WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_TIE, " ") for line in lines]


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}{_TIE}{value}" for name, value in values.items())


def _short(value: str) -> str:
    return value[:_DIGITS] if len(value) > _DIGITS and set(value) <= _HEX else value


def _decisive(execution: Execution) -> dict[str, str]:
    """Returns the last part of the name -> value of the parameters that matter; never a whole JSON text."""
    leaves = dict(_leaves(execution.parameters))
    wanted = _DECISIVE.get(execution.component)
    if wanted is None:
        short = {name: value for name, value in leaves.items() if len(value) <= _LONG}
        return dict(list(short.items())[:_MOST])
    chosen: dict[str, str] = dict(_thresholds(execution.parameters.get("eval_config")))
    for prefix in wanted:
        for name, value in leaves.items():
            if (name == prefix or name.startswith(prefix + ".")) and len(value) <= _LONG:
                chosen[name.rpartition(".")[2]] = value
    return chosen


def _thresholds(evaluation: Any) -> Iterator[tuple[str, str]]:
    """Yields metric and kind of bound -> bound of every threshold in a configuration of TFMA."""
    specs = evaluation.get("metrics_specs", []) if isinstance(evaluation, Mapping) else []
    for metric in (metric for spec in specs for metric in spec.get("metrics", [])):
        for name, value in _leaves(metric):
            if (bound := name.rpartition(".")[2]) in _BOUNDS:
                # Rounded: the bounds are given to TFMA with a margin for its single precision.
                yield f"{metric.get('class_name', '')} {_BOUNDS[bound]}".strip(), f"{round(float(value), 5) + 0.0:g}"


def _leaves(values: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields dotted name -> text of every value that says something."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(values, list) and any(isinstance(value, Mapping) for value in values):
        for value in values:
            yield from _leaves(value, name)
    elif isinstance(values, list):
        if values:
            yield name, " ".join("=".join(map(str, one)) if isinstance(one, list) else str(one) for one in values)
    elif values is not False and values not in (None, ""):
        yield name, str(values)
