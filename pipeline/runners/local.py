"""Runs the pipeline in this process, with Beam in process too."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from beam_jobs import storage
from beam_jobs.common import strings
from beam_jobs.common.strings import WARNING
from beam_jobs.errors import GateFailed, OptionError
from beam_jobs.sources.factory import open_source
from beam_jobs.storage import disk
from beam_jobs.types import LABEL_KINDS
from pipeline.config import DataShape, PipelineConfig
from pipeline.runs import signals
from pipeline.runs.root import Say, check_free, conclude, exclusive_run, images_dir, save_partial_report

if TYPE_CHECKING:
    from pipeline.runs.summary import RunSummary

LOG_NAME = "run.log"
_BAD_RECORD = "Not a valid TFRecord"  # how Beam begins what it says of one


def preflight(config: PipelineConfig) -> DataShape:
    """Checks what can be checked before anything is written or imported at length, and returns the shape of the data.

    Raises:
      UsageError: the source, the root or an option cannot be used.
    """
    if storage.is_remote(config.root):
        raise OptionError(f"root is {config.root!r}; the local runner needs a local directory")
    data, found = config.data(), config.resolved_source()
    options = config.ingest and dataclasses.replace(config.ingest, source=found)
    kind = open_source(options).label_kind if options else data.label_kind
    if kind != "single":
        raise OptionError(
            f"the images have {LABEL_KINDS[kind]}; a model is trained on one label each, `ingest` takes all"
        )
    source, root = os.path.realpath(found), os.path.realpath(config.root)
    if os.path.isdir(source) and os.path.commonpath([source, root]) == source:
        raise OptionError(f"root {config.root} lies inside {config.pattern}, which a run must not change")
    if not os.path.isdir(there := disk.nearest(root)):
        raise OptionError(f"root {config.root}: {there} is a file; root must be a directory, new or of earlier runs")
    return data


def check_training(config: PipelineConfig, data: DataShape) -> None:
    """Checks input and model, for which TensorFlow is loaded.

    Raises:
      OptionError: an operation does not fit the stored pixels, or there is no such model.
    """
    from trainer.input_fn import check_options
    from trainer.models import check_model

    check_options(config.input, data.raw_side_px)
    check_model(config.train.model)


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
    data = preflight(config)
    if config.schema and not config.schema_is_reviewed:
        say(f"schema {config.schema} is not there: it will be inferred and written, for you to review")
    check_free(config.root)  # before what takes long
    say("loading TensorFlow and TFX")
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner

    from pipeline.pipeline import create_pipeline

    check_training(config, data)
    pipeline = create_pipeline(config)
    images = images_dir(config)  # before the run: a newer span may have come when it ends
    log = os.path.join(config.root, LOG_NAME)
    with disk.explained("running the pipeline", config.root), exclusive_run(config), _logging_to(log, say):
        try:
            LocalDagRunner().run(pipeline)
        except GateFailed as stopped:
            save_partial_report(config, images, stopped, say)
            raise
        except ValueError as error:
            if not str(error).startswith(_BAD_RECORD):
                raise
            from components.statistics import unreadable

            raise unreadable(config.dataset or "the dataset", error) from error
        signals.check()
        return conclude(config, images, say)


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name logging calls
        """Drops what the disk does not take; a traceback for each line would hide the reason."""


class _Progress(logging.Handler):
    """Makes lines of progress of what the runner logs, its only sign of life, and shows the warnings of the ingest."""

    def __init__(self, say: Say) -> None:
        super().__init__(logging.INFO)
        self._say = say
        self._started = time.monotonic()
        self._cached = False

    def emit(self, record: logging.LogRecord) -> None:
        signals.check()
        message = record.getMessage()
        if message.startswith("Component ") and message.endswith(" is running."):
            self._started, self._cached = time.monotonic(), False
        elif message.startswith("A cached execution "):
            self._cached = True
        elif message.startswith("Component ") and message.endswith(" is finished."):
            seconds = time.monotonic() - self._started
            self._say(f"{message.split()[1]:<18} {'cached' if self._cached else f'{seconds:.1f} s'}")
        elif message.startswith(WARNING):
            self._say(message)


@contextmanager
def _logging_to(path: str, say: Say) -> Iterator[None]:
    """Sends every log line to a file and progress to `say`, and puts logging back as it was."""
    from absl import logging as absl_logging

    root = logging.getLogger()
    # These print on their own, or are silenced; without handlers they pass everything on to the root.
    chatty = [absl_logging.get_absl_logger(), logging.getLogger("tensorflow"), logging.getLogger("apache_beam")]
    before = [(logger, logger.level, logger.handlers, logger.propagate) for logger in [root, *chatty]]
    file_handler = _LogFile(path, encoding="utf-8")
    file_handler.setFormatter(strings.LogFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
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
