"""A lineage as text for a terminal of 100 columns: a paragraph a component, from the source to the model."""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from beam_jobs.common import printable
from pipeline.runs.lineage import COMPARED, Artifact, Execution, Lineage

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
        lines += ["", *_execution(execution, artifacts, with_code=len(codes) > 1)]
    return printable.lines(lines)


def _execution(execution: Execution, artifacts: Mapping[int, Artifact], with_code: bool) -> Iterator[str]:
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
        f"  {printable.line(label):<{_LABEL_WIDTH - 2}}{printable.line(value)}",
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
                # Rounded: the bounds are told to TFMA with a margin for its single precision.
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
