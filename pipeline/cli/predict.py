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

    MODEL is a version of a pushed model, or the folder of all versions, of which the newest is taken. Files go through
    the checks and the pixel policy of the dataset that it was trained on. One that the ingest would reject is left out,
    the reason is printed, and the exit code is 3. A model with several labels per image prints every label with a
    probability over 0.5.

    \b
    Examples:
      feedline predict work/serving photos/cat/1.jpg
      feedline predict work/serving/7 new/*.jpg --json
    """
    for path in images:
        _check_file(path)
    from trainer.serving.predict import predict

    refused: dict[str, str] = {}

    def refuse(path: str, error: SourceError) -> None:
        refused[path] = str(error)
        say(f"left out: {strings.line(error)}")

    predictions = predict(model, images, refuse)
    if as_json:
        answers = [asdict(prediction) for prediction in predictions]
        print_json({"predictions": answers, "refused": refused})
    else:
        _show(predictions)
    if refused:
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
