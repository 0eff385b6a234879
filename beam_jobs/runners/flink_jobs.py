"""Jobs on Flink that survive the loss of a task manager.

Flink runs the batch jobs of Beam without a restart strategy, independent of the options of Beam. So this module sends a
failed job again. It continues after its finished units of work, whose results are in files.
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
    """Returns a pipeline that sends its job again when it fails on Flink.

    Args:
      arguments: arguments of Beam's Flink runner.
      retries: largest number of further attempts.
      name: name of the job, unique to a run; the job is cancelled by it.
      url: URL of the REST endpoint of the cluster; empty for the mini cluster, which ends with its job server.
    """
    cancel = functools.partial(flink_child.cancel, url, name) if url else lambda: None
    return _Pipeline(PipelineOptions([*arguments, f"--job_name={name}"]), retries, cancel)


class _Pipeline(beam.Pipeline):
    def __init__(self, options: PipelineOptions, retries: int, cancel: Callable[[], None]) -> None:
        super().__init__(options=options)
        self._retries = retries
        self._cancel = cancel

    def run(self, *arguments: Any) -> _Result:
        return _Result(lambda: super(_Pipeline, self).run(*arguments), self._retries, self._cancel)


class _Result:
    """The result of a job and of its further attempts."""

    def __init__(self, send: Callable[[], Any], retries: int, cancel: Callable[[], None]) -> None:
        self._send = send
        self._retries = retries
        self._cancel = cancel
        self._result = send()

    def wait_until_finish(self) -> str:
        """Waits for the last attempt, and returns its state.

        Raises:
          RuntimeError: the job failed, or the job server has ended; the message is that of Flink or gRPC.
        """
        state, error = self._outcome()
        while error is not None and state == PipelineState.FAILED and self._retries > 0:
            self._retries -= 1
            _LOGGER.warning("the job is sent again, %d further attempts remain: %s", self._retries, _message(error))
            self._result = self._send()
            state, error = self._outcome()
        if error is not None:
            raise RuntimeError(_message(error)) from error
        return state

    def _outcome(self) -> tuple[str, Exception | None]:
        try:
            return self._result.wait_until_finish(), None
        except (RuntimeError, grpc.RpcError) as error:
            return self._state(), error

    def _state(self) -> str:
        # Without an answer the job may still run, so it is not sent again; `run_job` cancels it.
        try:
            return str(self._result.state)
        except grpc.RpcError:
            return PipelineState.UNKNOWN

    def cancel(self) -> None:
        """Cancels the job on Flink; Beam's own `cancel` only removes it from the job server."""
        self._cancel()

    def metrics(self) -> Any:
        """Returns the current metrics of the job."""
        return copy.copy(self._result).metrics()  # a result caches its first metrics


def _message(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        details = getattr(error, "details", None)  # the complete text is a page
        text = str(details() if callable(details) else error)
        return f"the connection to the job server of Flink broke: {' '.join(text.split())}"
    return _STATE.sub("", str(error))
