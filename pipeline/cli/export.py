"""`feedline export`."""

from __future__ import annotations

from typing import Any

import click

from beam_jobs.common.strings import plural
from beam_jobs.export.options import FORMATS, STREAMED, About, ExportOptions
from pipeline.cli import errors
from pipeline.cli.click_groups import DIR, SPLIT, Command, Option
from pipeline.cli.common import echo, json_option, print_json, watch_progress
from pipeline.runs import signals

_ABOUT = "Croissant metadata"


@click.command("export", cls=Command)
@click.argument("dataset", type=DIR)
@click.option("--to", required=True, type=click.Choice(FORMATS), help="Format to write.")
@click.option(
    "--out", required=True, type=DIR, help="Directory to write; new or empty, except that croissant may name DATASET."
)
@click.option("--split", "splits", type=SPLIT, multiple=True, help="Split to export; repeatable.  [default: all]")
@click.option("--shard-mb", type=float, help="Target size of a file in MB.  [default: as many files as DATASET has]")
@click.option(
    "--license", cls=Option, heading=_ABOUT, default="", help="URL of the licence or SPDX identifier, as CC-BY-4.0."
)
@click.option(
    "--creator",
    "creators",
    cls=Option,
    heading=_ABOUT,
    multiple=True,
    metavar="NAME",
    help="Person who made the dataset; repeatable.",
)
@click.option(
    "--organization",
    "organizations",
    cls=Option,
    heading=_ABOUT,
    multiple=True,
    metavar="NAME",
    help="Organisation that made the dataset; repeatable.",
)
@click.option("--citation", cls=Option, heading=_ABOUT, default="", help="How to cite it, preferably BibTeX.")
@click.option("--url", cls=Option, heading=_ABOUT, default="", metavar="URL", help="Page of the dataset.")
@click.option(
    "--date-published",
    cls=Option,
    heading=_ABOUT,
    default="",
    metavar="DAY",
    help="Day on which it was published, such as 2026-01-31.",
)
@json_option
def command(
    dataset: str, to: str, out: str, splits: tuple[str, ...], shard_mb: float | None, as_json: bool, **about: Any
) -> None:
    """Copy DATASET to another format, or describe it for other readers.

    webdataset, array_record and parquet (for Hugging Face) copy the records. croissant writes metadata and dali an
    index of each shard; both leave the records where they are.

    \b
    Examples:
      feedline export dataset --to webdataset --out dataset_tar --shard-mb 256
      feedline export dataset --to parquet --out dataset_parquet --split train
      feedline export dataset --to array_record --out dataset_array_record
      feedline export dataset --to dali --out dataset_dali
      feedline export dataset --to croissant --out dataset --license CC-BY-4.0
    """
    options = ExportOptions(dataset=dataset, to=to, out=out, splits=splits, shard_mb=shard_mb, about=About(**about))
    try:
        from beam_jobs.export.run import export

        result = export(options, watch=watch_progress)
    except (KeyboardInterrupt, Exception) as stop:
        # Libraries convert an interruption to other errors.
        if not isinstance(stop, KeyboardInterrupt) and not signals.requested():
            raise
        message = _interruption_message(options)
        report = errors.ErrorReport(message=message, code=signals.code(), kind=errors.INTERRUPTED)
        raise click.exceptions.Exit(errors.fail(report, as_json)) from stop
    if as_json:
        print_json(result.to_json())
        return
    for name, files in result.splits.items():
        images, size = sum(file.samples for file in files), sum(file.bytes for file in files)
        echo(f"{name:<10} {plural(images, 'image')}, {plural(len(files), 'file')}, {size:,} bytes")
    echo(f"{to:<10} {out}")


def _interruption_message(options: ExportOptions) -> str:
    """Returns the message after an interruption; an export is complete or absent."""
    from beam_jobs import storage
    from beam_jobs.export.staging import EXPORT_NAME

    if options.to not in STREAMED:
        return f"interrupted; {options.out} is complete or unchanged"
    if storage.exists(storage.join(options.out, EXPORT_NAME)):  # written last
        return f"interrupted; the export in {options.out} is complete"
    return f"interrupted; nothing was exported, {options.out} is unchanged"
