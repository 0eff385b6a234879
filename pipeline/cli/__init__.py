"""The command line. Commands are imported when they are called, so that `feedline --help` is fast."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata

import click
from click.shell_completion import CompletionItem

from beam_jobs import stack
from beam_jobs.common import strings
from pipeline.cli import click_groups, errors
from pipeline.cli.common import colour
from pipeline.runs import signals

_DEBUG, _JSON = "--debug", "--json"
_PLUGINS_VARIABLE = "PYDANTIC_DISABLE_PLUGINS"

# Name -> (module, summary). The summaries are here so that listing the commands imports no module.
_COMMANDS = {
    "demo": ("pipeline.cli.demo", "Run the whole pipeline on real handwritten digits."),
    "init": ("pipeline.cli.init", "Write a commented pipeline.yaml for a new project."),
    "ingest": ("pipeline.cli.ingest", "Turn raw images into a published dataset of TFRecord shards."),
    "run": ("pipeline.cli.run", "Run the whole TFX pipeline here: raw images to a pushed model."),
    "compile": ("pipeline.cli.compile", "Write the pipeline as a file that Airflow or Kubeflow runs."),
    "doctor": ("pipeline.cli.doctor", "List missing requirements of a target, and how to meet them."),
    "upgrade": ("pipeline.cli.upgrade", "Convert a dataset of an earlier release into the newest format."),
    "verify": ("pipeline.cli.verify", "Check a dataset: every checksum, count and image."),
    "inspect": ("pipeline.cli.inspect", "Show the content of a dataset or a TFRecord file."),
    "diff": ("pipeline.cli.diff", "List the differences between two datasets."),
    "export": ("pipeline.cli.export", "Copy a dataset to another format, or write metadata for one."),
    "report": ("pipeline.cli.report", "Write one self-contained HTML page about a dataset."),
    "schema": ("pipeline.cli.schema", "Infer, read and compare schemas."),
    "lineage": ("pipeline.cli.lineage", "Print the data, settings and code that a model was made from."),
    "predict": ("pipeline.cli.predict", "Classify image files with a pushed model."),
    "bench": ("pipeline.cli.bench", "Find the bottleneck of the input pipeline."),
    "completion": ("pipeline.cli.completion", "Print a script that completes commands in bash, zsh or fish."),
}


@contextlib.contextmanager
def _without_pydantic_plugins() -> Iterator[None]:
    """Disables plugins of pydantic, whose search reads the metadata of every package. Feedline uses no plugins."""
    previous = os.environ.get(_PLUGINS_VARIABLE)
    os.environ[_PLUGINS_VARIABLE] = "__all__"
    try:
        yield
    finally:
        os.environ.pop(_PLUGINS_VARIABLE)
        if previous is not None:
            os.environ[_PLUGINS_VARIABLE] = previous


class _LazyGroup(click_groups.Group):
    """Imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        with _without_pydantic_plugins():
            return importlib.import_module(_COMMANDS[name][0]).command

    def summaries(self, ctx: click.Context) -> Iterable[tuple[str, str]]:
        return [(name, summary) for name, (_, summary) in _COMMANDS.items()]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        matches = [(name, summary) for name, summary in self.summaries(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=summary) for name, summary in matches]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]


def _show_version(context: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given and not context.resilient_parsing:
        click.echo(f"feedline, version {metadata.version('feedline')}\n{stack.summary()}")
        context.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(_DEBUG, is_flag=True, help="Show tracebacks and library warnings; allowed after COMMAND, too.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Raw images to a validated, sharded TFRecord dataset and a trained model.

    \b
    Examples:
      feedline demo
      feedline ingest photos --out dataset
      feedline run --images photos --root work

    `feedline COMMAND --help` shows the options of a command, with examples.

    \b
    Exit codes:
      0    success
      1    unexpected error; --debug shows the traceback
      2    the request is invalid; nothing was changed
      3    a check of the data, of the model, or of `doctor` failed
      130  interrupted by Ctrl-C; run the same command again to continue
      143  ended by SIGTERM; run the same command again to continue
    """
    context.color = colour()
    if debug:
        return
    warnings.filterwarnings("ignore")
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # its messages repeat the error that is printed
    stack.quieten_tensorflow()
    # Beam's workers and StatisticsGen would each reserve all memory of a GPU, which the Trainer needs.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits with its code. Prints an error as one line, a traceback only with `--debug`."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    signals.install()  # SIGTERM is handled like Ctrl-C
    try:
        code = execute(arguments)
    except KeyboardInterrupt:  # a second signal, during the handling of the first
        code = report_interruption(arguments)
    signals.end(code)


def report_interruption(arguments: Sequence[str]) -> int:
    """Prints the error of a signal that no command handled; returns the exit code."""
    signals.ignore()
    return errors.fail(errors.interruption(""), _JSON in _before_dashes(arguments))


def execute(arguments: list[str]) -> int:
    """Runs the command line and returns its exit code; errors are printed on standard error."""
    arguments = _move_debug(arguments)
    debug, as_json = _DEBUG in arguments[:1], _JSON in _before_dashes(arguments)
    try:
        return cli.main(arguments, prog_name="feedline", standalone_mode=False) or 0
    except click.exceptions.Exit as exit_request:
        return exit_request.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        # The cause of click.Abort is the KeyboardInterrupt, whose text the command adds to the message.
        return errors.fail(errors.interruption(str(error.__cause__ or error)), as_json)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except Exception as error:  # noqa: BLE001 - every error is printed as one line
        if signals.requested():  # libraries convert an interruption to other errors
            return errors.fail(errors.interruption(""), as_json)
        if debug and not isinstance(error, click.ClickException):
            click.echo(strings.printable(traceback.format_exc()), err=True)
        return errors.fail(errors.to_error_report(error), as_json)


def _before_dashes(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments before `--`."""
    return list(itertools.takewhile(lambda argument: argument != "--", arguments))


def _move_debug(arguments: list[str]) -> list[str]:
    """Moves `--debug` to the front, where it is an option of the program; users append it to a command."""
    if _DEBUG not in _before_dashes(arguments):
        return arguments
    index = arguments.index(_DEBUG)
    return [_DEBUG, *arguments[:index], *arguments[index + 1 :]]
