"""Code shared by the commands: options such as `--config`, `--set` and `--json`, and output of results and progress.

An error is printed as one line, or as one JSON object. Progress is a bar on a terminal, otherwise a line every
`_LINE_SECONDS`; both on standard error.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from beam_jobs import stack
from beam_jobs.common import strings
from beam_jobs.common.strings import unknown
from beam_jobs.common.system import Progress
from beam_jobs.errors import FeedlineError, UsageError
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


_MAX_MESSAGE_CHARS = 1000  # of an unforeseen error
INTERRUPTED, UNFORESEEN = "interrupted", "unforeseen"
# Modules of the extra `tfx` of setup.py; ingest, input and training work without it.
_TFX_MODULES = {"ml_metadata", "sklearn", "tfx", "tfx_bsl"} | {
    f"tensorflow_{part}" for part in ("data_validation", "metadata", "model_analysis", "transform")
}
_INVALID_CHOICE = re.compile(r"(?P<value>'.*'|\".*\") is not (?:one of )?['\"]", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class ErrorReport:
    """An error that ended a command.

    Attributes:
      message: text for users, with the remedy.
      code: exit code.
      kind: one of the kinds of `error_kinds`, which are stable between releases.
    """

    message: str
    code: int
    kind: str


def to_error_report(error: Exception) -> ErrorReport:
    """Converts an exception for the user."""
    if isinstance(error, click.ClickException):
        message = strings.line(_click_message(error))
        return ErrorReport(message=message, code=UsageError.exit_code, kind=_kind(UsageError))
    if isinstance(error, FeedlineError):
        return ErrorReport(message=str(error), code=error.exit_code, kind=_kind(type(error)))
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _TFX_MODULES:
        message = f"this needs TFX, and there is no module {error.name!r} here; {stack.pip_install('.[tfx]')}"
        return ErrorReport(message=message, code=UsageError.exit_code, kind=_kind(UsageError))
    message = f"{type(error).__name__}: {_truncate(str(error))} (run again with --debug for the traceback)"
    return ErrorReport(message=strings.line(message), code=1, kind=UNFORESEEN)


def _truncate(text: str) -> str:
    """Truncates a message of a library, which may hold the bytes of a record."""
    more = len(text) - _MAX_MESSAGE_CHARS
    return f"{text[:_MAX_MESSAGE_CHARS]}... and {more:,} more characters" if more > 0 else text


def print_error(report: ErrorReport, as_json: bool) -> None:
    """Prints an error on standard error, on several lines only if the message lists problems; JSON on one line."""
    if as_json:
        document = {"error": {"message": report.message, "code": report.code, "kind": report.kind}}
        click.echo(json.dumps(document).replace("\x7f", "\\u007f"), err=True)
        return
    head = click.style("feedline: error:", fg="red", bold=True)
    click.echo(f"{head} {strings.printable(report.message)}", err=True, color=colour())


def error_kinds() -> Iterator[tuple[str, int, str]]:
    """Yields every kind, its exit code and its meaning."""
    yield from _class_kinds(FeedlineError)
    yield INTERRUPTED, 130, "The command was interrupted by Ctrl-C, or, with code 143, by SIGTERM."
    yield UNFORESEEN, 1, "Any other error."


def _class_kinds(cls: type[FeedlineError]) -> Iterator[tuple[str, int, str]]:
    yield _kind(cls), cls.exit_code, (cls.__doc__ or "").partition("\n")[0]
    for subclass in cls.__subclasses__():
        if subclass.__module__ == FeedlineError.__module__:
            yield from _class_kinds(subclass)


def _kind(cls: type[FeedlineError]) -> str:
    """Returns the name of an error class, or of its base class in `beam_jobs.errors`, in snake case."""
    cls = next(base for base in cls.__mro__ if base.__module__ == FeedlineError.__module__)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


def _click_message(error: click.ClickException) -> str:
    hint = f"see `{error.ctx.command_path} --help`" if isinstance(error, click.UsageError) and error.ctx else ""
    message = _translate_click(error)
    return f"{message}{' ' if message.endswith('?') else '; '}{hint}" if hint else message


def _translate_click(error: click.ClickException) -> str:
    """Returns the message of click in the style of this program."""
    if isinstance(error, click.NoSuchOption):
        suggestion = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
        return f"there is no option {error.option_name!r}{suggestion}"
    if not isinstance(error, click.BadParameter) or error.param is None:
        return error.format_message().rstrip(".")
    name, kind = _parameter_name(error.param), error.param.type
    choices = [str(choice) for choice in kind.choices] if isinstance(kind, click.Choice) else []
    if isinstance(error, click.MissingParameter):
        return f"{name} is missing" + (f"; known are {', '.join(choices)}" if choices else "")
    unknown_choice = _INVALID_CHOICE.match(error.message)
    if unknown_choice and choices:
        return unknown(name, ast.literal_eval(unknown_choice["value"]), choices)
    message = error.message.rstrip(".").removesuffix(" range")  # `is not a valid integer range` names a class of click
    return f"{name}: {message}"


def _parameter_name(parameter: click.Parameter) -> str:
    return max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name


_BAR_SECONDS = 0.2
_LINE_SECONDS = 15.0


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
        display = _repeat(_LINE_SECONDS, lambda: say(f"{stage}: {line()}"))
    with display:
        yield


def describe_progress(done: Progress, total: Progress, seconds: float) -> str:
    """Returns the progress of a stage as one line.

    Args:
      done: current progress.
      total: progress at the end of the stage; `images` is 0 when it is unknown.
      seconds: time since the start of the stage.
    """
    rate = done.images / seconds if seconds > 0 else 0.0
    goal = f" of {total.images:,}" if total.images else ""
    parts = [f"{done.images:,}{goal} images", f"{rate:,.0f} images/s"]
    parts.append(f"{done.bytes / 1e6 / seconds if seconds > 0 else 0:,.1f} MB/s")
    if done.rejects:
        parts.append(f"{done.rejects:,} rejected")
    if rate and total.images > done.images:
        parts.append(f"{_format_duration((total.images - done.images) / rate)} left")
    return ", ".join(parts)


@contextlib.contextmanager
def _bar(stage: str, total: Progress, read: Callable[[], Progress], line: Callable[[], str]) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}"))
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(stage, total=total.images or None, line="")
        with _repeat(_BAR_SECONDS, lambda: bars.update(task, completed=read().images, line=line())):
            yield


@contextlib.contextmanager
def _repeat(seconds: float, show: Callable[[], object]) -> Iterator[None]:
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(seconds):
            show()

    thread = threading.Thread(target=tick, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
