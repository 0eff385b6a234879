"""What went wrong, as one line for people or as one object for machines."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import click

from beam_jobs import stack
from beam_jobs.common import strings
from beam_jobs.common.strings import unknown
from beam_jobs.errors import FeedlineError, UsageError
from pipeline.cli.common import colour

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


def of(error: Exception) -> Mistake:
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


def tell(mistake: Mistake, as_json: bool) -> None:
    """Prints it on standard error: one line, or several where the message lists problems; JSON is always one."""
    if as_json:
        document = {"error": {"message": mistake.message, "code": mistake.code, "kind": mistake.kind}}
        click.echo(json.dumps(document).replace("\x7f", "\\u007f"), err=True)
        return
    head = click.style("feedline: error:", fg="red", bold=True)
    click.echo(f"{head} {strings.printable(mistake.message)}", err=True, color=colour())


def kinds() -> Iterator[tuple[str, int, str]]:
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
