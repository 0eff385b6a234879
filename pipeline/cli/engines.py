"""Options of commands that run Beam jobs: which engine, and its settings, typed or from the section `engine`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
import yaml

from beam_jobs.common import yaml_text
from beam_jobs.common.settings import Described, fields, from_mapping
from beam_jobs.errors import OptionError
from beam_jobs.runners import ENGINES, Engine, options_of
from pipeline.cli.common import config_option

F = TypeVar("F", bound=Callable[..., Any])
_DEFAULT = "local"


def engine_options(function: F) -> F:
    """Adds `--config`, `--runner` and `--runner-option` to a command; `engine_of` makes an engine of them."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def engine_of(runner: str | None, assignments: Sequence[str], section: Mapping[str, Any] | None = None) -> Engine:
    """Returns the engine that the options and the configuration name.

    Args:
      runner: of `--runner`; None when it was not given: that of the section, else `local`.
      assignments: of `--runner-option`, which win over the section.
      section: `engine` of the configuration. It is passed over when it belongs to a runner other than the chosen one.

    Raises:
      OptionError: a setting is unknown, missing or of the wrong type, or the section names settings and no runner.
    """
    settings = dict(section or {})
    named = settings.pop("runner", None)
    if settings and not (named or runner):
        raise OptionError(f"engine.{next(iter(settings))} is set and engine.runner is not; set that too, or --runner")
    chosen = runner or named or _DEFAULT
    if named and chosen != named:
        settings = {}
    options = options_of(chosen)
    known = fields(options)
    if assignments and not known:
        raise OptionError(f"--runner-option is {assignments[0]!r}; the {chosen} runner has none, name it with --runner")
    given = dict(_parsed(assignment, known) for assignment in assignments)
    return from_mapping(options, settings | given, "engine" if settings else "--runner-option")


def _parsed(assignment: str, known: Mapping[str, Described]) -> tuple[str, Any]:
    key, separator, value = assignment.partition("=")
    if not separator or not key:
        raise OptionError(f"--runner-option is {assignment!r}; write it as parallelism=4")
    try:
        return key, yaml_text.parse_value(value, key in known and known[key].hint is str)
    except yaml.YAMLError as error:
        raise OptionError(f"--runner-option {key} is {value!r}, which is not a YAML value") from error


_OPTIONS = (
    config_option("YAML file of settings; its sections engine and ingest are read, and options win over them."),
    click.option(
        "--runner",
        type=click.Choice(ENGINES),
        help=f"Where Beam runs.  [default: engine.runner of the configuration, else {_DEFAULT}]",
    ),
    click.option(
        "--runner-option",
        "runner_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any setting of the runner, such as parallelism=4; repeatable.",
    ),
)
