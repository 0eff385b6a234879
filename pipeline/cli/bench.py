"""`feedline bench`."""

from __future__ import annotations

from dataclasses import asdict

import click

from pipeline.cli.common import json_option, print_json


@click.group("bench")
def command() -> None:
    """Measure how fast images flow on this machine."""


@command.command("input")
@click.argument("directory")
@click.option("--split", default="train", show_default=True, help="Split to read.")
@click.option("--image-side", type=int, default=224, show_default=True, help="Height and width, in pixels.")
@click.option("--batch-size", type=int, default=64, show_default=True, help="Images a batch.")
@click.option("--ops", default="", help="Ops of training.  [default: decode_random_crop(SIDE)|flip]")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=3.0,
    show_default=True,
    help="Length of one measurement; there are six.",
)
@json_option
def bench_input(
    directory: str, split: str, image_side: int, batch_size: int, ops: str, seconds: float, as_json: bool
) -> None:
    """Measure the input pipeline over the dataset in DIRECTORY beside the naive one, in turn.

    \b
    Example:
      feedline bench input dataset
    """
    from trainer.bench import compare
    from trainer.options import InputOptions

    options = InputOptions(image_side_px=image_side, batch_size=batch_size, train_ops=ops)
    rates = compare(directory, split, options, seconds)
    if as_json:
        print_json({**asdict(rates), "ratio": rates.ratio})
        return
    click.echo(f"feedline  {rates.feedline:,.0f} images/s")
    click.echo(f"naive     {rates.naive:,.0f} images/s")
    click.echo(f"ratio     {rates.ratio:.2f}")
