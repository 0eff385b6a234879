"""`feedline report`."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from beam_jobs import storage
from beam_jobs.errors import OptionError, SourceError
from beam_jobs.storage import disk
from pipeline.cli.click_groups import DIR, FILE, Command
from pipeline.cli.common import config_option, echo, input_section, json_option, print_json, watch_progress


@click.command("report", cls=Command)
@click.argument("dataset", type=DIR)
@click.option("--model", type=DIR, help="Pushed model; adds its accuracy and its worst mistakes.")
@click.option("--images", "--source", "source", type=DIR, help="Folder of the source images; adds the rejected ones.")
@config_option("YAML file of settings; adds images as these settings prepare them for the training.")
@click.option("--out", type=FILE, default="report.html", show_default=True, help="File to write.")
@click.option("--all", "folder", type=DIR, help="New folder for pages with all images, up to a million images.")
@json_option
def command(
    dataset: str,
    model: str | None,
    source: str | None,
    config_path: str | None,
    out: str,
    folder: str | None,
    as_json: bool,
) -> None:
    """Write one self-contained HTML page about DATASET.

    \b
    Examples:
      feedline report dataset --out report.html
      feedline report dataset --images photos --model work/serving
      feedline report dataset --all pages
    """
    input_options = asdict(input_section(config_path)) if config_path else None
    if source and not os.path.isdir(source):
        raise SourceError(f"--images {source} is not a directory; give the folder that the images came from")
    disk.check_file("--out", out)
    if folder:
        _check_folder(folder)
    from components.dataset_report.render import render

    if model:
        from trainer.serving.predict import newest_version

        model = newest_version(model)
    page = render(dataset, model=model or "", input_options=input_options, source=source or "").encode()
    disk.write_file("--out", out, page)
    result = {"report": os.path.abspath(out), "bytes": len(page)}
    if folder:
        from components.dataset_report.render import render_all

        render_all(dataset, folder, model or "", watch_progress)
        result["all"] = storage.join(folder if storage.is_remote(folder) else os.path.abspath(folder), "index.html")
    if as_json:
        print_json(result)
    else:
        echo(out, *([os.path.join(folder, "index.html")] if folder else []))


def _check_folder(folder: str) -> None:
    from beam_jobs.export import staging

    try:
        staging.check(folder)
    except OptionError as error:
        raise OptionError(str(error).replace("out is", "--all is", 1)) from error
