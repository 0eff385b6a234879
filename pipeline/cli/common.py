"""What several commands share: `--config`, `--set`, `--json`, and how results are printed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from beam_jobs.common import strings
from pipeline.cli.completion import ASSIGNMENT
from pipeline.cli.param_types import FILE

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """Adds `--json` to a command that gives a result, and `--json-schema`, which says what that object is."""
    for option in reversed(_JSON_OPTIONS):
        function = option(function)
    return function


def config_option(meaning: str, *, required: bool = False) -> Callable[[F], F]:
    """Adds `--config`; it means the same file everywhere, and the help says what of it counts."""
    return click.option("-c", "--config", "config_path", type=FILE, required=required, help=meaning)


set_option = click.option(
    "--set",
    "assignments",
    type=ASSIGNMENT,
    multiple=True,
    metavar="KEY=VALUE",
    help="Any setting, such as train.epochs=20; repeatable.",
)


def _print_schema(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    from pipeline.cli.json_schema import schema_of

    print_json(schema_of(context.command_path.partition(" ")[2]))
    context.exit()


def say(line: str) -> None:
    """Prints a line of progress; on standard error, so that standard output holds the result alone."""
    echo(line, err=True)


def echo(*lines: str, err: bool = False) -> None:
    """Prints lines; controls that names and labels hold, line feeds too, reach the terminal as escapes."""
    click.echo(strings.lines(lines), err=err)


def colour() -> bool | None:
    """Returns False where colours are switched off (https://no-color.org); None where a terminal gets them."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def program() -> str:
    """Returns what to type for this program: its name, or the way it was called when it is not on the search path."""
    if os.path.basename(sys.argv[0]) == "__main__.py":
        return "python -m pipeline"
    return "feedline" if shutil.which("feedline") else sys.argv[0]


def terminal_columns(unknown: int = 80) -> int:
    """Returns how wide the terminal is, in characters; `unknown` for one that does not say, which may call that 0."""
    return shutil.get_terminal_size((unknown, 24)).columns or unknown


def print_json(values: Mapping[str, Any]) -> None:
    """Prints a result for machines."""
    click.echo(strings.to_json(values))


_JSON_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
    click.option(
        "--json-schema",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_schema,
        help="Print the JSON Schema of that object; do nothing else.",
    ),
)
