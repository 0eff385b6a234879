"""`feedline run`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from beam_jobs.errors import GateFailed, OptionError
from components.dataset_gate.limits import MODES
from pipeline.cli.click_groups import DIR, FILE, PATH, Command
from pipeline.cli.common import config_option, echo, json_option, print_json, program, say, set_option, watch_progress
from pipeline.cli.ingest_options import check_options_have_effect, ingest_options, option_names, option_settings
from pipeline.cli.init import CONFIG_NAME

if TYPE_CHECKING:
    from pipeline.config import PipelineConfig
    from pipeline.runs.unchanged import RunOutput

fast_option = click.option(
    "--fast/--no-fast",
    default=True,
    help="Repeat the output of the last run if nothing changed, or start all components.  [default: fast]",
)


@click.command("run", cls=Command)
@click.option(
    "--images",
    type=PATH,
    help="Your images: a folder with one sub-folder per class, or any other SOURCE of `feedline ingest`.",
)
@click.option("--dataset", type=DIR, help="Published dataset to use instead of --images.")
@click.option("--span", type=int, help="Number that replaces {SPAN} in the path.  [default: the newest]")
@click.option("--span-version", type=int, help="Number that replaces {VERSION}.  [default: the newest of the span]")
@click.option("--root", type=DIR, help="Directory for everything the pipeline writes.")
@config_option("YAML file of settings; options override it.")
@click.option(
    "--schema",
    type=FILE,
    help="Reviewed schema file; if it does not exist, the first run writes it.  [default: infer one]",
)
@click.option("--image-side", type=int, help="Height and width of the model input, in pixels.  [default: 224]")
@click.option("--batch-size", type=int, help="Images per step.  [default: 64]")
@click.option("--epochs", type=int, help="Passes over the training split.  [default: 10]")
@click.option("--min-accuracy", type=float, help="Accuracy, 0-1, below which no model is pushed.  [default: 0]")
@click.option("--gate", type=click.Choice(MODES), help="What to do when the data crosses a limit.  [default: stop]")
@set_option
@fast_option
@click.option("--verbose", is_flag=True, help="Also print the plan of the input pipeline and the memory of the model.")
@click.option("--show-config", is_flag=True, help="Print every setting with its origin; run nothing.")
@ingest_options
@json_option
@click.pass_context
def command(
    context: click.Context,
    config_path: str | None,
    assignments: tuple[str, ...],
    verbose: bool,
    show_config: bool,
    as_json: bool,
    fast: bool,
    **values: Any,
) -> None:
    """Run the whole TFX pipeline on your own images, in this process.

    Steps whose inputs did not change since the last run in --root are not repeated; if nothing changed, the output of
    the last run is printed. Settings come from --config, then from the environment (FEEDLINE_TRAIN__EPOCHS=20), then
    from the options, which have the highest priority.

    \b
    Examples:
      feedline run --images photos --root work
      feedline run --images labels.csv --root work --image-side 128 --epochs 20
      feedline run --images "photos/{SPAN}" --root work --schema schema.pbtxt
      feedline run --dataset dataset --root work
      feedline run --config pipeline.yaml --set train.learning_rate=0.001
      feedline run --config pipeline.yaml --show-config
    """
    from pipeline.settings.layers import gather, listing, listing_text

    settings = gather(config_path, option_settings(values), assignments, options=option_names(context.command, values))
    if "root" not in settings.values:
        hint = f", as in -c {CONFIG_NAME}" if os.path.isfile(CONFIG_NAME) else f"; `{program()} init` creates one"
        raise OptionError(f"--root is missing; give it, or set root in the --config file{'' if config_path else hint}")
    if not settings.values.keys() & {"ingest", "dataset"}:
        raise OptionError("--images is missing; give it or --dataset, or set ingest.source or dataset in --config FILE")
    config = settings.build()
    if show_config:
        values = listing(settings, config)
        if as_json:
            print_json(values)
        else:
            click.echo(listing_text(values))
        return
    if "engine" in settings.values:
        say(f"engine ({settings.layer('engine')}) is ignored: `run` uses only this process")
    if config.ingest:
        check_options_have_effect(values, config.ingest)
    with settings.annotate_errors():
        output = run_or_repeat(config, fast, verbose=verbose)
    print_output(output, as_json, "IMAGE...")


def run_or_repeat(
    config: PipelineConfig, fast: bool = True, prepare: Callable[[], object] | None = None, verbose: bool = False
) -> RunOutput:
    """Runs a pipeline, or returns the output of the last run if nothing changed.

    Args:
      config: configuration of the pipeline.
      fast: whether to use the record of the last run.
      prepare: function to call before a run; not called when nothing changed.
      verbose: whether to print the plan of the input pipeline, too.

    Raises:
      FeedlineError: see `local.run`.
    """
    from pipeline.runs import root, unchanged

    if fast and unchanged.is_recorded(config.root):
        with root.locked(config.root):
            last_run = unchanged.find(config)
        if last_run:
            output, end_time = last_run
            say(f"nothing changed since the run of {end_time}; --no-fast starts all components")
            return output
    if prepare:
        prepare()
    from pipeline.runners import local

    result = local.run(config, say, watch_progress, verbose)
    from pipeline.runs import summary  # imports TFX, which changes the environment that `local.run` records

    return summary.run_output(result)


def print_output(output: RunOutput, as_json: bool, image: str, *lines: str) -> None:
    """Prints the output of a run, further lines, and a command that classifies an image with the model.

    Raises:
      GateFailed: the model was not pushed.
    """
    if as_json:
        print_json(output.values)
    else:
        click.echo("\n" + output.text)
        if lines:
            echo(*lines)
    if output.refusal:
        raise GateFailed(output.refusal)
    if not as_json:
        echo("", f"Try next:  {program()} predict {output.model_dir} {image}")
