"""`feedline predict`."""

from __future__ import annotations

from dataclasses import asdict

import click

from beam_jobs import visible
from pipeline.cli.common import echo, json_option, print_json
from pipeline.cli.grammar import Command
from pipeline.cli.values import DIR, FILE


@click.command("predict", cls=Command)
@click.argument("model", type=DIR)
@click.argument("images", type=FILE, metavar="IMAGE...", nargs=-1, required=True)
@json_option
def command(model: str, images: tuple[str, ...], as_json: bool) -> None:
    """Classify image files with a pushed model.

    MODEL is a version of a pushed model, or the folder of all versions, of which the newest is taken.

    \b
    Examples:
      feedline predict work/serving photos/cat/1.jpg
      feedline predict work/serving/7 new/*.jpg --json
    """
    from trainer.predict import predict

    predictions = predict(model, images)
    if as_json:
        print_json({"predictions": [asdict(prediction) for prediction in predictions]})
        return
    for prediction in predictions:
        echo(f"{visible.line(prediction.path)}  {visible.line(prediction.text)}  {prediction.probability:.4f}")
