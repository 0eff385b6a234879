"""Code shared by the commands: options such as `--config`, `--set` and `--json`, and output of results and progress.

Progress is a bar on a terminal, otherwise a line every `_LINE_SECONDS`; both on standard error.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import click

from beam_jobs.common import strings
from beam_jobs.common.system import Progress, rate_and_left, repeat
from pipeline.cli.click_groups import FILE
from pipeline.cli.completion import ASSIGNMENT

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """Adds `--json`, and `--json-schema`, which prints the schema of its output, to a command."""
    for option in reversed(_JSON_OPTIONS):
        function = option(function)
    return function


def config_option(help_text: str, *, required: bool = False) -> Callable[[F], F]:
    """Returns a decorator that adds `--config` to a command; the help names the sections that the command reads."""
    return click.option("-c", "--config", "config_path", type=FILE, required=required, help=help_text)


set_option = click.option(
    "--set",
    "assignments",
    type=ASSIGNMENT,
    multiple=True,
    metavar="KEY=VALUE",
    help="Any setting, such as train.epochs=20; repeatable.",
)


def _print_schema(context: click.Context, _: click.Parameter, enabled: bool) -> None:
    if not enabled or context.resilient_parsing:
        return
    from pipeline.cli.json_schema import result_schema

    print_json(result_schema(context.command_path.partition(" ")[2]))
    context.exit()


def say(line: str) -> None:
    """Prints a line of progress on standard error; standard output holds only the result."""
    echo(line, err=True)


def echo(*lines: str, err: bool = False) -> None:
    """Prints lines with control characters, line feeds included, escaped."""
    click.echo(strings.lines(lines), err=err)


def colour() -> bool | None:
    """Returns False when colours are disabled (https://no-color.org); None when a terminal shows them."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def program() -> str:
    """Returns the command that starts this program: its name, or the path it was called with when not on `PATH`."""
    if os.path.basename(sys.argv[0]) == "__main__.py":
        return "python -m pipeline"
    return "feedline" if shutil.which("feedline") else sys.argv[0]


def terminal_columns(default: int = 80) -> int:
    """Returns the width of the terminal in characters; `default` when it is unknown, which some terminals give as 0."""
    return shutil.get_terminal_size((default, 24)).columns or default


def print_json(values: Mapping[str, Any]) -> None:
    """Prints a result as JSON."""
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


_BAR_SECONDS = 0.2
_LINE_SECONDS = 15.0
_LONG_SECONDS = 3600.0  # time left from which on the line has the time of the end


@contextlib.contextmanager
def watch_progress(stage: str, total: Progress, read: Callable[[], Progress]) -> Iterator[None]:
    """Shows images done, images/s, MB/s, rejects and the time left while the block runs; a `jobs.Watch`.

    Args:
      stage: name of the stage.
      total: progress at the end of the stage; `images` is 0 when it is unknown.
      read: returns the current progress.
    """
    started = time.monotonic()

    def line() -> str:
        return describe_progress(read(), total, time.monotonic() - started)

    if sys.stderr.isatty():
        display = _bar(stage, total, read, line)
    else:
        display = repeat(_LINE_SECONDS, lambda: say(f"{stage}: {line()}"))
    with display:
        yield


def describe_progress(done: Progress, total: Progress, seconds: float) -> str:
    """Returns the progress of a stage as one line.

    Args:
      done: current progress.
      total: progress at the end of the stage; `images` is 0 when it is unknown.
      seconds: time since the start of the stage.
    """
    rate, left = rate_and_left(done, total, seconds)
    goal = f" of {total.images:,}" if total.images else ""
    parts = [f"{done.images:,}{goal} images", f"{rate:,.0f} images/s"]
    parts.append(f"{done.bytes / 1e6 / seconds if seconds > 0 else 0:,.1f} MB/s")
    if done.rejects:
        parts.append(f"{done.rejects:,} rejected")
    if left:
        is_long = left >= _LONG_SECONDS
        end = time.strftime(", until %Y-%m-%d %H:%M", time.localtime(time.time() + left)) if is_long else ""
        parts.append(f"{_format_duration(left)} left{end}")
    return ", ".join(parts)


@contextlib.contextmanager
def _bar(stage: str, total: Progress, read: Callable[[], Progress], line: Callable[[], str]) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}"))
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(stage, total=total.images or None, line="")
        with repeat(_BAR_SECONDS, lambda: bars.update(task, completed=read().images, line=line())):
            yield


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
