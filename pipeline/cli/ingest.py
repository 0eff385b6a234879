"""`feedline ingest`, and the options that select and configure its engine."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
import yaml

from beam_jobs.common import yaml_text
from beam_jobs.common.settings import OptionField, fields, from_mapping, not_a_section
from beam_jobs.common.system import slow_imports
from beam_jobs.errors import OptionError
from beam_jobs.runners import ENGINES, Engine, engine_settings
from beam_jobs.storage import is_remote, join
from pipeline.cli.click_groups import DIR, PATH, Command
from pipeline.cli.common import config_option, echo, json_option, print_json, program, say, watch_progress
from pipeline.cli.ingest_options import check_options_have_effect, ingest_options, ingest_settings, option_names
from pipeline.runs import signals
from pipeline.runs.dataset_lines import aligned, dataset_lines

if TYPE_CHECKING:
    from beam_jobs.options import IngestOptions


F = TypeVar("F", bound=Callable[..., Any])
_DEFAULT_RUNNER = "local"


def engine_options(function: F) -> F:
    """Adds `--runner` and `--runner-option` to a command; `parse_engine` reads their values."""
    for option in reversed(_ENGINE_OPTIONS):
        function = option(function)
    return function


def parse_engine(runner: str | None, assignments: Sequence[str], section: Mapping[str, Any] | None = None) -> Engine:
    """Returns the engine that the options and the configuration select.

    Args:
      runner: value of `--runner`; None selects the runner of the section, else `local`.
      assignments: values of `--runner-option`, which override the section.
      section: section `engine` of the configuration. It is ignored when it names another runner than `runner`.

    Raises:
      OptionError: a setting is unknown, missing or of the wrong type, or the section has settings but no runner.
    """
    settings = dict(section or {})
    section_runner = settings.pop("runner", None)
    if settings and not (section_runner or runner):
        raise OptionError(f"engine.{next(iter(settings))} is set, but engine.runner is not; set it, or give --runner")
    name = runner or section_runner or _DEFAULT_RUNNER
    if section_runner and name != section_runner:
        settings = {}
    options = engine_settings(name)
    option_fields = fields(options)
    if assignments and not option_fields:
        raise OptionError(
            f"--runner-option is {assignments[0]!r}; the {name} runner has no options; name another one with --runner"
        )
    values = dict(_parse_assignment(assignment, option_fields) for assignment in assignments)
    return from_mapping(options, settings | values, "engine" if settings else "--runner-option")


def option_origins(assignments: Sequence[str]) -> dict[str, str]:
    """Returns the dotted key of each setting in values of `--runner-option` -> the layer to name in messages."""
    return {f"engine.{text.partition('=')[0]}": "option --runner-option" for text in assignments}


def _parse_assignment(assignment: str, option_fields: Mapping[str, OptionField]) -> tuple[str, Any]:
    key, separator, value = assignment.partition("=")
    if not separator or not key:
        raise OptionError(f"--runner-option is {assignment!r}; write it as parallelism=4")
    try:
        return key, yaml_text.parse_value(value, key in option_fields and option_fields[key].hint is str)
    except yaml.YAMLError as error:
        raise OptionError(f"--runner-option {key} is {value!r}, which is not a YAML value") from error


_ENGINE_OPTIONS = (
    click.option(
        "--runner",
        type=click.Choice(ENGINES),
        help=f"Where Beam runs.  [default: engine.runner of the configuration, else {_DEFAULT_RUNNER}]",
    ),
    click.option(
        "--runner-option",
        "runner_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any setting of the runner, such as parallelism=4; repeatable.",
    ),
)


@click.command("ingest", cls=Command)
@click.argument("source", type=PATH)
@click.option(
    "--out",
    type=DIR,
    required=True,
    help="Directory to write; new or empty, except for --overwrite, --append and --retry-rejects.",
)
@click.option("--span", type=int, help="Number that replaces {SPAN} in SOURCE.  [default: the newest]")
@click.option("--span-version", type=int, help="Number that replaces {VERSION}.  [default: the newest of the span]")
@click.option("--overwrite", is_flag=True, help="Replace the dataset in --out once the new one is complete.")
@click.option("--append", is_flag=True, help="Add the images that the dataset in --out does not have yet.")
@click.option("--retry-rejects", is_flag=True, help="Add images that were rejected before and are accepted now.")
@click.option("--dry-run", is_flag=True, help="Only print an estimate of the work, its duration and its resources.")
@config_option("YAML file of settings; its sections engine and ingest are used, and options override them.")
@engine_options
@ingest_options
@json_option
@click.pass_context
def command(context: click.Context, source: str, out: str, as_json: bool, **values: Any) -> None:
    """Turn SOURCE into a published dataset.

    SOURCE is a folder with one sub-folder per class, a glob, a table with one row per image (CSV, JSON lines, Parquet)
    whose images are files or URLs, a COCO json, tar or zip archives, TFRecord files or a prepared TFDS directory.
    {SPAN} in SOURCE is replaced by the number of a batch, the newest one unless --span is given.

    Settings come from the sections `ingest` (except its source) and `engine` of --config, then from the environment
    (FEEDLINE_INGEST__SEED=7, FEEDLINE_ENGINE__RUNNER=flink), then from the options, which have the highest priority.

    \b
    Examples:
      feedline ingest photos --out dataset
      feedline ingest 'photos/*/*.png' --out dataset --policy resize
      feedline ingest labels.csv --out dataset --label-column kind
      feedline ingest instances_train.json --out dataset
      feedline ingest 'shards/{000..011}.tar' --out dataset
      feedline ingest photos --out dataset --append
      feedline ingest photos --out dataset --runner flink --dry-run
      feedline ingest gs://bucket/photos --out gs://bucket/set -c pipeline.yaml
    """
    dry_run = values.pop("dry_run")
    if not (dry_run or values["overwrite"] or values["append"] or values["retry_rejects"]):
        _check_paths(source, out)
    options, engine = read_request(context.command, source, out, **values)
    if dry_run:
        _show_estimate(options, engine, as_json)
        return
    if engine.name == ENGINES[0]:
        from beam_jobs.images import sandbox

        with contextlib.suppress(OSError):  # the ingest starts the processes again, and reports an error
            sandbox.start()  # in parallel with the import of Beam
    with slow_imports():
        from beam_jobs import ingest
        from beam_jobs.dataset import manifest
        from beam_jobs.stages.dry_run import ResourceEstimator

    if isinstance(engine, ResourceEstimator):
        engine.check(options)
    with engine.open() as make_pipeline:
        result = ingest.run(options, make_pipeline=make_pipeline, report=say, watch=watch_progress, leave=leave_job)
    if as_json:
        print_json(result.to_json())
        return
    path = out if is_remote(out) else os.path.abspath(out)
    rejects = [("rejects", join(path, manifest.REJECTS_NAME))] if result.counts.rejected else []
    click.echo(aligned([*dataset_lines(result), *rejects, ("dataset", path)]))


def _check_paths(source: str, out: str) -> None:
    """Raises `UsageError` for obviously wrong paths before any slow import; the ingest checks all paths again."""
    from beam_jobs.sources import containers

    if not (is_remote(source) or containers.WILDCARD.search(source) or os.path.exists(source)):
        containers.guess_kind(source)
    if is_remote(out):
        return
    from beam_jobs.stages import replace, work_dir

    if work_dir.is_published(out):
        with work_dir.exclusive(out):  # also removes the lock file of a killed run
            replace.recover(out)
    work_dir.check_out(source, out)


ANSWER_TIMEOUT_S = 10.0  # time to answer the question of `leave_job`


def leave_job(job_text: str) -> bool:
    """Asks after Ctrl-C whether a job on a service shall continue, and returns the answer; see `ingest.run`.

    Without a terminal, and after SIGTERM, the job continues. A second Ctrl-C cancels it. For a job that continues,
    prints the command that follows it.

    Args:
      job_text: name and place of the job, for the question.
    """
    if signals.code() != signals.TERMINATED and sys.stdin is not None and sys.stdin.isatty():
        say(f"{job_text} continues in {ANSWER_TIMEOUT_S:.0f} s; press c and Enter, or Ctrl-C again, to cancel it")
        ready, _, _ = select.select([sys.stdin], [], [], ANSWER_TIMEOUT_S)
        if ready and sys.stdin.readline().strip().lower() == "c":
            return False
    with contextlib.suppress(OSError):  # a closed terminal does not cancel the job
        say(f"to follow the job: {program()} {shlex.join(sys.argv[1:])}")
    return True


def read_request(
    command: click.Command, source: str, out: str, config_path: str | None, runner: str | None, **values: Any
) -> tuple[IngestOptions, Engine]:
    """Returns the options and the engine of an ingest, after all checks that do not read the source.

    Args:
      command: the command whose options error messages name.
      source: path or URL of the source.
      out: directory of the dataset.
      config_path: value of `--config`.
      runner: value of `--runner`.
      **values: values of the other options, without `--dry-run` and `--json`.

    Raises:
      OptionError: an option or a setting is unknown or not allowed.
      SourceError: the source has no known kind.
    """
    from beam_jobs.dataset import manifest
    from beam_jobs.options import IngestOptions
    from beam_jobs.sources import containers, spans
    from beam_jobs.stages import append, replace
    from pipeline.settings.layers import gather

    runner_options = values.pop("runner_options")
    span_and_version = values.pop("span"), values.pop("span_version")
    modes = {name: values.pop(name) for name in ("overwrite", "append", "retry_rejects")}
    names = option_names(command, values)
    merged = gather(config_path, {"ingest": ingest_settings(values)}, (), options=names)
    merged.origin.update(option_origins(runner_options))
    merged_values = merged.values
    with merged.annotate_errors():
        engine = parse_engine(runner, runner_options, merged_values.get("engine"))
    settings = {"source": source, "out": out, **modes, **_section_settings(merged_values.get("ingest", {}))}
    if (modes["append"] or modes["retry_rejects"]) and manifest.is_published(dataset := replace.dataset_path(out)):
        settings = append.complete_settings(dataset, settings)
    with merged.annotate_errors():
        options = spans.resolve_options(from_mapping(IngestOptions, settings, "ingest"), *span_and_version)
    check_options_have_effect(values, options)
    if options.source_kind == "auto":
        containers.guess_kind(options.source)  # before the slow import of Beam
    return options, engine


def _section_settings(section: Any) -> dict[str, Any]:
    """Returns the settings of the section `ingest` without source and output, which are command-line arguments."""
    from pipeline.config import NOT_IN_A_PIPELINE

    if not isinstance(section, Mapping):
        raise not_a_section("ingest", section)
    return {name: value for name, value in section.items() if name not in ("source", *NOT_IN_A_PIPELINE)}


def _show_estimate(options: IngestOptions, engine: Engine, as_json: bool) -> None:
    from beam_jobs.stages.dry_run import estimate

    result = estimate(options, engine)
    if as_json:
        print_json(result.to_json())
    else:
        echo(*result.lines())
