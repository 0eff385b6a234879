"""Running one Beam job: watched while it runs, its errors turned into one line."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState

from beam_jobs import storage
from beam_jobs.common import system
from beam_jobs.common.system import Progress
from beam_jobs.errors import FeedlineError, chain
from beam_jobs.options import LOCAL_BEAM_ARGS

_PLACE = re.compile(r" ?\[while running '[^']*'\]")  # Beam's, appended to the text of every error
# What stands around the words of an error in a stack trace of Java, and the names of classes before them.
_FRAME = re.compile(r"\s*(at [\w.$/<>]+\(.*|\.\.\. \d+ more)?\s*$")
_CLASSES = re.compile(r"^(Caused by: |([a-z]\w*\.)+[A-Z][\w$]*(: |$)|RuntimeError: (?=([a-z]\w*\.)*[A-Z]\w+: ))+")

_LOOK_S = 2.0
_ASK_AGAIN_S = 60.0
_LOGGER = logging.getLogger(__name__)
_UNCANCELLED = "the job could not be cancelled and may still run, end it where it runs"

MakePipeline = Callable[[], beam.Pipeline]
# Takes the name of a stage, what it will have done at its end, and how to ask what it has done; shows it meanwhile.
Watch = Callable[[str, Progress, Callable[[], Progress]], AbstractContextManager[object]]


class Unanswered(Exception):
    """A service does not say how a job is, which may be as well as ever; the text is what went wrong.

    What an engine raises of `wait_until_finish` instead of an error, for the job to be asked for again.
    """


def local_pipeline() -> beam.Pipeline:
    """Returns a pipeline on Beam's in-process runner."""
    return beam.Pipeline(options=PipelineOptions(list(LOCAL_BEAM_ARGS)))


def unwatched(*_: object) -> AbstractContextManager[object]:
    """A `Watch` that shows nothing."""
    return contextlib.nullcontext()


def run_job(stage: str, total: Progress, transform: beam.PTransform, make_pipeline: MakePipeline, watch: Watch) -> None:
    """Runs a pipeline of one transform to its end.

    Args:
      stage: what the job does, such as `examining`.
      total: what it will have done.
      transform: takes the root of a pipeline; its `tally`, if it has one, returns a function that tells what is done
        from what the workers left in files.
      make_pipeline: makes the pipeline.
      watch: shows how far it is.

    Raises:
      FeedlineError: the runner failed; its own text is the cause.
    """
    system.local_progress.reset()
    job = _Job(transform)
    with _one_line_errors(stage, job), watch(stage, total, job.done), _tidied(make_pipeline()) as pipeline:
        pipeline | transform.label >> transform
        job.follow(pipeline.run())


@contextlib.contextmanager
def _tidied(pipeline: beam.Pipeline) -> Iterator[beam.Pipeline]:
    """Removes the temporary directory of a pipeline, which Beam leaves when it does not come to run it."""
    try:
        yield pipeline
    finally:
        shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)


class Tally:
    """Adds up the files that finished units of work leave behind; each is read once."""

    def __init__(self, directory: str, names: Iterable[str], read: Callable[[str, bytes], Progress | None]) -> None:
        """Names the files.

        Args:
          directory: where they appear.
          names: of all of them.
          read: takes name and content and returns what was done, or None for a file of another run.
        """
        self._directory = directory
        self._awaited = set(names)
        self._read = read
        self._done = Progress()
        self._next_look = 0.0
        self._lock = threading.Lock()  # a bar and a line may ask at once, from threads of their own

    def __call__(self) -> Progress:
        """Returns what is done by now, or was two seconds ago: a bar asks more often than a store likes."""
        with self._lock:
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + _LOOK_S
                self._look()
            return self._done

    def _look(self) -> None:
        for name in self._awaited.intersection(storage.list_files(self._directory)):
            done = self._read(name, storage.read_bytes(storage.join(self._directory, name)))
            if done is not None:
                self._done += done
                self._awaited.remove(name)


class _Job:
    def __init__(self, transform: beam.PTransform) -> None:
        self._tally: Callable[[], Progress] | None = transform.tally() if hasattr(transform, "tally") else None
        self._result: Any = None
        self.remark = ""  # what belongs behind the text of an error

    def follow(self, result: Any) -> None:
        """Waits for a running job, which answers `done` from now on; cancels it when the user ends it, or it fails."""
        self._result = result
        try:
            state = _end_of(result)
        except BaseException:
            self.remark = f"; {_UNCANCELLED}"  # which a second Ctrl-C leaves standing
            with contextlib.suppress(Exception):
                result.cancel()
                self.remark = ""
            raise
        if state not in (None, PipelineState.DONE):
            raise RuntimeError(f"the job ended as {state}")

    def done(self) -> Progress:
        """Returns what is done: counted in this process by an in-process runner.

        Of any other runner its metrics tell, or the files of finished units of work, whichever is further: Flink hands
        over metrics when all is done, and other services long after the work.
        """
        here = system.local_progress.read()
        if here.images or self._result is None:
            return here
        # No metrics yet, or a hiccup of the service or the store; the job does not need an answer.
        with contextlib.suppress(Exception):
            here = _from_metrics(self._result)
        if self._tally is not None:
            with contextlib.suppress(Exception):
                here = max(here, self._tally(), key=lambda found: found.images)
        return here


def _end_of(result: Any) -> Any:
    """Returns the state in which a job ends, however long its service gives no answer."""
    while True:
        try:
            return result.wait_until_finish()
        except Unanswered as error:
            again = f"the job goes on, and is asked for again in {_ASK_AGAIN_S:.0f} s; Ctrl-C cancels it"
            _LOGGER.warning("%s; %s", error, again)
        time.sleep(_ASK_AGAIN_S)


def _from_metrics(result: Any) -> Progress:
    counters = result.metrics().query(MetricsFilter())["counters"]
    found = {counter.key.metric.name: counter.committed or counter.attempted or 0 for counter in counters}
    rejects = found.get("rejects", 0)
    return Progress(found.get("images", 0) + rejects, found.get("bytes", 0), rejects)


@contextlib.contextmanager
def _one_line_errors(stage: str, job: _Job) -> Iterator[None]:
    try:
        yield
    except FeedlineError as error:
        error.args = (f"{_PLACE.sub('', str(error))}{job.remark}",)
        raise
    except KeyboardInterrupt as error:
        if job.remark:
            error.args = (_UNCANCELLED,)
        raise
    except Exception as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from error
        last = _last_words(error)
        raise FeedlineError(
            f"{stage} failed: {last}; what was finished is kept, run the same command again{job.remark}"
        ) from error


def _last_words(error: Exception) -> str:
    """Returns the last line of an error that says something: the innermost cause, where runners quote stack traces."""
    details = getattr(error, "details", None)  # of gRPC, whose own text is a page
    text = str(details() if callable(details) else error)
    lines = [line for line in _PLACE.sub("", text).splitlines() if not _FRAME.fullmatch(line)]
    words = [_CLASSES.sub("", line.strip()) for line in lines]
    return next(filter(None, reversed(words)), type(error).__name__)


def _was_interrupted(error: BaseException | None) -> bool:
    # The in-process runner works in the main thread and wraps what it meets there, Ctrl-C included.
    return any(isinstance(one, KeyboardInterrupt) for one in chain(error))
