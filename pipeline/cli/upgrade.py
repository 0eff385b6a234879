"""`feedline upgrade`."""

from __future__ import annotations

import click

from pipeline.cli.click_groups import DIR, Command
from pipeline.cli.common import echo, json_option, print_json


@click.command("upgrade", cls=Command)
@click.argument("dataset", type=DIR)
@json_option
def command(dataset: str, as_json: bool) -> None:
    """Convert DATASET of an earlier release into the newest format.

    Only the image table is written again; shards and digest stay the same. Without an upgrade, every command can read
    the dataset, too. Start it when no training reads the dataset. After an interruption, start it again.

    \b
    Examples:
      feedline upgrade dataset
      feedline upgrade gs://bucket/dataset
    """
    from beam_jobs.dataset import manifest
    from beam_jobs.stages.upgrade import upgrade

    is_upgraded = upgrade(dataset)
    if as_json:
        print_json({"upgraded": is_upgraded, "format_version": manifest.FORMAT_VERSION})
    else:
        echo(f"{'upgraded to' if is_upgraded else 'has'} format {manifest.FORMAT_VERSION}: {dataset}")
