"""`feedline verify`."""

from __future__ import annotations

import importlib
from contextlib import suppress

import click

from beam_jobs.common.strings import WARNING, plural
from beam_jobs.common.system import cores
from beam_jobs.errors import CorruptDataset
from pipeline.cli.click_groups import DIR, Command
from pipeline.cli.common import echo, json_option, print_json
from pipeline.runs import signals

_MAX_LINES = 20


@click.command("verify", cls=Command)
@click.argument("dataset", type=DIR)
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    metavar="INTEGER",
    default=0,
    help="Threads that decode; 0 is one per core.  [default: 0]",
)
@json_option
def command(dataset: str, threads: int, as_json: bool) -> None:
    """Read DATASET back: every checksum, count and image.

    Every image is decoded. The exit code is 0 when all is sound and 3 when something is not. Copies, groups and grouped
    near duplicates that lie in several splits are warnings.

    \b
    Examples:
      feedline verify dataset
      feedline verify gs://bucket/dataset --json
    """
    from dataclasses import asdict

    from beam_jobs.dataset.verify import verify

    # PyArrow imports pandas, if installed, at its first comparison, and drops a signal during that import.
    signals.hold()
    with suppress(ImportError):
        importlib.import_module("pandas")
    signals.install()
    result = verify(dataset, threads or cores())
    if as_json:
        print_json(asdict(result))
    if result.problems:
        error = CorruptDataset(
            f"{dataset} has {plural(len(result.problems), 'problem')}; remove files that are not part of it; for all "
            "others, write the dataset again with --overwrite:"
        )
        more = [f"and {len(result.problems) - _MAX_LINES} more"] if len(result.problems) > _MAX_LINES else []
        error.problems = [f"  {line}" for line in (*result.problems[:_MAX_LINES], *more)]
        raise error
    if not as_json:
        for line in result.leaks[:_MAX_LINES]:
            echo(f"{WARNING}{line}")
        if len(result.leaks) > _MAX_LINES:
            echo(f"{WARNING}and {len(result.leaks) - _MAX_LINES} more sets of images that lie in several splits")
        echo(f"sound: {plural(result.records, 'record')} in {plural(result.shards, 'shard')}, {result.bytes:,} bytes")
