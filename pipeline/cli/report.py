"""`feedline report`."""

from __future__ import annotations

import click

from beam_jobs import storage


@click.command("report")
@click.argument("directory")
@click.option("--out", default="report.html", show_default=True, help="File to write.")
def command(directory: str, out: str) -> None:
    """Write one self-contained HTML page about the dataset in DIRECTORY.

    \b
    Example:
      feedline report dataset --out report.html
    """
    from components.dataset_report.render import render

    storage.write_bytes(out, render(directory).encode())
    click.echo(out)
