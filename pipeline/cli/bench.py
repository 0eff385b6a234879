"""`feedline bench`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from beam_jobs.errors import CorruptDataset, SourceError
from beam_jobs.storage import disk
from pipeline.cli.click_groups import DIR, FILE, SPLIT, Group
from pipeline.cli.common import config_option, input_section, json_option, print_json, say
from pipeline.cli.completion import OP_CHAIN

if TYPE_CHECKING:
    from trainer.bench.measure import Bench
    from trainer.options import InputOptions


@click.group("bench", cls=Group)
def command() -> None:
    """Measure the speed of the input pipeline on this machine.

    \b
    Example:
      feedline bench input dataset
    """


@command.command("input")
@click.argument("dataset", type=DIR)
@click.option("--split", type=SPLIT, default="train", show_default=True, help="Split to read.")
@config_option("YAML file of settings; only its section input is used.")
@click.option("--image-side", type=int, help="Height and width, in pixels.  [default: 224]")
@click.option("--batch-size", type=int, help="Images per batch.  [default: 64]")
@click.option(
    "--ops", type=OP_CHAIN, metavar="OPS", help="Image ops, as in training.  [default: decode_random_crop(SIDE)|flip]"
)
@click.option("--threads", type=int, help="Threads of the input pipeline; 0 is one per core.  [default: 0]")
@click.option(
    "--model", metavar="NAME", default="", help="Measure the training step of this model too, such as small_cnn."
)
@click.option("--ablation", is_flag=True, help="Also measure without each optimisation in turn.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.05),
    metavar="FLOAT",
    default=1.0,
    show_default=True,
    help="Duration of one measurement in seconds; about 16 cases are measured, three times each.",
)
@click.option("--html", type=FILE, help="HTML file to write, with a chart of the results.")
@json_option
def bench_input(dataset: str, **values: Any) -> None:
    """Find the bottleneck of the input pipeline of DATASET.

    Measures the stages separately and together. Compares the rate with decoding without a pipeline, with a naive
    pipeline and with the pipeline of the TensorFlow tutorials. Names the option that removes the bottleneck.

    \b
    Examples:
      feedline bench input dataset
      feedline bench input dataset --ablation --html bench.html
      feedline bench input dataset --image-side 32 --ops "decode|resize(32)|flip"
      feedline bench input dataset --model small_cnn --batch-size 128
    """
    options = _input_options(values)
    if values["html"]:
        disk.check_file("--html", values["html"])
    from trainer.training.malloc import keep_buffers

    keep_buffers()  # the same memory settings as in training
    from trainer.bench.bottleneck import find_bottleneck
    from trainer.bench.measure import measure, prepare
    from trainer.bench.report import as_page, as_text

    with _convert_errors(dataset, values["split"]):
        bench = prepare(dataset, values["split"], options, values["model"], values["ablation"])
        with _show_progress(bench, values["seconds"]) as on_sample:
            results = measure(bench, values["seconds"], on_sample)
    if values["as_json"]:
        bottleneck = dataclasses.asdict(find_bottleneck(results))
        print_json({**results.to_json(), "bottleneck": bottleneck, "html": values["html"] or ""})
    else:
        click.echo(as_text(results))
    if values["html"]:
        disk.write_file("--html", values["html"], as_page(results).encode())
        say(values["html"])


def _input_options(values: Mapping[str, Any]) -> InputOptions:
    """Returns the section `input` of a settings file, with the options of the command line."""
    from trainer.options import InputOptions

    options = input_section(values["config_path"]) if values["config_path"] else InputOptions()
    fields = {"image_side": "image_side_px", "batch_size": "batch_size", "ops": "train_ops", "threads": "threads"}
    changes = {field: values[option] for option, field in fields.items() if values[option] is not None}
    return dataclasses.replace(options, **changes)


@contextlib.contextmanager
def _convert_errors(dataset: str, split: str) -> Iterator[None]:
    """Converts errors of TensorFlow about a damaged shard to `CorruptDataset`, which names the record."""
    import tensorflow as tf

    from trainer.input.corrupt_records import find_damage
    from trainer.input.faults import cause_of

    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError, OSError) as error:
        cause = cause_of(error)
        if isinstance(cause, SourceError):
            raise cause from error
        damages = find_damage(dataset, split)
        if not damages:
            raise
        more = f", and {len(damages) - 1} more" if len(damages) > 1 else ""
        raise CorruptDataset(f"{damages[0]}{more}; see `feedline verify {dataset}`, ingest again") from error


@contextlib.contextmanager
def _show_progress(bench: Bench, seconds: float) -> Iterator[Callable[[str], None]]:
    """Shows duration and progress; yields a function to call with the name of the case before each measurement."""
    from trainer.bench.meter import ROUNDS

    count = len(bench.subjects)
    total_s = round(bench.duration(seconds))
    say(f"{count} cases, {seconds:g} s each, in {ROUNDS} interleaved rounds: about {total_s // 60}:{total_s % 60:02d}")
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=count * ROUNDS)
        sample_numbers = iter(range(count * ROUNDS))
        yield lambda name: bars.update(task, description=name, completed=next(sample_numbers))
