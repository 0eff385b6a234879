"""Runs a Beam job, displays its progress, and reports its error as a message of one line.

A job on a service continues without its command if the user chooses so after Ctrl-C, or if the command is killed. A
file in the work directory has the address of the job, so that the same command reattaches to it and starts no new job.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import apache_beam as beam
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner, DirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState

from beam_jobs import storage
from beam_jobs.common import system
from beam_jobs.common.system import Progress, Watch
from beam_jobs.errors import FeedlineError, OptionError, chain
from beam_jobs.options import LOCAL_BEAM_ARGS

_STEP_SUFFIX = re.compile(r" ?\[while running '[^']*'\]")  # Beam appends it to the text of every error
# Lines of a Java stack trace, and the class names that precede the message of an error.
_STACK_FRAME = re.compile(r"\s*(at [\w.$/<>]+\(.*|\.\.\. \d+ more)?\s*$")
_CLASS_NAMES = re.compile(r"^(Caused by: |([a-z]\w*\.)+[A-Z][\w$]*(: |$)|RuntimeError: (?=([a-z]\w*\.)*[A-Z]\w+: ))+")

_IN_PROCESS_RUNNERS = (DirectRunner, BundleBasedDirectRunner, FnApiRunner)
_POLL_S = 2.0  # between two listings of the files of finished work
_RETRY_S = 60.0  # between two requests to a service that does not answer
_MAX_ADDRESS_BYTES = 1 << 16
_LOGGER = logging.getLogger(__name__)
_NOT_CANCELLED = "the job could not be cancelled and may still run; cancel it in Flink or Dataflow"


class StagePipeline(beam.Pipeline):
    """A pipeline that `run_job` gives the stage and the number of units of work before it runs.

    Attributes:
      stage: name of the stage, as in `run_job`.
      units: number of units of work, which workers can process in parallel; 0 if it is unknown.
    """

    stage: str = ""
    units: int = 0


MakePipeline = Callable[[], beam.Pipeline]


class NoAnswer(Exception):
    """A service does not answer requests about a job, which may still run; the message has the cause.

    `wait_until_finish` of the result of a job raises it; this module then calls the method again.
    """


def local_pipeline() -> beam.Pipeline:
    """Returns a pipeline on Beam's in-process runner."""
    return beam.Pipeline(options=PipelineOptions(list(LOCAL_BEAM_ARGS)))


def runs_on_cluster(make_pipeline: MakePipeline) -> bool:
    """Returns whether the pipelines run on workers instead of an in-process runner of Beam."""
    if isinstance(make_pipeline, ServicePipelines):
        return True
    with _without_temporary_files(make_pipeline()) as pipeline:
        return not isinstance(pipeline.runner, _IN_PROCESS_RUNNERS)


@runtime_checkable
class ServiceJob(Protocol):
    """Beam's result of a job on a service, which may continue after the end of its command."""

    address: dict[str, str]  # identifies the job, for `ServicePipelines.attach`
    text: str  # description of the job in messages


@runtime_checkable
class ServicePipelines(Protocol):
    """A `MakePipeline` for jobs on a service."""

    engine: str  # name of the engine, one of `ENGINES`
    processes: int  # maximum number of worker processes of a job

    def __call__(self) -> beam.Pipeline:
        """Returns a new pipeline."""

    def attach(self, address: Mapping[str, Any]) -> Any:
        """Returns the result of a job that an earlier command started; None if the job has ended."""


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """The file with the address of the `ServiceJob` of an ingest. It exists while the job runs.

    Attributes:
      path: path of the file.
      command: all options of the ingest as text; only a command with an equal text reattaches to the job.
      leave: takes `ServiceJob.text` of an interrupted job; returns whether the job continues. None cancels the job.
      tally: takes the name of a stage and the path of the list of its units of work; returns a function that returns
        the finished work of a job to which this command reattached.
      is_starter_running: whether the command that started the job runs; only it cancels the job or removes the file.
    """

    path: str
    command: str = ""
    leave: Callable[[str], bool] | None = None
    tally: Callable[[str, str], Callable[[], Progress]] | None = None
    is_starter_running: bool = False

    def write(self, stage: str, total: Progress, units_path: str, result: ServiceJob) -> None:
        """Stores the address of a started job, and the path of the list of its units of work."""
        values = {"command": self.command, "stage": stage, "images": total.images, "bytes": total.bytes}
        values |= {"units": units_path, "address": result.address, "text": result.text}
        storage.write_bytes(self.path, json.dumps(values).encode(), durable=False)

    def remove(self, address: dict[str, str]) -> None:
        """Removes the file of an ended job, unless it has another address or the command that started it still runs."""
        if self.is_starter_running:
            return
        with contextlib.suppress(OSError, ValueError, KeyError):  # a later command removes the file
            if self._read()["address"] == address:
                storage.remove(self.path)

    def _read(self) -> Any:
        return storage.parse_json(storage.read_at_most(self.path, _MAX_ADDRESS_BYTES))

    def follow(self, make_pipeline: MakePipeline, watch: Watch, report: Callable[[str], object]) -> None:
        """Waits for the end of a job that an earlier command started; returns at once if there is no such job.

        Raises:
          OptionError: the job belongs to a command with other options, or runs on another engine.
          FeedlineError: the file cannot be read, or the service does not answer.
        """
        try:
            values = self._read()
            stage, text, address = str(values["stage"]), str(values["text"]), dict(values["address"])
            total = Progress(int(values["images"]), int(values["bytes"]))
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError):
            return  # no job, or a file of another program
        except OSError as error:  # a job may run, and a second job must not start
            raise FeedlineError(f"{self.path} cannot be read: {error}; run the same command again") from error
        remedy = f"wait until the job ends or cancel it, then remove {self.path}"
        if not isinstance(make_pipeline, ServicePipelines) or make_pipeline.engine != address.get("engine"):
            raise OptionError(f"{text} of an earlier command may still run; use that command's runner, or {remedy}")
        result = make_pipeline.attach(address)
        if result is None:
            self.remove(address)
            return
        if values.get("command") != self.command:
            raise OptionError(f"{text} belongs to an ingest with other options; repeat that command, or {remedy}")
        report(f"reattached to {text}")
        system.local_progress.reset()
        job = _Job(functools.partial(self.tally, stage, str(values.get("units", ""))) if self.tally else None, self)
        try:
            with _explain_errors(stage, job, resumable=True), watch(stage, total, job.read_progress):
                job.follow(result)
        except FeedlineError as error:  # the job failed or was cancelled: this run does the remaining work
            report(f"{text} did not finish: {error}")


def run_job(
    stage: str,
    total: Progress,
    transform: beam.PTransform,
    make_pipeline: MakePipeline,
    watch: Watch,
    job_file: JobFile | None = None,
) -> None:
    """Runs a pipeline of one transform, and returns when it has finished.

    Args:
      stage: name of the stage, such as `examining`.
      total: total work of the job.
      transform: root transform of the pipeline; its optional method `tally` returns a function that reads the finished
        work from files of workers; optional: `unit_count`, number of its units of work; `units`, path of their list.
      make_pipeline: creates the pipeline.
      watch: displays the progress.
      job_file: stores the address of a job on a service, so that a later command can reattach to it; None for a job
        that ends with this process.

    Raises:
      FeedlineError: the runner failed; its `__cause__` is the error of the runner.
    """
    system.local_progress.reset()
    job = _Job(getattr(transform, "tally", None), job_file)
    with (
        _explain_errors(stage, job, resumable=job_file is not None),
        watch(stage, total, job.read_progress),
        _without_temporary_files(make_pipeline()) as pipeline,
    ):
        if isinstance(pipeline, StagePipeline):
            pipeline.stage, pipeline.units = stage, getattr(transform, "unit_count", 0)
        pipeline | transform.label >> transform
        units_path = getattr(transform, "units", "")
        job.follow(pipeline.run(), functools.partial(job_file.write, stage, total, units_path) if job_file else None)


@contextlib.contextmanager
def _without_temporary_files(pipeline: beam.Pipeline) -> Iterator[beam.Pipeline]:
    """Removes the temporary directory of a pipeline, which remains if the pipeline does not start."""
    try:
        yield pipeline
    finally:
        shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)


class Tally:
    """Sums the progress in the files of finished units of work, and reads each file once."""

    def __init__(self, directory: str, names: Iterable[str], read: Callable[[str, bytes], Progress | None]) -> None:
        """Stores the arguments; reads no file.

        Args:
          directory: directory of the files.
          names: names of the files of all units of work, most of which do not exist yet.
          read: takes name and content of a file and returns its progress, or None for a file of another run.
        """
        self._directory = directory
        self._unread_names = set(names)
        self._read = read
        self._progress = Progress()
        self._next_update = 0.0
        self._lock = threading.Lock()  # several threads may display the progress

    def __call__(self) -> Progress:
        """Returns the finished work; reads files at most every two seconds, because displays call it more often."""
        with self._lock:
            if time.monotonic() >= self._next_update:
                self._next_update = time.monotonic() + _POLL_S
                self._update()
            return self._progress

    def _update(self) -> None:
        for name in self._unread_names.intersection(storage.list_files(self._directory)):
            progress = self._read(name, storage.read_bytes(storage.join(self._directory, name)))
            if progress is not None:
                self._progress += progress
                self._unread_names.remove(name)


class _Job:
    """A job, its progress, and a remark for the error message if it may continue after the command."""

    def __init__(self, make_tally: Callable[[], Callable[[], Progress]] | None, job_file: JobFile | None) -> None:
        self._make_tally = functools.cache(make_tally) if make_tally else None  # a tally reads each file only once
        self._job_file = job_file
        self._result: Any = None
        self.remark = ""  # appended to an error message if the job may still run

    def follow(self, result: Any, write_address: Callable[[ServiceJob], None] | None = None) -> None:
        """Waits for the end of a job; after an error, cancels the job or lets it continue.

        Args:
          result: Beam's result of the job.
          write_address: stores the address of a job on a service; None if it is already stored.
        """
        self._result = result
        job_file = self._job_file if isinstance(result, ServiceJob) else None
        try:
            if job_file and write_address:
                write_address(result)
            state = _wait_until_finish(result)
        except BaseException as error:
            if job_file and _was_interrupted(error) and _may_continue(job_file, result.text):
                self.remark = f"{result.text} continues; run the same command to reattach to it"
                raise
            if job_file and job_file.is_starter_running:
                raise
            self.remark = _NOT_CANCELLED  # remains if a second Ctrl-C interrupts `cancel`
            with contextlib.suppress(Exception):
                result.cancel()
                self.remark = ""
                if job_file:
                    job_file.remove(result.address)
            raise
        if job_file:
            job_file.remove(result.address)
        if state not in (None, PipelineState.DONE):
            raise RuntimeError(f"the job ended in the state {state}")

    def read_progress(self) -> Progress:
        """Returns the finished work.

        An in-process runner counts the work in this process. For other runners, the larger count of the metrics and of
        the files of finished units of work is used: Flink provides metrics at the end of a job, others with a delay.
        """
        progress = system.local_progress.read()
        if progress.images or self._result is None:
            return progress
        # An error of the service or the store affects only one update of the display.
        with contextlib.suppress(Exception):
            progress = _read_metrics(self._result)
        if self._make_tally is not None:
            with contextlib.suppress(Exception):
                progress = max(progress, self._make_tally()(), key=lambda candidate: candidate.images)
        return progress


def _may_continue(job_file: JobFile, text: str) -> bool:
    try:
        return job_file.is_starter_running or bool(job_file.leave and job_file.leave(text))
    except BaseException:  # noqa: BLE001 - another signal, or a closed terminal: the job is cancelled
        return False


def _wait_until_finish(result: Any) -> Any:
    """Returns the final state of a job; repeats the request as long as the service does not answer."""
    while True:
        try:
            return result.wait_until_finish()
        except NoAnswer as error:
            _LOGGER.warning(
                "%s; the job continues, the next request is in %.0f s; Ctrl-C ends this command", error, _RETRY_S
            )
        time.sleep(_RETRY_S)


def _read_metrics(result: Any) -> Progress:
    counters = result.metrics().query(MetricsFilter())["counters"]
    values = {counter.key.metric.name: counter.committed or counter.attempted or 0 for counter in counters}
    rejects = values.get("rejects", 0)
    return Progress(values.get("images", 0) + rejects, values.get("bytes", 0), rejects)  # `images` excludes rejects


@contextlib.contextmanager
def _explain_errors(stage: str, job: _Job, resumable: bool) -> Iterator[None]:
    """Converts an error of the block to a `FeedlineError` of one line, and appends the remark of the job."""
    try:
        yield
    except FeedlineError as error:
        error.args = (f"{_STEP_SUFFIX.sub('', str(error))}{'; ' * bool(job.remark)}{job.remark}",)
        raise
    except KeyboardInterrupt as error:
        if job.remark:
            error.args = (job.remark,)
        raise
    except Exception as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from error
        cause, suffix = last_line(error), f"; {job.remark}" if job.remark else ""
        if resumable:
            message = f"{stage} failed: {cause}; finished work is kept, run the same command again{suffix}"
        else:
            message = f"{stage} failed: {cause}; run the same command again{suffix}"
        raise FeedlineError(message) from error


def last_line(error: Exception) -> str:
    """Returns the last line of an error message that is no stack frame; in a Java stack trace, the innermost cause."""
    details = getattr(error, "details", None)  # the message of a gRPC error, whose complete text is a page long
    text = str(details() if callable(details) else error)
    lines = [line for line in _STEP_SUFFIX.sub("", text).splitlines() if not _STACK_FRAME.fullmatch(line)]
    messages = [_CLASS_NAMES.sub("", line.strip()) for line in lines]
    return next(filter(None, reversed(messages)), type(error).__name__)


def _was_interrupted(error: BaseException | None) -> bool:
    # The in-process runner runs in the main thread and wraps exceptions, including `KeyboardInterrupt`.
    return any(isinstance(linked, KeyboardInterrupt) for linked in chain(error))
