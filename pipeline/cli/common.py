"""Code shared by the commands: options such as `--config`, `--set` and `--json`, and output of results and progress.

Progress is a bar on a terminal, otherwise a line every `_LINE_SECONDS`; both on standard error. Of stages within
stages, as of an ingest within a component, the innermost is shown.
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
from beam_jobs.common.system import Progress, rate_and_left, repeat
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


_NOTHING = Progress()
_BAR_SECONDS = 0.2
_LINE_SECONDS = 30.0
_LONG_SECONDS = 3600.0  # time left from which on the line has the time of the end


@dataclass(eq=False)
class _Stage:
    name: str
    total: Progress
    read: Callable[[], Progress]
    started: float = field(default_factory=time.monotonic)
    first: Progress = _NOTHING
    is_starting: bool = False  # whether it was seen without an image

    def line(self, done: Progress) -> str:
        if done.images and self.is_starting:  # the time until the first images says nothing about the others
            self.first, self.started = done, time.monotonic()
        self.is_starting = not done.images
        return describe_progress(done, self.total, time.monotonic() - self.started, self.first)


_stages: list[_Stage] = []  # that run, from the outermost to the innermost


@contextlib.contextmanager
def watch_progress(stage: str, total: Progress, read: Callable[[], Progress]) -> Iterator[None]:
    """Shows images done, images/s, MB/s, rejects and the time left while the block runs; a `system.Watch`.

    Args:
      stage: name of the stage.
      total: progress at the end of the stage; `images` is 0 when it is unknown.
      read: returns the current progress.
    """
    new = _Stage(stage, total, read)
    display: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if not _stages:
        display = _bar() if sys.stderr.isatty() else repeat(_LINE_SECONDS, _say_line)
    _stages.append(new)
    try:
        with display:
            yield
    finally:
        _stages.remove(new)


def describe_progress(done: Progress, total: Progress, seconds: float, first: Progress = _NOTHING) -> str:
    """Returns the progress of a stage as one line; what may be missing on a narrow terminal comes last.

    Args:
      done: current progress.
      total: progress at the end of the stage; `images` is 0 when it is unknown.
      seconds: time since `first`, or since the start of the stage.
      first: progress from which the rate is measured.
    """
    parts = [done.note] if done.note else []
    if not done.images:
        parts += [f"0 of {total.images:,} images"] if total.images and not done.note else []
        return ", ".join([*parts, clock_time(seconds)])
    counted = Progress(done.images - first.images, done.bytes - first.bytes)
    rate, left = rate_and_left(counted, Progress(total.images - first.images if total.images else 0), seconds)
    if not done.note:  # which has a count of its own
        goal = f" of {total.images:,}" if total.images else ""
        parts.append(f"{done.images:,}{goal} images")
    if left:
        is_long = left >= _LONG_SECONDS
        end = time.strftime(", until %Y-%m-%d %H:%M", time.localtime(time.time() + left)) if is_long else ""
        parts.append(f"{clock_time(left)} left{end}")
    if rate:
        parts.append(f"{rate:,.{int(rate < 10)}f} images/s")
    if counted.bytes and seconds > 0:
        parts.append(f"{counted.bytes / 1e6 / seconds:,.1f} MB/s")
    if done.rejects:
        parts.append(f"{done.rejects:,} rejected")
    return ", ".join(parts)


def _say_line() -> None:
    stage = _stages[-1]
    say(f"{stage.name}: {stage.line(stage.read())}")


@contextlib.contextmanager
def _bar() -> Iterator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    bar_width = console.width // 12
    columns = (TextColumn("{task.description}"), BarColumn(bar_width), TextColumn("{task.fields[line]}"))
    shown: dict[_Stage, TaskID] = {}

    def draw() -> None:
        stage = _stages[-1]
        done = stage.read()
        if stage not in shown:
            for task in shown.values():
                bars.remove_task(task)
            shown.clear()
            shown[stage] = bars.add_task(stage.name, total=stage.total.images or None, line="")
        line = stage.line(done)
        while len(line) > console.width - bar_width - len(stage.name) - 2 and ", " in line:
            line = line.rpartition(", ")[0]
        bars.update(shown[stage], completed=done.images, line=line)

    with Bars(*columns, console=console, transient=True) as bars:
        draw()
        with repeat(_BAR_SECONDS, draw):
            yield
