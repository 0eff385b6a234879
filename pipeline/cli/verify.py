"""`feedline verify`."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING

import click

from beam_jobs.common.strings import WARNING, plural
from beam_jobs.common.system import cores
from beam_jobs.errors import CorruptDataset, OptionError
from beam_jobs.runners import Engine, LocalEngine
from beam_jobs.storage import is_remote
from pipeline.cli.click_groups import DIR, Command
from pipeline.cli.common import config_option, echo, json_option, print_json, watch_progress
from pipeline.cli.ingest import engine_options, option_origins, parse_engine
from pipeline.runs import signals

if TYPE_CHECKING:
    from beam_jobs.dataset.verify import Verification

_MAX_LINES = 20


@click.command("verify", cls=Command)
@click.argument("dataset", type=DIR)
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    metavar="INTEGER",
    default=0,
    help="Decoding threads of each worker process; 0 has the same meaning as for `ingest`.  [default: 0]",
)
@click.option(
    "--work",
    type=DIR,
    default="",
    help="Directory for the reports of the workers of a runner, which this machine can reach, too. The reports are "
    "removed at the end.",
)
@config_option("YAML file of settings; its section engine is used, and options override it.")
@engine_options
@json_option
def command(
    dataset: str,
    threads: int,
    work: str,
    config_path: str | None,
    runner: str | None,
    runner_options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check DATASET: every checksum, count and image.

    Every image is decoded, in this process or by the workers of --runner. The exit code is 3 when a check fails, else
    0. Copies, groups and grouped near duplicates that are in several splits only cause warnings.

    With --work, --config or --runner, the runner and its settings come from the section `engine` of --config, then from
    the environment (FEEDLINE_ENGINE__RUNNER=flink), then from the options, which have the highest priority.

    \b
    Examples:
      feedline verify dataset
      feedline verify gs://bucket/dataset --json
      feedline verify gs://bucket/dataset --work gs://bucket/work -c pipeline.yaml
    """
    from dataclasses import asdict

    from beam_jobs.dataset.verify import verify
    from pipeline.settings.layers import gather

    engine: Engine = LocalEngine()
    if work or config_path or runner or runner_options:
        settings = gather(config_path, {}, ())
        settings.origin.update(option_origins(runner_options))
        with settings.annotate_errors():
            engine = parse_engine(runner, runner_options, settings.values.get("engine"))
    # PyArrow imports pandas, if installed, at its first comparison, and drops a signal during that import.
    signals.hold()
    with contextlib.suppress(ImportError):
        importlib.import_module("pandas")
    signals.install()
    if isinstance(engine, LocalEngine):
        if work:
            raise OptionError("--work is set, but the local runner does not use it; give --runner, or remove --work")
        result = verify(dataset, threads or cores())
    else:
        result = _verify_on_runner(dataset, engine, work, threads)
    if as_json:
        print_json(asdict(result))
    if result.problems:
        error = CorruptDataset(
            f"{dataset} has {plural(len(result.problems), 'problem')}; remove files that are not part of it; for all "
            "other problems, write the dataset again with --overwrite:"
        )
        omission_lines = [f"and {len(result.problems) - _MAX_LINES} more"] if len(result.problems) > _MAX_LINES else []
        error.problems = [f"  {line}" for line in (*result.problems[:_MAX_LINES], *omission_lines)]
        raise error
    if not as_json:
        for line in result.leaks[:_MAX_LINES]:
            echo(f"{WARNING}{line}")
        if len(result.leaks) > _MAX_LINES:
            echo(f"{WARNING}and {len(result.leaks) - _MAX_LINES} more sets of images that are in several splits")
        echo(f"sound: {plural(result.records, 'record')} in {plural(result.shards, 'shard')}, {result.bytes:,} bytes")


def _verify_on_runner(dataset: str, engine: Engine, work: str, threads: int) -> Verification:
    if not work:
        raise OptionError(f"--work is not set; name a directory for the reports of the workers of {engine.name}")
    for name, path in (("DATASET", dataset), ("--work", work)):
        if engine.name == "dataflow" and not is_remote(path):
            raise OptionError(
                f"{name} is {path!r}, which no Dataflow worker can read; give a path in a bucket, such as gs://b/d"
            )
    from beam_jobs.stages.verify_job import verify_on_runner

    with engine.open() as make_pipeline:
        return verify_on_runner(dataset, make_pipeline, work, threads, watch_progress)
