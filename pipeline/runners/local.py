"""The local runner: runs the pipeline and Beam in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from beam_jobs import storage
from beam_jobs.common import strings, system
from beam_jobs.common.strings import WARNING
from beam_jobs.common.system import Progress, Watch, no_watch
from beam_jobs.errors import GateFailed, OptionError
from beam_jobs.sources.factory import open_source
from beam_jobs.storage import disk
from beam_jobs.types import LABEL_KINDS
from pipeline.config import LOG_NAME, DataShape, PipelineConfig
from pipeline.runs import signals, unchanged
from pipeline.runs.root import Say, check_free, clear_failed, conclude, exclusive_run, images_dir, save_partial_report

if TYPE_CHECKING:
    from pipeline.runs.summary import RunSummary

_BAD_RECORD = "Not a valid TFRecord"  # beginning of Beam's message about a damaged shard


def preflight(config: PipelineConfig) -> DataShape:
    """Checks source, root and options, without slow imports and without writing, and returns the shape of the data.

    Raises:
      UsageError: the source, the root or an option cannot be used.
    """
    if storage.is_remote(config.root):
        raise OptionError(f"root is {config.root!r}; the local runner needs a local directory")
    data, resolved_source = config.data(), config.resolved_source()
    options = config.ingest and dataclasses.replace(config.ingest, source=resolved_source)
    label_kind = open_source(options).label_kind if options else data.label_kind
    if label_kind != "single":
        raise OptionError(
            f"the images have {LABEL_KINDS[label_kind]}; a model needs one label per image, only `ingest` takes others"
        )
    source, root = os.path.realpath(resolved_source), os.path.realpath(config.root)
    if os.path.isdir(source) and os.path.commonpath([source, root]) == source:
        raise OptionError(f"root {config.root} lies inside {config.pattern}, which a run must not change")
    if not os.path.isdir(nearest := disk.nearest_existing(root)):
        raise OptionError(f"root {config.root}: {nearest} is a file; root must be a directory, new or of earlier runs")
    return data


def check_training(config: PipelineConfig, data: DataShape) -> None:
    """Checks the options of the input and the model; loads TensorFlow.

    Raises:
      OptionError: an op cannot process the stored pixels, or the model does not exist.
    """
    from trainer.input_fn import check_options
    from trainer.models import check_model

    check_options(config.input, data.raw_side_px)
    check_model(config.train.model)


def run(config: PipelineConfig, say: Say, watch: Watch = no_watch, verbose: bool = False) -> RunSummary:
    """Runs every component whose inputs changed, writes the report and returns the summary.

    Args:
      config: configuration of the pipeline.
      say: function that prints a line of progress.
      watch: displays the progress of the components.
      verbose: whether to print the log lines of the training input as well, which are always in the log file.

    Returns:
      the summary. The report is in the root. An inferred schema is in the root or in the configured schema file.

    Raises:
      UsageError: the configuration is invalid; nothing was written.
      DataError: the images failed a check; the outputs of earlier components stay cached.
    """
    data = preflight(config)
    if config.schema and not config.schema_is_reviewed:
        say(f"schema {config.schema} does not exist: it will be inferred and written, for your review")
    check_free(config.root)  # before the slow imports
    input_digest = unchanged.input_digest(config)  # before the run, during which the inputs may change
    say("loading TensorFlow and TFX")
    with system.slow_imports():
        from tfx.orchestration.local.local_dag_runner import LocalDagRunner

        from pipeline.pipeline import create_pipeline

    check_training(config, data)
    pipeline = create_pipeline(config)
    images = images_dir(config)  # before the run, during which a newer span may appear
    log = os.path.join(config.root, LOG_NAME)
    progress = _Progress(say, watch, verbose)
    with disk.explain_errors("running the pipeline", config.root), exclusive_run(config), _logging_to(log, progress):
        try:
            LocalDagRunner().run(pipeline)
        except GateFailed as failure:
            save_partial_report(config, images, failure, say)
            raise
        except ValueError as error:
            if not str(error).startswith(_BAD_RECORD):
                raise
            from components.statistics import unreadable_error

            raise unreadable_error(config.dataset or "the dataset", error) from error
        signals.check()
        with watch("report", Progress(), _note_bytes_read()):
            summary = conclude(config, images, say)
        from pipeline.runs.summary import unchanged_output

        clear_failed(config)  # first, because the record describes the remaining outputs
        unchanged.write_record(config, input_digest, unchanged_output(summary))
        return summary


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - a method name of `logging`
        """Ignores lines that cannot be written: by default, `logging` prints a traceback for each of them."""


class _Progress(logging.Handler):
    """Prints the progress of the components, read from the log of the TFX runner, and the warnings of the ingest."""

    def __init__(self, say: Say, watch: Watch, verbose: bool) -> None:
        super().__init__(logging.INFO)
        self._say = say
        self._verbose = verbose
        self.watch = watch
        self._display = contextlib.ExitStack()  # display of the progress of the running component
        self._started_s = time.monotonic()
        self._is_cached = False

    def emit(self, record: logging.LogRecord) -> None:
        signals.check()
        message = record.getMessage()
        if message.startswith("Component ") and message.endswith(" is running."):
            self._started_s, self._is_cached = time.monotonic(), False
            self._display.enter_context(self.watch(message.split()[1], Progress(), _note_bytes_read()))
        elif message.startswith("A cached execution "):
            self._is_cached = True
        elif message.startswith("Component ") and message.endswith(" is finished."):
            self._display.close()
            seconds = time.monotonic() - self._started_s
            self._say(f"{message.split()[1]:<18} {'cached' if self._is_cached else f'{seconds:.1f} s'}")
        elif message.startswith((WARNING, "continuing ")) or (self._verbose and record.name == "trainer.run_fn"):
            self._say(message)

    def close(self) -> None:
        """Ends the display, which is still open if a component failed."""
        self._display.close()
        super().close()


def _note_bytes_read() -> Callable[[], Progress]:
    """Returns a function whose result has a note with the bytes read since this call: components report no progress."""
    import psutil

    process = psutil.Process()
    try:
        initial_bytes = process.io_counters().read_chars
    except (AttributeError, psutil.Error, RuntimeError):  # a kernel or a container without these counters
        return Progress

    return lambda: Progress(note=f"{strings.size(process.io_counters().read_chars - initial_bytes)} read")


@contextlib.contextmanager
def _logging_to(path: str, progress: _Progress) -> Iterator[None]:
    """Sends every log line to a file and to `progress` while the block runs."""
    from absl import logging as absl_logging

    root = logging.getLogger()
    # These loggers have handlers or are silenced; without handlers, they pass all lines to the root logger.
    library_loggers = [
        absl_logging.get_absl_logger(),
        logging.getLogger("tensorflow"),
        logging.getLogger("apache_beam"),
    ]
    previous_states = [(logger, logger.level, logger.handlers, logger.propagate) for logger in [root, *library_loggers]]
    file_handler = _LogFile(path, encoding="utf-8")
    file_handler.setFormatter(strings.LogFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root.handlers = [file_handler, progress]
    watch_token = system.watch.set(progress.watch)
    for logger in library_loggers:
        logger.handlers, logger.propagate = [], True
    for logger in [root, *library_loggers]:
        logger.setLevel(logging.INFO)
    previous_verbosity = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.INFO)  # otherwise TFX resets the level when it parses its flags
    try:
        yield
    finally:
        progress.close()
        system.watch.reset(watch_token)
        absl_logging.set_verbosity(previous_verbosity)
        file_handler.close()
        for logger, level, handlers, propagate in previous_states:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
