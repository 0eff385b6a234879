"""Runs the pipeline in this process, with Beam in process too."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from beam_jobs.errors import OptionError
from beam_jobs.sources import open_source
from beam_jobs.types import LABEL_KINDS
from pipeline import interrupt
from pipeline.config import PipelineConfig

if TYPE_CHECKING:
    from pipeline.summary import RunSummary

REPORT_NAME = "report.html"
SCHEMA_NAME = "schema.inferred.pbtxt"  # never the name of a reviewed file, which a run must not touch
LOG_NAME = "run.log"

Say = Callable[[str], None]


def preflight(config: PipelineConfig) -> None:
    """Checks what can be checked before anything is written or imported at length.

    Raises:
      UsageError: the source, the root or an option cannot be used.
    """
    kind = open_source(config.ingest).label_kind
    if kind != "single":
        raise OptionError(
            f"the images have {LABEL_KINDS[kind]}; a model is trained on one label each, `ingest` takes all"
        )
    if config.ingest.facts != "all":
        raise OptionError("ingest.facts is basic; statistics and normalisation need the facts of all")
    source, root = os.path.realpath(config.ingest.source), os.path.realpath(config.root)
    if os.path.isdir(source) and os.path.commonpath([source, root]) == source:
        raise OptionError(f"root {config.root} lies inside the images; the next run would take it for a class")
    if os.path.exists(config.root) and not os.path.isdir(config.root):
        raise OptionError(f"root {config.root} is a file; it must be a directory, new or of earlier runs")


def run(config: PipelineConfig, say: Say) -> RunSummary:
    """Runs every component whose inputs changed and returns what came of it.

    Args:
      config: of the pipeline.
      say: takes one line of progress.

    Returns:
      the summary; the report, and the schema if it was inferred, are also copied into the root.

    Raises:
      UsageError: the request is wrong; nothing was written.
      DataError: the images failed a check; what had passed before is kept and cached.
    """
    preflight(config)
    say("loading TensorFlow and TFX")
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner

    from pipeline.history import newest_run, open_store
    from pipeline.pipeline import create_pipeline
    from pipeline.summary import collect
    from trainer import bench
    from trainer.input_fn import check_options
    from trainer.models import check_model

    check_options(config.input)
    check_model(config.train.model)
    pipeline = create_pipeline(config)
    _make_root(config.root)
    with _logging_to(os.path.join(config.root, LOG_NAME), say):
        LocalDagRunner().run(pipeline)
        interrupt.check()
        steps = newest_run(open_store(config.metadata_path))
        say("measuring the input pipeline")
        split = next(iter(config.ingest.splits))
        rates = bench.compare(steps["ImageExampleGen"].outputs["examples"], split, config.input)
        summary = collect(steps, rates)
    _restore_push(summary)
    shutil.copyfile(summary.report, os.path.join(config.root, REPORT_NAME))
    if summary.schema_inferred:
        shutil.copyfile(summary.schema, os.path.join(config.root, SCHEMA_NAME))
    return dataclasses.replace(summary, report=os.path.join(config.root, REPORT_NAME))


def _make_root(root: str) -> None:
    try:
        os.makedirs(root, exist_ok=True)
    except OSError as error:
        raise OptionError(f"root {root} cannot be made: {error.strerror}") from error


def _restore_push(summary: RunSummary) -> None:
    """Pushes the model again when the push came from the cache and somebody removed what it had pushed."""
    if summary.blessed and not os.path.isfile(os.path.join(summary.model_dir, "saved_model.pb")):
        trained = os.path.join(summary.steps["Trainer"].outputs["model"], "Format-Serving")
        shutil.copytree(trained, summary.model_dir, dirs_exist_ok=True)


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
