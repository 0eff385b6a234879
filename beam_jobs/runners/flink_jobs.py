"""Jobs on Flink that outlive a task manager.

Flink runs the batch jobs of Beam without a strategy to start them again, whatever Beam's own options say. So a job that
was given up is sent again from here. It takes up what it had finished: every unit of work leaves its result in a file.
"""

from __future__ import annotations

import copy
import functools
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import apache_beam as beam
import grpc  # type: ignore[import-untyped]
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState

from beam_jobs.runners import flink_child

_STATE = re.compile(r"Pipeline \S+ failed in state \w+: ")
_LOGGER = logging.getLogger(__name__)


def pipeline(arguments: Sequence[str], retries: int, name: str, url: str = "") -> beam.Pipeline:
    """Returns a pipeline that sends its job again when Flink gives it up.

    Args:
      arguments: of Beam's Flink runner.
      retries: how often, at most.
      name: of the job, by which it is cancelled; every run has one of its own.
      url: the REST endpoint of the cluster; empty for the mini cluster, which ends with its job server.
    """
    cancel = functools.partial(flink_child.cancel, url, name) if url else _nothing
    return _Pipeline(PipelineOptions([*arguments, f"--job_name={name}"]), retries, cancel)


def _nothing() -> None:
    """Cancels the jobs of a mini cluster."""


class _Pipeline(beam.Pipeline):
    def __init__(self, options: PipelineOptions, retries: int, cancel: Callable[[], None]) -> None:
        super().__init__(options=options)
        self._retries = retries
        self._cancel = cancel

    def run(self, *arguments: Any) -> _Result:
        return _Result(lambda: super(_Pipeline, self).run(*arguments), self._retries, self._cancel)


class _Result:
    """The result of a job, and of those that stand in for it."""

    def __init__(self, send: Callable[[], Any], retries: int, cancel: Callable[[], None]) -> None:
        self._send = send
        self._retries = retries
        self._cancel = cancel
        self._result = send()

    def wait_until_finish(self) -> str:
        """Waits for the last of the jobs, and returns its state.

        Raises:
          RuntimeError: it failed, or the job server is gone; the message is Flink's alone, or gRPC's.
        """
        state, error = self._outcome()
        while error is not None and state == PipelineState.FAILED and self._retries > 0:
            self._retries -= 1
            _LOGGER.warning("the job is sent again, then %d times more at most: %s", self._retries, _words(error))
            self._result = self._send()
            state, error = self._outcome()
        if error is not None:
            raise RuntimeError(_words(error)) from error
        return state

    def _outcome(self) -> tuple[str, Exception | None]:
        try:
            return self._result.wait_until_finish(), None
        except (RuntimeError, grpc.RpcError) as error:
            return self._state(), error

    def _state(self) -> str:
        # Without an answer the job may still run, and must not run twice: the caller that waits cancels it.
        try:
            return str(self._result.state)
        except grpc.RpcError:
            return PipelineState.UNKNOWN

    def cancel(self) -> None:
        """Has Flink end the job; Beam's own way only has the job server forget it."""
        self._cancel()

    def metrics(self) -> Any:
        """Returns the metrics of the job as they are now."""
        return copy.copy(self._result).metrics()  # a result keeps for good the first ones it is asked for


def _words(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        details = getattr(error, "details", None)  # its own text is a page
        words = str(details() if callable(details) else error)
        return f"the connection to the job server of Flink broke: {' '.join(words.split())}"
    return _STATE.sub("", str(error))
