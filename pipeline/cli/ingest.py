"""`feedline ingest`."""

from __future__ import annotations

import os
from typing import Any

import click

from beam_jobs.options import IngestOptions
from pipeline.cli.common import ingest_options, ingest_settings, json_option, print_json, say
from pipeline.config import from_mapping


@click.command("ingest")
@click.argument("source")
@click.option("--out", required=True, help="Directory that becomes the dataset; new or empty.")
@click.option("--overwrite", is_flag=True, help="Replace the dataset in --out once the new one is whole.")
@ingest_options
@json_option
def command(source: str, out: str, overwrite: bool, as_json: bool, **values: Any) -> None:
    """Turn SOURCE into a published dataset.

    SOURCE is a folder with one sub-folder a class, or a table with a row an image: CSV, JSON lines (.jsonl) or Parquet.

    \b
    Examples:
      feedline ingest photos --out dataset
      feedline ingest labels.csv --out dataset --image-column file --label-column kind
    """
    settings = {"source": source, "out": out, "overwrite": overwrite, **ingest_settings(values)}
    options = from_mapping(IngestOptions, settings, "ingest")
    from beam_jobs import ingest

    result = ingest.run(options, report=say)
    if as_json:
        print_json(result.to_json())
        return
    for name, info in result.splits.items():
        click.echo(f"{name:<10} {info.records:,} images, {len(info.shards)} shards, {info.bytes:,} bytes")
    for reason, count in result.counts.rejects.items():
        click.echo(f"rejected   {count:,} {reason}")
    click.echo(f"dataset    {os.path.abspath(out)}")
