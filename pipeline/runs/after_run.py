"""What follows the components, wherever they ran: report, summary, schema, and a push that somebody removed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from beam_jobs import storage
from beam_jobs.dataset import manifest
from beam_jobs.errors import FeedlineError, GateFailed, OptionError
from beam_jobs.sources.factory import open_source
from pipeline.config import PipelineConfig

if TYPE_CHECKING:
    from pipeline.runs.history import Step
    from pipeline.runs.summary import RunSummary

SCHEMA_NAME = "schema.inferred.pbtxt"  # never the name of a reviewed file, which a run must not touch

Say = Callable[[str], None]


def conclude(config: PipelineConfig, images: str, say: Say) -> RunSummary:
    """Measures the input pipeline, writes the report and returns what came of the newest run.

    Args:
      config: of the pipeline.
      images: see `images_dir`.
      say: takes one line of progress.

    Returns:
      the summary. The report is in the root; an inferred schema too, or under the name that the configuration gives.
    """
    from pipeline.runs.history import newest_run, open_store
    from pipeline.runs.run_report import write_report
    from pipeline.runs.summary import collect
    from trainer import bench

    store = open_store(config.metadata_path)
    steps = newest_run(store, config.name)
    say("measuring the input pipeline")
    dataset = steps["ImageExampleGen"].outputs["examples"]
    rates = bench.compare(dataset, next(iter(manifest.load(dataset).splits)), config.input)
    say("writing the report")
    page = write_report(config, store, images)
    summary = dataclasses.replace(collect(steps, rates), report=page, schema_named=bool(config.schema))
    _restore_push(summary)
    return dataclasses.replace(summary, schema=keep_schema(config, steps) or summary.schema)


def images_dir(config: PipelineConfig) -> str:
    """Returns the directory that the images lie in; empty where there is none, as for archives and adopted datasets."""
    if not config.ingest:
        return ""
    base = open_source(dataclasses.replace(config.ingest, source=config.resolved_source())).base
    return base if os.path.isdir(base) else ""


def keep_what_there_is(config: PipelineConfig, images: str, stopped: GateFailed, say: Say) -> None:
    """Leaves the report and the schema of a run that its gate stopped, for the repair of the data."""
    from pipeline.runs.history import newest_run, open_store
    from pipeline.runs.run_report import write_report

    store = open_store(config.metadata_path)
    try:
        keep_schema(config, newest_run(store, config.name))
        say(f"what the gate found is in {write_report(config, store, images, stopped.verdict)}")
    except (OSError, FeedlineError) as error:  # the findings are worth more than the page about them
        say(f"the report could not be written: {error}")


def keep_schema(config: PipelineConfig, steps: Mapping[str, Step]) -> str:
    """Copies an inferred schema to where people find it: under the name that was asked for, or into the root.

    Returns:
      where it is; empty when it was not inferred.
    """
    step = steps.get("InferredSchema")
    if not step or "schema" not in step.outputs:
        return ""
    target = config.schema or os.path.join(config.root, SCHEMA_NAME)
    if config.schema and os.path.exists(target):  # somebody put it there meanwhile
        return target
    inferred = os.path.join(step.outputs["schema"], "schema.pbtxt")
    try:
        storage.write_bytes(target, storage.read_bytes(inferred))
    except OSError as error:
        raise OptionError(f"schema {target} cannot be written: {error.strerror}; it is kept as {inferred}") from error
    return target


def _restore_push(summary: RunSummary) -> None:
    """Pushes the model again when the push came from the cache and somebody removed what it had pushed."""
    if summary.blessed and not os.path.isfile(os.path.join(summary.model_dir, "saved_model.pb")):
        from components.model_pusher.executor import publish

        publish(os.path.join(summary.steps["Trainer"].outputs["model"], "Format-Serving"), summary.model_dir)
