"""The command line. Commands load when they are called, so that `feedline --help` never waits for TensorFlow."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence

import click

from beam_jobs import visible
from beam_jobs.errors import FeedlineError
from beam_jobs.suggest import unknown
from pipeline import interrupt

# Name -> (module, one line of help). The help stands here so that listing the commands imports none of them.
_COMMANDS = {
    "demo": ("pipeline.cli.demo", "Real handwritten digits, end to end."),
    "init": ("pipeline.cli.init", "A commented pipeline.yaml to start from."),
    "ingest": ("pipeline.cli.ingest", "Raw images to a published dataset of TFRecord shards."),
    "run": ("pipeline.cli.run", "The whole TFX pipeline, locally: raw images to a pushed model and a report."),
    "status": ("pipeline.cli.status", "How far the commands are that run in the background."),
    "compile": ("pipeline.cli.compile", "The pipeline as a file that Airflow or Kubeflow runs."),
    "doctor": ("pipeline.cli.doctor", "What is missing for a target, and the command that repairs it."),
    "verify": ("pipeline.cli.verify", "Read a dataset back: every checksum, count and image."),
    "inspect": ("pipeline.cli.inspect", "Look inside a dataset or any TFRecord file."),
    "report": ("pipeline.cli.report", "One self-contained HTML page about a dataset."),
    "schema": ("pipeline.cli.schema", "Infer, read and compare schemas."),
    "lineage": ("pipeline.cli.lineage", "What a model was made of, back to the source."),
    "predict": ("pipeline.cli.predict", "Classify image files with a pushed model."),
    "bench": ("pipeline.cli.bench", "Find what holds up the input pipeline."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        return importlib.import_module(_COMMANDS[name][0]).command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS:
            raise click.UsageError(unknown("command", args[0], _COMMANDS))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, help="Show tracebacks and library warnings.")
@click.version_option(package_name="feedline", prog_name="feedline")
def cli(debug: bool) -> None:
    """Raw images to a validated, sharded TFRecord dataset and a trained model.

    \b
    Example:
      feedline run --images photos --root work

    Exit codes: 0 done; 2 the request is wrong, nothing was touched; 3 a check failed: of the data,
    which is not published, or of `doctor`; 130 interrupted and 143 asked to end by SIGTERM, run it again
    to continue; 1 anything else.
    """
    if debug:
        return
    warnings.filterwarnings("ignore")
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # what it would say is said in one line, as an error
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Beam's workers and StatisticsGen would each take a whole GPU; the Trainer asks for it when it runs alone.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits with its code; an error is one line, with a traceback only under `--debug`."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    interrupt.install()  # a polite kill is an interruption too: what is finished stays, and the same command continues
    try:
        code = execute(arguments)
    except KeyboardInterrupt:  # one more, while the first was answered
        code = interrupt.code()
    interrupt.end(code)


def execute(arguments: list[str]) -> int:
    """Runs the command line and returns its exit code; what went wrong is on standard error."""
    debug = "--debug" in arguments
    try:
        return cli.main(arguments, prog_name="feedline", standalone_mode=False, obj=tuple(arguments)) or 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt) as stop:
        return _interrupted(str(stop))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except Exception as error:  # noqa: BLE001 - the last line of defence; the user sees one line
        if interrupt.requested():  # libraries turn an interruption into an error of their own
            return _interrupted("")
        if debug and not isinstance(error, click.ClickException):
            click.echo(visible.text(traceback.format_exc()), err=True)
        return _fail(*_explain(error))


def _interrupted(remark: str) -> int:
    said = "; ".join(filter(None, ["interrupted", remark]))
    return _fail(f"{said}; what is finished is kept, run the same command again to continue", interrupt.code())


def _explain(error: Exception) -> tuple[str, int]:
    """Returns the one line and the exit code of an error."""
    if isinstance(error, click.ClickException):
        return _click_message(error), 2
    if isinstance(error, FeedlineError):
        return str(error), error.exit_code
    return f"{type(error).__name__}: {error} (run again with --debug for the traceback)", 1


def _click_message(error: click.ClickException) -> str:
    where = f"; see `{error.ctx.command_path} --help`" if isinstance(error, click.UsageError) and error.ctx else ""
    return error.format_message().rstrip(".") + where


def _fail(message: str, code: int) -> int:
    click.echo(f"{click.style('feedline: error:', fg='red', bold=True)} {visible.text(message)}", err=True)
    return code
