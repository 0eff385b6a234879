"""Options of commands that run Beam jobs: which engine, and its settings."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
import yaml

from beam_jobs.engines import ENGINES, Engine, options_of
from beam_jobs.errors import OptionError
from pipeline import yaml_text
from pipeline.mapping import from_mapping

F = TypeVar("F", bound=Callable[..., Any])


def engine_options(function: F) -> F:
    """Adds `--runner` and `--runner-option` to a command; `engine_of` makes an engine of them."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def engine_of(runner: str, assignments: Sequence[str]) -> Engine:
    """Returns the engine that the options name.

    Raises:
      OptionError: a setting is unknown, missing or of the wrong type.
    """
    options = options_of(runner)
    hints = typing.get_type_hints(options)
    values = dict(_parsed(assignment, hints) for assignment in assignments)
    return from_mapping(options, values, "--runner-option")


def _parsed(assignment: str, hints: Mapping[str, Any]) -> tuple[str, Any]:
    key, separator, value = assignment.partition("=")
    if not separator or not key:
        raise OptionError(f"--runner-option is {assignment!r}; write it as parallelism=4")
    try:
        return key, yaml_text.parse_value(value, hints.get(key) is str)
    except yaml.YAMLError as error:
        raise OptionError(f"--runner-option {key} is {value!r}, which is not a YAML value") from error


_OPTIONS = (
    click.option("--runner", type=click.Choice(ENGINES), default="local", show_default=True, help="Where Beam runs."),
    click.option(
        "--runner-option",
        "runner_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Setting of the runner, as parallelism=4; repeatable.",
    ),
)
