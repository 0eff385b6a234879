"""`feedline lineage`."""

from __future__ import annotations

import os

import click

from beam_jobs.common.strings import plural
from pipeline.cli.click_groups import DIR, Command
from pipeline.cli.common import json_option, print_json


@click.command("lineage", cls=Command)
@click.argument("model", type=DIR)
@click.option("--root", type=DIR, default="", help="Root directory of the pipeline.  [default: found from MODEL]")
@json_option
def command(model: str, root: str, as_json: bool) -> None:
    """Print the data, settings and code that MODEL was made from.

    Prints all artifacts and executions, from the source of the data to the evaluation of the model. MODEL is a pushed
    model, the folder of its versions, or the directory of any artifact of a pipeline.

    \b
    Examples:
      feedline lineage work/serving
      feedline lineage work/artifacts/Trainer/model/7 --json
      feedline lineage copy_of_a_model --root work
    """
    from pipeline.runs.history import open_store
    from pipeline.runs.lineage import text, trace
    from pipeline.runs.lineage_find import DATABASE_NAME, find, find_root, locator, model_dir
    from pipeline.runs.unchanged import traces

    root = find_root(model, root)
    database = os.path.join(root, DATABASE_NAME)
    store = open_store(database)
    match = find(store, model, root)
    lineage = trace(store, match.artifact, locator(root))
    unchanged_runs = traces(root)
    if as_json:
        print_json({"database": database, "note": match.note, "unchanged_runs": unchanged_runs, **lineage.to_json()})
        return
    click.echo(text(lineage, model_dir(model), match.note))
    if unchanged_runs:
        click.echo(f"\n{plural(len(unchanged_runs), 'later run')} without changes, the last at {unchanged_runs[-1]}")
