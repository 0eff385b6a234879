"""`feedline predict`."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from beam_jobs.common import strings
from beam_jobs.errors import DataError, SourceError
from pipeline.cli.click_groups import DIR, FILE, Command
from pipeline.cli.common import echo, json_option, print_json, say

if TYPE_CHECKING:
    from trainer.serving.predict import Prediction


@click.command("predict", cls=Command)
@click.argument("model", type=DIR)
@click.argument("images", type=FILE, metavar="IMAGE...", nargs=-1, required=True)
@json_option
@click.pass_context
def command(context: click.Context, model: str, images: tuple[str, ...], as_json: bool) -> None:
    """Classify image files with a pushed model.

    MODEL is a version of a pushed model, or the folder of all versions, whose newest one is used. Files are checked and
    converted like the images of the dataset that the model was trained on. A file that the ingest would reject is left
    out, its reason is printed, and the exit code is 3. For a model with several labels per image, all labels with a
    probability over 0.5 are printed.

    \b
    Examples:
      feedline predict work/serving photos/cat/1.jpg
      feedline predict work/serving/7 new/*.jpg --json
    """
    for path in images:
        _check_file(path)
    from trainer.serving.predict import predict

    refusals: dict[str, str] = {}

    def on_refusal(path: str, error: SourceError) -> None:
        refusals[path] = str(error)
        say(f"left out: {strings.line(error)}")

    predictions = predict(model, images, on_refusal)
    if as_json:
        prediction_values = [asdict(prediction) for prediction in predictions]
        print_json({"predictions": prediction_values, "refused": refusals})
    else:
        _show(predictions)
    if refusals:
        context.exit(DataError.exit_code)


def _show(predictions: list[Prediction]) -> None:
    for prediction in predictions:
        labels = [f"{strings.line(label.text)}  {label.probability:.4f}" for label in prediction.labels]
        echo("  ".join([strings.line(prediction.path), *(labels or ["no label over 0.5"])]))


def _check_file(path: str) -> None:
    """Checks a path before the slow import of TensorFlow."""
    if os.path.isdir(path):
        pattern = os.path.join(shlex.quote(path), "*.jpg")
        raise SourceError(f"{path} is a directory; give the image files in it, such as {pattern}")
    if not os.path.exists(path):
        raise SourceError(f"{path} does not exist; give image files")
