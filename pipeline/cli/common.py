"""What several commands share: `--config`, `--set` and `--json`, how results are printed, errors and progress.

An error is one line for people or one object for machines. How far a stage is shows as a bar on a terminal, and as a
plain line now and then anywhere else; both on standard error.
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


_LONGEST = 1000  # characters of a message of an unforeseen error
INTERRUPTED, UNFORESEEN = "interrupted", "unforeseen"
# What the extra `tfx` of setup.py brings; ingest, input and training work without it.
_OF_TFX = {"ml_metadata", "sklearn", "tfx", "tfx_bsl"} | {
    f"tensorflow_{part}" for part in ("data_validation", "metadata", "model_analysis", "transform")
}
_NOT_A_CHOICE = re.compile(r"(?P<value>'.*'|\".*\") is not (?:one of )?['\"]", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """Why a command ended without doing what it was asked for.

    Attributes:
      message: for people, with the remedy.
      code: of the exit.
      kind: one of `kinds()`, which stay what they are from release to release.
    """

    message: str
    code: int
    kind: str


def mistake_of(error: Exception) -> Mistake:
    """Returns what an error means to a user."""
    if isinstance(error, click.ClickException):
        return Mistake(message=strings.line(_of_click(error)), code=UsageError.exit_code, kind=_kind(UsageError))
    if isinstance(error, FeedlineError):
        return Mistake(message=str(error), code=error.exit_code, kind=_kind(type(error)))
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _OF_TFX:
        message = f"this needs TFX, and there is no module {error.name!r} here; {stack.pip_install('.[tfx]')}"
        return Mistake(message=message, code=UsageError.exit_code, kind=_kind(UsageError))
    message = f"{type(error).__name__}: {_bounded(str(error))} (run again with --debug for the traceback)"
    return Mistake(message=strings.line(message), code=1, kind=UNFORESEEN)


def _bounded(text: str) -> str:
    """Returns a message of a library without its end, where it holds data: a record in hex fills any screen."""
    more = len(text) - _LONGEST
    return f"{text[:_LONGEST]}... and {more:,} more characters" if more > 0 else text


def tell_mistake(mistake: Mistake, as_json: bool) -> None:
    """Prints it on standard error: one line, or several where the message lists problems; JSON is always one."""
    if as_json:
        document = {"error": {"message": mistake.message, "code": mistake.code, "kind": mistake.kind}}
        click.echo(json.dumps(document).replace("\x7f", "\\u007f"), err=True)
        return
    head = click.style("feedline: error:", fg="red", bold=True)
    click.echo(f"{head} {strings.printable(mistake.message)}", err=True, color=colour())


def mistake_kinds() -> Iterator[tuple[str, int, str]]:
    """Yields every kind, its exit code, and what it means."""
    yield from _of_tree(FeedlineError)
    yield INTERRUPTED, 130, "Somebody pressed Ctrl-C, or, with code 143, SIGTERM asked the command to end."
    yield UNFORESEEN, 1, "Anything else."


def _of_tree(cls: type[FeedlineError]) -> Iterator[tuple[str, int, str]]:
    yield _kind(cls), cls.exit_code, (cls.__doc__ or "").partition("\n")[0]
    for found in cls.__subclasses__():
        if found.__module__ == FeedlineError.__module__:
            yield from _of_tree(found)


def _kind(cls: type[FeedlineError]) -> str:
    """Returns the name of an error class; of one from elsewhere that of its base in the tree of `beam_jobs.errors`."""
    cls = next(base for base in cls.__mro__ if base.__module__ == FeedlineError.__module__)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


def _of_click(error: click.ClickException) -> str:
    where = f"see `{error.ctx.command_path} --help`" if isinstance(error, click.UsageError) and error.ctx else ""
    message = _message_of(error)
    return f"{message}{' ' if message.endswith('?') else '; '}{where}" if where else message


def _message_of(error: click.ClickException) -> str:
    """Returns what click found, in the words of this program."""
    if isinstance(error, click.NoSuchOption):
        near = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
        return f"there is no option {error.option_name!r}{near}"
    if not isinstance(error, click.BadParameter) or error.param is None:
        return error.format_message().rstrip(".")
    name, kind = _name(error.param), error.param.type
    choices = [str(choice) for choice in kind.choices] if isinstance(kind, click.Choice) else []
    if isinstance(error, click.MissingParameter):
        return f"{name} is missing" + (f"; known are {', '.join(choices)}" if choices else "")
    unknown_choice = _NOT_A_CHOICE.match(error.message)
    if unknown_choice and choices:
        return unknown(name, ast.literal_eval(unknown_choice["value"]), choices)
    message = error.message.rstrip(".").removesuffix(" range")  # `is not a valid integer range` names a class of click
    return f"{name}: {message}"


def _name(parameter: click.Parameter) -> str:
    return max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name


_BAR_SECONDS = 0.2
_LINE_SECONDS = 15.0


@contextlib.contextmanager
def watch_progress(stage: str, total: Progress, read: Callable[[], Progress]) -> Iterator[None]:
    """Shows images done, images/s, MB/s, rejects and the time left while the block runs; a `jobs.Watch`.

    Args:
      stage: its name.
      total: what it will have done; `images` 0 when it is unknown.
      read: tells what is done.
    """
    started = time.monotonic()

    def line() -> str:
        return describe_progress(read(), total, time.monotonic() - started)

    if sys.stderr.isatty():
        shown = _bar(stage, total, read, line)
    else:
        shown = _every(_LINE_SECONDS, lambda: say(f"{stage}: {line()}"))
    with shown:
        yield


def describe_progress(done: Progress, total: Progress, seconds: float) -> str:
    """Returns one line about how far a stage is.

    Args:
      done: what is done.
      total: what will be done; `images` 0 when it is unknown.
      seconds: since the stage began.
    """
    rate = done.images / seconds if seconds > 0 else 0.0
    known = f" of {total.images:,}" if total.images else ""
    parts = [f"{done.images:,}{known} images", f"{rate:,.0f} images/s"]
    parts.append(f"{done.bytes / 1e6 / seconds if seconds > 0 else 0:,.1f} MB/s")
    if done.rejects:
        parts.append(f"{done.rejects:,} rejected")
    if rate and total.images > done.images:
        parts.append(f"{_clock((total.images - done.images) / rate)} left")
    return ", ".join(parts)


@contextlib.contextmanager
def _bar(stage: str, total: Progress, read: Callable[[], Progress], line: Callable[[], str]) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}"))
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(stage, total=total.images or None, line="")
        with _every(_BAR_SECONDS, lambda: bars.update(task, completed=read().images, line=line())):
            yield


@contextlib.contextmanager
def _every(seconds: float, show: Callable[[], object]) -> Iterator[None]:
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


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
