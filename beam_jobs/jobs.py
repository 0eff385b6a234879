"""Running one Beam job: watched while it runs, its errors turned into one line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState

from beam_jobs import progress
from beam_jobs.errors import FeedlineError
from beam_jobs.options import LOCAL_BEAM_ARGS
from beam_jobs.progress import Progress

_PLACE = re.compile(r" ?\[while running '[^']*'\]")  # Beam's, appended to the text of every error

MakePipeline = Callable[[], beam.Pipeline]
# Takes the name of a stage, what it will have done at its end, and how to ask what it has done; shows it meanwhile.
Watch = Callable[[str, Progress, Callable[[], Progress]], AbstractContextManager[object]]


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
      transform: takes the root of a pipeline.
      make_pipeline: makes the pipeline.
      watch: shows how far it is.

    Raises:
      FeedlineError: the runner failed; its own text is the cause.
    """
    progress.local.reset()
    job = _Job(stage)
    with _one_line_errors(stage), watch(stage, total, job.done):
        pipeline = make_pipeline()
        pipeline | transform.label >> transform
        job.follow(pipeline.run())


class _Job:
    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._result: Any = None

    def follow(self, result: Any) -> None:
        """Waits for a running job, which answers `done` from now on."""
        self._result = result
        state = result.wait_until_finish()
        if state not in (None, PipelineState.DONE):
            raise RuntimeError(f"the job ended as {state}")

    def done(self) -> Progress:
        """Returns what is done: counted in this process by an in-process runner, told by its metrics by any other."""
        here = progress.local.read()
        if here.images or self._result is None:
            return here
        with contextlib.suppress(Exception):  # no metrics yet, or a hiccup of the service; the job does not need them
            return _from_metrics(self._result)
        return here


def _from_metrics(result: Any) -> Progress:
    counters = result.metrics().query(MetricsFilter())["counters"]
    found = {counter.key.metric.name: counter.committed or counter.attempted or 0 for counter in counters}
    rejects = found.get("rejects", 0)
    return Progress(found.get("images", 0) + rejects, found.get("bytes", 0), rejects)


@contextlib.contextmanager
def _one_line_errors(stage: str) -> Iterator[None]:
    try:
        yield
    except FeedlineError as error:
        error.args = (_PLACE.sub("", str(error)),)
        raise
    except Exception as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from error
        lines = _PLACE.sub("", str(error)).strip().splitlines()
        last = lines[-1].strip() if lines else type(error).__name__
        raise FeedlineError(f"{stage} failed: {last}; what was finished is kept, run the same command again") from error


def _was_interrupted(error: BaseException | None) -> bool:
    # The in-process runner works in the main thread and wraps what it meets there, Ctrl-C included.
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False
