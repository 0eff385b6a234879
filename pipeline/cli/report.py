"""`feedline report`."""

from __future__ import annotations

import os

import click

from beam_jobs import storage
from beam_jobs.errors import OptionError
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

    page = render(directory)
    try:
        storage.write_bytes(out, page.encode())
    except OSError as error:
        raise OptionError(f"--out {out} cannot be written: {error.strerror}") from error
    if as_json:
        print_json({"report": os.path.abspath(out)})
    else:
        click.echo(out)
