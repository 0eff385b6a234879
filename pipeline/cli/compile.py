"""`feedline compile`."""

from __future__ import annotations

import importlib
import os

import click

from beam_jobs import storage
from pipeline.cli.click_groups import FILE, Command
from pipeline.cli.common import config_option, echo, json_option, print_json, say, set_option

TARGETS = {"airflow": "pipeline.runners.airflow", "kubeflow": "pipeline.runners.kubeflow"}


@click.command("compile", cls=Command)
@click.option("--target", type=click.Choice(tuple(TARGETS)), required=True, help="Orchestrator that runs the file.")
@config_option("YAML file of settings.", required=True)
@click.option("--out", type=FILE, required=True, help="File to write.")
@set_option
@json_option
def command(target: str, config_path: str, out: str, assignments: tuple[str, ...], as_json: bool) -> None:
    """Write the pipeline as a file that an orchestrator runs.

    \b
    Examples:
      feedline compile --target airflow -c pipeline.yaml --out dags/photos.py
      feedline compile --target kubeflow -c pipeline.yaml --out photos.json
    """
    from pipeline.settings.layers import gather

    settings = gather(config_path, {}, assignments)
    with settings.annotate_errors():
        hint = importlib.import_module(TARGETS[target]).compile(settings.values, out)
    if as_json:
        path = out if storage.is_remote(out) else os.path.abspath(out)
        print_json({"target": target, "file": path, "next": hint})
        return
    echo(out)
    say(hint)
