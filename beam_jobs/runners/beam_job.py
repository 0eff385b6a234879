"""Running one Beam job with a display of its progress; its errors become one line.

A job on a service outlives its command when the user leaves it after Ctrl-C, or the command is killed. Its address is
in a file of the work directory, so that the same command follows it instead of starting a second one.
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
# Frames of a Java stack trace, and class names before the message of an error.
_FRAME = re.compile(r"\s*(at [\w.$/<>]+\(.*|\.\.\. \d+ more)?\s*$")
_CLASSES = re.compile(r"^(Caused by: |([a-z]\w*\.)+[A-Z][\w$]*(: |$)|RuntimeError: (?=([a-z]\w*\.)*[A-Z]\w+: ))+")

_IN_PROCESS = (DirectRunner, BundleBasedDirectRunner, FnApiRunner)
_POLL_S = 2.0
_RETRY_S = 60.0
_MAX_ADDRESS_BYTES = 1 << 16
_LOGGER = logging.getLogger(__name__)
_NOT_CANCELLED = "the job could not be cancelled and may still run; cancel it in Flink or Dataflow"


class StagePipeline(beam.Pipeline):
    """A pipeline that needs to know its work before it runs.

    Attributes:
      stage: name of the work, as in `run_job`.
      units: number of units that can be processed at a time; 0 if it is not known.
    """

    stage: str = ""
    units: int = 0


MakePipeline = Callable[[], beam.Pipeline]


class NoAnswer(Exception):
    """A service gives no answer about a job, which may run well; the text is the cause.

    An engine raises it from `wait_until_finish`, which is then called again.
    """


def local_pipeline() -> beam.Pipeline:
    """Returns a pipeline on Beam's in-process runner."""
    return beam.Pipeline(options=PipelineOptions(list(LOCAL_BEAM_ARGS)))


def runs_on_cluster(make_pipeline: MakePipeline) -> bool:
    """Returns whether the pipelines run on workers, not on an in-process runner of Beam."""
    if isinstance(make_pipeline, ServicePipelines):
        return True
    with _without_leftovers(make_pipeline()) as pipeline:
        return not isinstance(pipeline.runner, _IN_PROCESS)


@runtime_checkable
class ServiceJob(Protocol):
    """The result of a job that may outlive its command."""

    address: dict[str, str]  # by which `ServicePipelines.attach` finds the job
    text: str  # the job in a message


@runtime_checkable
class ServicePipelines(Protocol):
    """A `MakePipeline` of a service."""

    engine: str  # its name, one of `ENGINES`
    processes: int  # largest number of processes that do the work at a time

    def __call__(self) -> beam.Pipeline:
        """Returns a new pipeline."""

    def attach(self, address: Mapping[str, Any]) -> Any:
        """Returns the result of a job that an earlier command left running; None if it has ended."""


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """The file that contains the address of the `ServiceJob` of an ingest while it runs.

    Attributes:
      path: path of the file.
      command: text of everything that the ingest does; only an equal one follows the job.
      leave: takes the `text` of an interrupted job; returns whether it is left running. None cancels it.
      tally: takes the name of a stage and the path of the list of its units, and returns the function that returns the
        finished work of a job that was left running.
      beside: whether the command that began the job still runs, which alone cancels it and removes the file.
    """

    path: str
    command: str = ""
    leave: Callable[[str], bool] | None = None
    tally: Callable[[str, str], Callable[[], Progress]] | None = None
    beside: bool = False

    def write(self, stage: str, total: Progress, units: str, result: ServiceJob) -> None:
        """Stores the address of a job that began, and the path of the list of its units of work."""
        values = {"command": self.command, "stage": stage, "images": total.images, "bytes": total.bytes, "units": units}
        values |= {"address": result.address, "text": result.text}
        storage.write_bytes(self.path, json.dumps(values).encode(), durable=False)

    def remove(self, address: dict[str, str]) -> None:
        """Removes the address of a job that has ended, unless another command began a job, or does the removing."""
        if self.beside:
            return
        with contextlib.suppress(OSError, ValueError, KeyError):  # another run finds that the job has ended
            if self._read()["address"] == address:
                storage.remove(self.path)

    def _read(self) -> Any:
        return storage.parse_json(storage.read_at_most(self.path, _MAX_ADDRESS_BYTES))

    def follow(self, make_pipeline: MakePipeline, watch: Watch, report: Callable[[str], object]) -> None:
        """Waits for the end of a job that an earlier command began; returns at once if there is none.

        Raises:
          OptionError: the job runs, and another command began it, or it runs on another engine.
          FeedlineError: the file cannot be read, or the service gives no answer.
        """
        try:
            values = self._read()
            stage, text, address = str(values["stage"]), str(values["text"]), dict(values["address"])
            total = Progress(int(values["images"]), int(values["bytes"]))
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError):
            return  # no job, or a file of another program
        except OSError as error:  # a job may run, and a second one must not begin
            raise FeedlineError(f"{self.path} cannot be read: {error}; run the same command again") from error
        remedy = f"wait for its end or cancel it, then remove {self.path}"
        if not isinstance(make_pipeline, ServicePipelines) or make_pipeline.engine != address.get("engine"):
            raise OptionError(f"{text} of an earlier command may still run; use its runner again, or {remedy}")
        result = make_pipeline.attach(address)
        if result is None:
            self.remove(address)
            return
        if values.get("command") != self.command:
            raise OptionError(f"{text} runs for an ingest with other options; repeat that command, or {remedy}")
        report(f"following {text}")
        system.local_progress.reset()
        job = _Job(functools.partial(self.tally, stage, str(values.get("units", ""))) if self.tally else None, self)
        try:
            with _explain_errors(stage, job, resumable=True), watch(stage, total, job.done):
                job.follow(result)
        except FeedlineError as error:  # it failed, or was cancelled: this run does the rest
            report(f"{text} did not finish: {error}")


def run_job(
    stage: str,
    total: Progress,
    transform: beam.PTransform,
    make_pipeline: MakePipeline,
    watch: Watch,
    file: JobFile | None = None,
) -> None:
    """Runs a pipeline of one transform to its end.

    Args:
      stage: name of the work, such as `examining`.
      total: total work of the job.
      transform: root transform of the pipeline; its optional method `tally` makes a function that reads the
        finished work from files of the workers; its optional `unit_count` is its number of units of work.
      make_pipeline: creates the pipeline.
      watch: shows the progress.
      file: stores the name of a job on a service, so that a later run can follow it; None for a job that ends with
        this process.

    Raises:
      FeedlineError: the runner failed; the error of the runner is the cause.
    """
    system.local_progress.reset()
    job = _Job(getattr(transform, "tally", None), file)
    with (
        _explain_errors(stage, job, resumable=file is not None),
        watch(stage, total, job.done),
        _without_leftovers(make_pipeline()) as pipeline,
    ):
        if isinstance(pipeline, StagePipeline):
            pipeline.stage, pipeline.units = stage, getattr(transform, "unit_count", 0)
        pipeline | transform.label >> transform
        note = functools.partial(file.write, stage, total, getattr(transform, "units", "")) if file else None
        job.follow(pipeline.run(), note)


@contextlib.contextmanager
def _without_leftovers(pipeline: beam.Pipeline) -> Iterator[beam.Pipeline]:
    """Removes the temporary directory of a pipeline; Beam leaves it when the pipeline does not start."""
    try:
        yield pipeline
    finally:
        shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)


class Tally:
    """Sums the progress in the files of finished units of work; each file is read once."""

    def __init__(self, directory: str, names: Iterable[str], read: Callable[[str, bytes], Progress | None]) -> None:
        """Stores the names of the files.

        Args:
          directory: directory of the files.
          names: names of all files.
          read: takes name and content of a file and returns its progress, or None for a file of another run.
        """
        self._directory = directory
        self._pending = set(names)
        self._read = read
        self._done = Progress()
        self._next_update = 0.0
        self._lock = threading.Lock()  # two displays may call it from different threads

    def __call__(self) -> Progress:
        """Returns the finished work, at most two seconds old: displays call it more often than stores allow."""
        with self._lock:
            if time.monotonic() >= self._next_update:
                self._next_update = time.monotonic() + _POLL_S
                self._update()
            return self._done

    def _update(self) -> None:
        for name in self._pending.intersection(storage.list_files(self._directory)):
            progress = self._read(name, storage.read_bytes(storage.join(self._directory, name)))
            if progress is not None:
                self._done += progress
                self._pending.remove(name)


class _Job:
    def __init__(self, make_tally: Callable[[], Callable[[], Progress]] | None, file: JobFile | None) -> None:
        self._make_tally = functools.cache(make_tally) if make_tally else None
        self._file = file
        self._result: Any = None
        self.remark = ""  # what still runs after an error

    def follow(self, result: Any, note: Callable[[ServiceJob], None] | None = None) -> None:
        """Waits for a running job, the source of `done` from now on; cancels it after an error, or leaves it.

        Args:
          result: result of the job.
          note: stores the address of a job on a service; None when it is stored.
        """
        self._result = result
        file = self._file if isinstance(result, ServiceJob) else None
        try:
            if file and note:
                note(result)
            state = _wait_until_finish(result)
        except BaseException as error:
            if file and _was_interrupted(error) and (file.beside or _is_left(file, result.text)):
                self.remark = f"{result.text} continues; run the same command to follow it"
                raise
            if file and file.beside:
                raise
            self.remark = _NOT_CANCELLED  # stays when a second Ctrl-C interrupts `cancel`
            with contextlib.suppress(Exception):
                result.cancel()
                self.remark = ""
                if file:
                    file.remove(result.address)
            raise
        if file:
            file.remove(result.address)
        if state not in (None, PipelineState.DONE):
            raise RuntimeError(f"the job ended as {state}")

    def done(self) -> Progress:
        """Returns the finished work.

        An in-process runner counts it in this process. For other runners it is the larger of the metrics and the files
        of finished units of work: Flink provides metrics at the end of a job, and other services with a delay.
        """
        progress = system.local_progress.read()
        if progress.images or self._result is None:
            return progress
        # Without metrics, or after an error of the service or the store, the display misses one update.
        with contextlib.suppress(Exception):
            progress = _read_metrics(self._result)
        if self._make_tally is not None:
            with contextlib.suppress(Exception):
                progress = max(progress, self._make_tally()(), key=lambda candidate: candidate.images)
        return progress


def _is_left(file: JobFile, text: str) -> bool:
    try:
        return bool(file.leave and file.leave(text))
    except BaseException:  # noqa: BLE001 - another signal, or a terminal that is gone: the job is cancelled
        return False


def _wait_until_finish(result: Any) -> Any:
    """Returns the final state of a job; it waits through any time without an answer of the service."""
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
    return Progress(values.get("images", 0) + rejects, values.get("bytes", 0), rejects)


@contextlib.contextmanager
def _explain_errors(stage: str, job: _Job, resumable: bool) -> Iterator[None]:
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
            message = f"{stage} failed: {cause}; what was finished is kept, run the same command again{suffix}"
        else:
            message = f"{stage} failed: {cause}; run the same command again{suffix}"
        raise FeedlineError(message) from error


def last_line(error: Exception) -> str:
    """Returns the last line of an error that is no stack frame: in a stack trace, the innermost cause."""
    details = getattr(error, "details", None)  # the message of gRPC, whose complete text is a page
    text = str(details() if callable(details) else error)
    lines = [line for line in _STEP_SUFFIX.sub("", text).splitlines() if not _FRAME.fullmatch(line)]
    messages = [_CLASSES.sub("", line.strip()) for line in lines]
    return next(filter(None, reversed(messages)), type(error).__name__)


def _was_interrupted(error: BaseException | None) -> bool:
    # The in-process runner runs in the main thread and wraps exceptions, including `KeyboardInterrupt`.
    return any(isinstance(linked, KeyboardInterrupt) for linked in chain(error))
