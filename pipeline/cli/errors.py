"""Errors of the command line: an exception becomes one line, or one JSON object, and an exit code."""

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
from pipeline.runs import signals

_MAX_MESSAGE_CHARS = 1000  # longest message of an unforeseen error
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
    """Returns the report of an exception, for users."""
    if isinstance(error, click.ClickException):
        message = strings.line(_click_message(error))
        return ErrorReport(message=message, code=UsageError.exit_code, kind=_kind(UsageError))
    if isinstance(error, FeedlineError):
        return ErrorReport(message=str(error), code=error.exit_code, kind=_kind(type(error)))
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _TFX_MODULES:
        message = f"this command needs TFX, but module {error.name!r} is missing; {stack.pip_install('.[tfx]')}"
        return ErrorReport(message=message, code=UsageError.exit_code, kind=_kind(UsageError))
    message = f"{type(error).__name__}: {_truncate(str(error))} (run again with --debug for the traceback)"
    return ErrorReport(message=strings.line(message), code=1, kind=UNFORESEEN)


def interruption(remark: str) -> ErrorReport:
    """Returns the report of a signal that ended a command, with a remark of the command, if any."""
    state = "; ".join(filter(None, ["interrupted", remark]))
    message = f"{state}; finished work is kept, run the same command again to continue"
    return ErrorReport(message=message, code=signals.code(), kind=INTERRUPTED)


def fail(report: ErrorReport, as_json: bool) -> int:
    """Prints an error, and returns its exit code."""
    print_error(report, as_json)
    return report.code


def _truncate(text: str) -> str:
    """Truncates a message of a library, which may contain the bytes of a record."""
    excess_chars = len(text) - _MAX_MESSAGE_CHARS
    return f"{text[:_MAX_MESSAGE_CHARS]}... and {excess_chars:,} more characters" if excess_chars > 0 else text


def print_error(report: ErrorReport, as_json: bool) -> None:
    """Prints an error on standard error, on several lines only if the message lists problems; JSON on one line."""
    if as_json:
        document = {"error": {"message": report.message, "code": report.code, "kind": report.kind}}
        click.echo(json.dumps(document).replace("\x7f", "\\u007f"), err=True)
        return
    prefix = click.style("feedline: error:", fg="red", bold=True)
    click.echo(f"{prefix} {strings.printable(report.message)}", err=True, color=colour())


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
    parameter, value_type = error.param, error.param.type
    name = max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name
    choices = [str(choice) for choice in value_type.choices] if isinstance(value_type, click.Choice) else []
    if isinstance(error, click.MissingParameter):
        return f"{name} is missing" + (f"; known are {', '.join(choices)}" if choices else "")
    unknown_choice = _INVALID_CHOICE.match(error.message)
    if unknown_choice and choices:
        return unknown(name, ast.literal_eval(unknown_choice["value"]), choices)
    message = error.message.rstrip(".").removesuffix(" range")  # `is not a valid integer range` names a class of click
    return f"{name}: {message}"
