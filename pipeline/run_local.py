"""Runs the pipeline in this process, with Beam in process too."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from beam_jobs import manifest, storage
from beam_jobs.errors import FeedlineError, GateFailed, OptionError
from beam_jobs.sources import open_source
from beam_jobs.types import LABEL_KINDS
from beam_jobs.user_columns import check_column
from pipeline import interrupt
from pipeline.config import PipelineConfig

if TYPE_CHECKING:
    from pipeline.history import Step
    from pipeline.summary import RunSummary

SCHEMA_NAME = "schema.inferred.pbtxt"  # never the name of a reviewed file, which a run must not touch
LOG_NAME = "run.log"

Say = Callable[[str], None]


def preflight(config: PipelineConfig) -> None:
    """Checks what can be checked before anything is written or imported at length.

    Raises:
      UsageError: the source, the root or an option cannot be used.
    """
    data, found = config.data(), config.resolved_source()
    kind = _label_kind(config, found)
    if kind != "single":
        raise OptionError(
            f"the images have {LABEL_KINDS[kind]}; a model is trained on one label each, `ingest` takes all"
        )
    if data.facts != "all":
        raise OptionError("facts is basic; statistics and normalisation need the facts of all")
    if config.train.strategy == "multi_worker":
        raise OptionError(
            "train.strategy is multi_worker, and a pipeline runs in one process; start `trainer.job.fit` on every "
            "worker, on a dataset that `ingest` made"
        )
    for name in config.input.columns:
        check_column(name, data.extra, "input.columns")
    config.transform.check(data.extra)
    config.evaluate.check(data.extra)
    source, root = os.path.realpath(found), os.path.realpath(config.root)
    if os.path.isdir(source) and os.path.commonpath([source, root]) == source:
        raise OptionError(f"root {config.root} lies inside {config.pattern}, which a run must not change")
    if os.path.exists(config.root) and not os.path.isdir(config.root):
        raise OptionError(f"root {config.root} is a file; it must be a directory, new or of earlier runs")


def run(config: PipelineConfig, say: Say) -> RunSummary:
    """Runs every component whose inputs changed and returns what came of it.

    Args:
      config: of the pipeline.
      say: takes one line of progress.

    Returns:
      the summary. The report is in the root; an inferred schema too, or under the name that the configuration gives.

    Raises:
      UsageError: the request is wrong; nothing was written.
      DataError: the images failed a check; what had passed before is kept and cached.
    """
    preflight(config)
    if config.schema and not config.schema_is_reviewed:
        say(f"schema {config.schema} is not there: it will be inferred and written, for you to review")
    say("loading TensorFlow and TFX")
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner

    from pipeline.attempts import alone
    from pipeline.history import newest_run, open_store
    from pipeline.page import write_report
    from pipeline.pipeline import create_pipeline
    from pipeline.summary import collect
    from trainer import bench
    from trainer.input_fn import check_options
    from trainer.models import check_model

    check_options(config.input, _raw_side(config))
    check_model(config.train.model)
    pipeline = create_pipeline(config)
    images = _images(config)  # before the run: a newer span may have come when it ends
    _make_root(config.root)
    with alone(config), _logging_to(os.path.join(config.root, LOG_NAME), say):
        try:
            LocalDagRunner().run(pipeline)
        except GateFailed as stopped:
            _keep_what_there_is(config, images, stopped, say)
            raise
        interrupt.check()
        store = open_store(config.metadata_path)
        steps = newest_run(store, config.name)
        say("measuring the input pipeline")
        dataset = steps["ImageExampleGen"].outputs["examples"]
        rates = bench.compare(dataset, next(iter(manifest.load(dataset).splits)), config.input)
        say("writing the report")
        page = write_report(config, store, images)
        summary = dataclasses.replace(collect(steps, rates), report=page)
        _restore_push(summary)
        return dataclasses.replace(summary, schema=_keep_schema(config, steps) or summary.schema)


def _raw_side(config: PipelineConfig) -> int | None:
    if config.ingest:
        pixels = dataclasses.asdict(config.ingest.pixels)
    else:
        pixels = dict(manifest.load(config.resolved_source()).options["pixels"])
    return pixels["side_px"] if pixels["policy"] == "raw" else None


def _label_kind(config: PipelineConfig, source: str) -> str:
    if config.ingest:
        return open_source(dataclasses.replace(config.ingest, source=source)).label_kind
    return manifest.load(source).label_kind


def _images(config: PipelineConfig) -> str:
    """Returns the directory that the images lie in; empty where there is none, as for archives and adopted datasets."""
    if not config.ingest:
        return ""
    base = open_source(dataclasses.replace(config.ingest, source=config.resolved_source())).base
    return base if os.path.isdir(base) else ""


def _keep_what_there_is(config: PipelineConfig, images: str, stopped: GateFailed, say: Say) -> None:
    """Leaves the report and the schema of a run that its gate stopped, for whoever has to repair the data."""
    from pipeline.history import newest_run, open_store
    from pipeline.page import write_report

    store = open_store(config.metadata_path)
    try:
        _keep_schema(config, newest_run(store, config.name))
        say(f"what the gate found is in {write_report(config, store, images, stopped.verdict)}")
    except (OSError, FeedlineError) as error:  # the findings are worth more than the page about them
        say(f"the report could not be written: {error}")


def _keep_schema(config: PipelineConfig, steps: Mapping[str, Step]) -> str:
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


def _make_root(root: str) -> None:
    try:
        os.makedirs(root, exist_ok=True)
    except OSError as error:
        raise OptionError(f"root {root} cannot be made: {error.strerror}") from error


def _restore_push(summary: RunSummary) -> None:
    """Pushes the model again when the push came from the cache and somebody removed what it had pushed."""
    if summary.blessed and not os.path.isfile(os.path.join(summary.model_dir, "saved_model.pb")):
        from components.model_pusher.executor import publish

        publish(os.path.join(summary.steps["Trainer"].outputs["model"], "Format-Serving"), summary.model_dir)


class _Progress(logging.Handler):
    """Turns the log lines of the runner, its only sign of life, into lines of progress."""

    def __init__(self, say: Say) -> None:
        super().__init__(logging.INFO)
        self._say = say
        self._started = time.monotonic()
        self._cached = False

    def emit(self, record: logging.LogRecord) -> None:
        interrupt.check()
        message = record.getMessage()
        if message.startswith("Component ") and message.endswith(" is running."):
            self._started, self._cached = time.monotonic(), False
        elif message.startswith("A cached execution "):
            self._cached = True
        elif message.startswith("Component ") and message.endswith(" is finished."):
            seconds = time.monotonic() - self._started
            self._say(f"{message.split()[1]:<18} {'cached' if self._cached else f'{seconds:.1f} s'}")


@contextmanager
def _logging_to(path: str, say: Say) -> Iterator[None]:
    """Sends every log line to a file and progress to `say`, and puts logging back as it was."""
    from absl import logging as absl_logging

    root = logging.getLogger()
    # These print on their own, or are silenced; without handlers they pass everything on to the root.
    chatty = [absl_logging.get_absl_logger(), logging.getLogger("tensorflow"), logging.getLogger("apache_beam")]
    before = [(logger, logger.level, logger.handlers, logger.propagate) for logger in [root, *chatty]]
    file_handler = logging.FileHandler(path, encoding="utf-8")
    file_handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root.handlers = [file_handler, _Progress(say)]
    for logger in chatty:
        logger.handlers, logger.propagate = [], True
    for logger in [root, *chatty]:
        logger.setLevel(logging.INFO)
    verbosity = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.INFO)  # a level alone is undone whenever TFX parses its flags
    try:
        yield
    finally:
        absl_logging.set_verbosity(verbosity)
        file_handler.close()
        for logger, level, handlers, propagate in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
