"""`feedline export`."""

from __future__ import annotations

from typing import Any

import click

from beam_jobs.common.strings import plural
from beam_jobs.export.options import FORMATS, STREAMED, ExportOptions
from beam_jobs.options import About
from pipeline.cli import errors
from pipeline.cli.click_groups import DIR, SPLIT, Command
from pipeline.cli.common import echo, json_option, print_json, watch_progress
from pipeline.cli.ingest_options import about_options, ingest_settings
from pipeline.runs import signals


@click.command("export", cls=Command)
@click.argument("dataset", type=DIR)
@click.option("--to", required=True, type=click.Choice(FORMATS), help="Format to write.")
@click.option(
    "--out", required=True, type=DIR, help="Directory to write; new or empty, or DATASET itself for croissant."
)
@click.option("--split", "splits", type=SPLIT, multiple=True, help="Split to export; repeatable.  [default: all]")
@click.option("--shard-mb", type=float, help="Target size of a file in MB.  [default: as many files as DATASET has]")
@about_options
@json_option
def command(
    dataset: str, to: str, out: str, splits: tuple[str, ...], shard_mb: float | None, as_json: bool, **about_values: Any
) -> None:
    """Copy DATASET to another format, or write metadata for one.

    webdataset, array_record and parquet (for Hugging Face) copy the records. croissant writes metadata and dali an
    index of each shard; neither copies records. The options about the dataset, such as --license, override the values
    in the dataset; croissant and the dataset card of parquet contain them.

    \b
    Examples:
      feedline export dataset --to webdataset --out dataset_tar --shard-mb 256
      feedline export dataset --to parquet --out dataset_parquet --split train
      feedline export dataset --to array_record --out dataset_array_record
      feedline export dataset --to dali --out dataset_dali
      feedline export dataset --to croissant --out dataset --license CC-BY-4.0
    """
    about_dataset = About(**ingest_settings(about_values).get("about", {}))
    options = ExportOptions(dataset=dataset, to=to, out=out, splits=splits, shard_mb=shard_mb, about=about_dataset)
    try:
        from beam_jobs.export.run import export

        result = export(options, watch=watch_progress)
    except (KeyboardInterrupt, Exception) as error:
        # Libraries convert an interruption to other errors.
        if not isinstance(error, KeyboardInterrupt) and not signals.requested():
            raise
        message = _interruption_message(options)
        report = errors.ErrorReport(message=message, code=signals.code(), kind=errors.INTERRUPTED)
        raise click.exceptions.Exit(errors.fail(report, as_json)) from error
    if as_json:
        print_json(result.to_json())
        return
    for name, files in result.splits.items():
        images, size_bytes = sum(file.samples for file in files), sum(file.bytes for file in files)
        echo(f"{name:<10} {plural(images, 'image')}, {plural(len(files), 'file')}, {size_bytes:,} bytes")
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
