"""`feedline predict`."""

from __future__ import annotations

from dataclasses import asdict

import click

from beam_jobs import visible
from pipeline.cli.common import echo, json_option, print_json


@click.command("predict")
@click.argument("model")
@click.argument("images", nargs=-1, required=True)
@json_option
def command(model: str, images: tuple[str, ...], as_json: bool) -> None:
    """Classify IMAGES with the pushed model in MODEL, a version or the folder of all versions.

    \b
    Example:
      feedline predict work/serving photos/cat/1.jpg
    """
    from trainer.predict import predict

    predictions = predict(model, images)
    if as_json:
        print_json({"predictions": [asdict(prediction) for prediction in predictions]})
        return
    for prediction in predictions:
        echo(f"{visible.line(prediction.path)}  {visible.line(prediction.text)}  {prediction.probability:.4f}")
