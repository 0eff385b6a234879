"""`feedline compile`."""

from __future__ import annotations

import importlib

import click

from pipeline.cli.common import say
from pipeline.settings import gather

TARGETS = {"airflow": "pipeline.run_airflow", "kubeflow": "pipeline.run_kubeflow"}


@click.command("compile")
@click.option("--target", type=click.Choice(tuple(TARGETS)), required=True, help="Orchestrator to write for.")
@click.option("-c", "--config", "config_path", required=True, help="YAML file of settings.")
@click.option("--out", required=True, help="File to write.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any setting, as train.epochs=20.")
def command(target: str, config_path: str, out: str, assignments: tuple[str, ...]) -> None:
    """Write the pipeline as a file that an orchestrator runs.

    \b
    Examples:
      feedline compile --target airflow -c pipeline.yaml --out ~/airflow/dags/feedline_dag.py
      feedline compile --target kubeflow -c pipeline.yaml --out pipeline.json
    """
    settings = gather(config_path, {}, assignments)
    with settings.explained():
        hint = importlib.import_module(TARGETS[target]).compile(settings.values, out)
    click.echo(out)
    say(hint)
