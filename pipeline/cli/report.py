"""`feedline report`."""

from __future__ import annotations

import os

import click

from beam_jobs import storage
from pipeline.cli.common import json_option, print_json


@click.command("report")
@click.argument("directory")
@click.option("--out", default="report.html", show_default=True, help="File to write.")
@json_option
def command(directory: str, out: str, as_json: bool) -> None:
    """Write one self-contained HTML page about the dataset in DIRECTORY.

    \b
    Example:
      feedline report dataset --out report.html
    """
    from components.dataset_report.render import render

    storage.write_bytes(out, render(directory).encode())
    if as_json:
        print_json({"report": os.path.abspath(out)})
    else:
        click.echo(out)
