"""`feedline run`."""

from __future__ import annotations

from typing import Any

import click
import yaml

from beam_jobs.errors import OptionError
from components.dataset_gate.limits import MODES
from pipeline import config as configuration
from pipeline import run_local
from pipeline.cli.common import check_pushed, ingest_options, ingest_settings, json_option, print_json, program, say


@click.command("run")
@click.option("--images", help="Folder with one sub-folder a class, or a table; {SPAN} stands for the newest batch.")
@click.option("--dataset", help="Published dataset to take as it is, instead of --images.")
@click.option("--span", type=int, help="Number for {SPAN} in --images or --dataset.  [default: the newest]")
@click.option("--span-version", type=int, help="Number for {VERSION} in them.  [default: the newest of the span]")
@click.option("--root", help="Directory of everything the pipeline writes.")
@click.option("--config", "config_path", help="YAML file of settings; options given here win over it.")
@click.option(
    "--schema", help="Reviewed schema file; the first run writes one that is not there.  [default: infer one]"
)
@click.option("--image-side", type=int, help="Height and width the model sees, in pixels.  [default: 224]")
@click.option("--batch-size", type=int, help="Images a step.  [default: 64]")
@click.option("--epochs", type=int, help="Passes over the training split.  [default: 10]")
@click.option("--min-accuracy", type=float, help="Accuracy below which no model is pushed.  [default: 0]")
@click.option("--gate", type=click.Choice(MODES), help="What a crossed limit of the data does.  [default: stop]")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any setting, as train.model=small_cnn.")
@ingest_options
@json_option
def command(config_path: str | None, assignments: tuple[str, ...], as_json: bool, **values: Any) -> None:
    """Run the whole TFX pipeline on your own images, in this process.

    What did not change since the last run in ROOT is served from the cache.

    \b
    Examples:
      feedline run --images photos --root work
      feedline run --images labels.csv --root work --image-side 128 --epochs 20
      feedline run --images "photos/{SPAN}" --root work --schema schema.pbtxt
      feedline run --config pipeline.yaml --set train.learning_rate=0.001
    """
    settings = configuration.load(config_path) if config_path else {}
    settings = _merge(settings, _given(values))
    for assignment in assignments:
        settings = _merge(settings, _parse_assignment(assignment))
    if "root" not in settings:
        raise OptionError("--root is missing; give it, or name it in the --config file")
    if not settings.keys() & {"ingest", "dataset"}:
        raise OptionError("--images is missing; give it or a --dataset, or name one in the --config file")
    summary = run_local.run(configuration.build(settings), say)
    from pipeline.summary import text

    if as_json:
        print_json(summary.to_json())
    else:
        click.echo("\n" + text(summary))
    check_pushed(summary)
    if not as_json:
        click.echo(f"\nTry next:  {program()} predict {summary.model_dir} IMAGE...")


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Returns nested settings from the options that were given."""
    places = {
        "images": ("ingest", "source"),
        "root": ("root",),
        "dataset": ("dataset",),
        "span": ("span",),
        "span_version": ("version",),
        "schema": ("schema",),
        "gate": ("gate", "mode"),
        "image_side": ("input", "image_side_px"),
        "batch_size": ("input", "batch_size"),
        "epochs": ("train", "epochs"),
        "min_accuracy": ("evaluate", "min_accuracy"),
    }
    ingest = ingest_settings(values)
    settings: dict[str, Any] = {"ingest": ingest} if ingest else {}
    for option, place in places.items():
        if values[option] is not None:
            settings = _merge(settings, _nest(place, values[option]))
    return settings


def _parse_assignment(text: str) -> dict[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise OptionError(f"--set is {text!r}; write it as train.epochs=20")
    try:
        return _nest(tuple(key.split(".")), yaml.safe_load(value))
    except yaml.YAMLError as error:
        raise OptionError(f"--set {key} is {value!r}, which is not a YAML value") from error


def _nest(place: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(place):
        value = {name: value}
    return value


def _merge(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: _merge(base.get(key), value) for key, value in over.items()}}
    return over
