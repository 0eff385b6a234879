"""Code shared by the commands: options such as `--config`, `--set` and `--json`, and output of results and progress.

Progress is a bar on a terminal, otherwise a line every `_LINE_SECONDS`; both on standard error. When stages are nested,
such as an ingest within a component, only the innermost stage is shown.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from beam_jobs.common import strings
from beam_jobs.common.strings import clock_time
from beam_jobs.common.system import Progress, rate_and_remaining, repeat
from pipeline.cli.click_groups import FILE
from pipeline.cli.completion import ASSIGNMENT

if TYPE_CHECKING:
    from trainer.options import InputOptions

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
    help="Value of any setting, such as train.epochs=20; repeatable.",
)


def _print_schema(context: click.Context, _: click.Parameter, is_given: bool) -> None:
    """Callback of `--json-schema`: prints the schema of the output, and ends the command."""
    if not is_given or context.resilient_parsing:
        return
    from pipeline.cli.json_schema import result_schema

    print_json(result_schema(context.command_path.partition(" ")[2]))
    context.exit()


def say(line: str) -> None:
    """Prints a line of progress on standard error; standard output contains only the result."""
    echo(line, err=True)


def echo(*lines: str, err: bool = False) -> None:
    """Prints lines, and escapes the control characters in them, line feeds included."""
    click.echo(strings.lines(lines), err=err)


def colour() -> bool | None:
    """Returns the argument `color` of click: False if colours are off (https://no-color.org), None for automatic."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def program() -> str:
    """Returns the command that starts this program: its name if it is on `PATH`, else the path of the program."""
    if os.path.basename(sys.argv[0]) == "__main__.py":
        return "python -m pipeline"
    return "feedline" if shutil.which("feedline") else sys.argv[0]


def input_section(path: str) -> InputOptions:
    """Returns the checked section `input` of a settings file."""
    from beam_jobs.common.settings import from_mapping
    from pipeline import config
    from trainer.options import InputOptions

    return from_mapping(InputOptions, config.load(path).get("input") or {}, "input")


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


_NO_PROGRESS = Progress()
_BAR_SECONDS = 0.2
_LINE_SECONDS = 30.0
_LONG_SECONDS = 3600.0  # from this remaining time on, the line also has the time of the end


@dataclass(eq=False)
class _Stage:
    """A stage of a command, and the start of the period in which its rate is measured."""

    name: str
    total: Progress
    read: Callable[[], Progress]
    started_s: float = field(default_factory=time.monotonic)
    rate_start: Progress = _NO_PROGRESS  # progress at `started_s`
    is_starting: bool = False  # whether no image was finished at the previous line

    def line(self, current: Progress) -> str:
        if current.images and self.is_starting:  # the rate excludes the time until the first images
            self.rate_start, self.started_s = current, time.monotonic()
        self.is_starting = not current.images
        return describe_progress(current, self.total, time.monotonic() - self.started_s, self.rate_start)


_stages: list[_Stage] = []  # active stages, the outermost first


@contextlib.contextmanager
def watch_progress(stage: str, total: Progress, read: Callable[[], Progress]) -> Iterator[None]:
    """Shows finished images, images/s, MB/s, rejects and the remaining time during the block. Is a `system.Watch`.

    Args:
      stage: name of the stage.
      total: progress at the end of the stage; `images` is 0 when it is unknown.
      read: returns the current progress.
    """
    new_stage = _Stage(stage, total, read)
    display: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if not _stages:
        display = _show_bar() if sys.stderr.isatty() else repeat(_LINE_SECONDS, _print_line)
    _stages.append(new_stage)
    try:
        with display:
            yield
    finally:
        _stages.remove(new_stage)


def describe_progress(current: Progress, total: Progress, seconds: float, rate_start: Progress = _NO_PROGRESS) -> str:
    """Returns the progress of a stage as one line; a narrow terminal cuts off the last parts.

    Args:
      current: current progress.
      total: progress at the end of the stage; `images` is 0 when it is unknown.
      seconds: time since `rate_start`, or since the start of the stage.
      rate_start: progress from which the rate is measured.
    """
    parts = [current.note] if current.note else []
    if not current.images:
        parts += [f"0 of {total.images:,} images"] if total.images and not current.note else []
        return ", ".join([*parts, clock_time(seconds)])
    since_start = Progress(current.images - rate_start.images, current.bytes - rate_start.bytes)
    goal = Progress(total.images - rate_start.images if total.images else 0)
    rate, remaining_s = rate_and_remaining(since_start, goal, seconds)
    if not current.note:  # a note has its own count
        total_text = f" of {total.images:,}" if total.images else ""
        parts.append(f"{current.images:,}{total_text} images")
    if remaining_s:
        is_long = remaining_s >= _LONG_SECONDS
        end_text = time.strftime(", until %Y-%m-%d %H:%M", time.localtime(time.time() + remaining_s)) if is_long else ""
        parts.append(f"{clock_time(remaining_s)} left{end_text}")
    if rate:
        parts.append(f"{rate:,.{int(rate < 10)}f} images/s")
    if since_start.bytes and seconds > 0:
        parts.append(f"{since_start.bytes / 1e6 / seconds:,.1f} MB/s")
    if current.rejects:
        parts.append(f"{current.rejects:,} rejected")
    return ", ".join(parts)


def _print_line() -> None:
    stage = _stages[-1]
    say(f"{stage.name}: {stage.line(stage.read())}")


@contextlib.contextmanager
def _show_bar() -> Iterator[None]:
    """Shows a progress bar for the innermost stage during the block."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    bar_width = console.width // 12
    columns = (TextColumn("{task.description}"), BarColumn(bar_width), TextColumn("{task.fields[line]}"))
    tasks: dict[_Stage, TaskID] = {}

    def draw() -> None:
        stage = _stages[-1]
        current = stage.read()
        if stage not in tasks:
            for task in tasks.values():
                bars.remove_task(task)
            tasks.clear()
            tasks[stage] = bars.add_task(stage.name, total=stage.total.images or None, line="")
        line = stage.line(current)
        while len(line) > console.width - bar_width - len(stage.name) - 2 and ", " in line:
            line = line.rpartition(", ")[0]
        bars.update(tasks[stage], completed=current.images, line=line)

    with Bars(*columns, console=console, transient=True) as bars:
        draw()
        with repeat(_BAR_SECONDS, draw):
            yield
