"""Jobs on Flink, which are submitted again after the loss of a task manager.

Flink runs the batch jobs of Beam without a restart strategy, whatever options Beam gets. Therefore, this module submits
a failed job again. The new attempt skips the finished units of work, whose results are in files.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import grpc  # type: ignore[import-untyped]
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState

from beam_jobs.errors import FeedlineError, OptionError
from beam_jobs.runners import flink_child
from beam_jobs.runners.beam_job import NoAnswer

_STATE_PREFIX = re.compile(r"Pipeline \S+ failed in state \w+: ")
_POLL_S = 1.0
_LOGGER = logging.getLogger(__name__)


class Pipelines:
    """Creates pipelines that submit their job again if it fails on Flink; see `beam_job.ServicePipelines`.

    Args:
      arguments: arguments of Beam's Flink runner.
      processes: number of worker processes.
      retries: maximum number of further attempts of a job.
      name: name of all jobs of the run, which no other run uses; it serves to find and to cancel the jobs.
      url: URL of the REST endpoint of the cluster; empty for the mini cluster, which ends with its job server.
    """

    engine = "flink"

    def __init__(self, arguments: Sequence[str], processes: int, retries: int, name: str, url: str = "") -> None:
        self._arguments = [*arguments, f"--job_name={name}"]
        self.processes = processes
        self._retries = retries
        self._cluster = Cluster(url, name) if url else None

    def __call__(self) -> beam.Pipeline:
        """Returns a new pipeline."""
        return _Pipeline(PipelineOptions(self._arguments), self._retries, self._cluster)

    def attach(self, address: Mapping[str, Any]) -> _EarlierJob | None:
        """Returns a job that an earlier command started; None if the job has ended or is unknown.

        Raises:
          OptionError: the job runs on another cluster.
          FeedlineError: the cluster did not answer.
        """
        url = self._cluster.url if self._cluster else ""
        if address["url"] != url:
            raise OptionError(f"a job of an earlier command may still run; set flink_master to {address['url']}")
        job = _EarlierJob(Cluster(url, str(address["name"])))
        try:
            return job if job.cluster.has_running_job() else None
        except flink_child.NO_ANSWER as error:
            raise FeedlineError(f"the Flink cluster at {url} does not answer: {error}") from error


class Cluster(NamedTuple):
    """The jobs of a run on a Flink cluster.

    Attributes:
      url: URL of the REST endpoint of the cluster.
      name: name of the jobs.
    """

    url: str
    name: str

    @property
    def address(self) -> dict[str, str]:
        """URL of the cluster and name of the jobs, for `Pipelines.attach`."""
        return {"engine": Pipelines.engine, "url": self.url, "name": self.name}

    @property
    def text(self) -> str:
        """Description of the job in messages."""
        return f"the job {self.name} on the Flink cluster at {self.url}"

    def has_running_job(self) -> bool:
        """Returns whether a job runs: its end time is -1. Raises the exceptions of `flink_child.NO_ANSWER`."""
        return any(entry["end-time"] < 0 for entry in flink_child.jobs(self.url, self.name))

    def last_state(self) -> str:
        """Returns Flink's state of the newest job, or "" without jobs; raises `flink_child.NO_ANSWER` exceptions."""
        entries = flink_child.jobs(self.url, self.name)
        return str(max(entries, key=lambda entry: entry["start-time"])["state"]) if entries else ""


class _EarlierJob:
    """A job that an earlier command started. Its job server has ended, so the job cannot be submitted again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.address, self.text = cluster.address, cluster.text

    def wait_until_finish(self) -> str:
        """Waits for the end of the job, and returns its state.

        Raises:
          RuntimeError: the job failed, or was cancelled.
          NoAnswer: the cluster does not answer.
        """
        try:
            while self.cluster.has_running_job():
                time.sleep(_POLL_S)
            state = self.cluster.last_state() or "unknown"
        except flink_child.NO_ANSWER as error:
            raise NoAnswer(f"{self.text} may run, but the cluster does not answer: {error}") from error
        if state != "FINISHED":
            raise RuntimeError(f"{self.text} ended in the state {state}; Flink's web page shows its exceptions")
        return PipelineState.DONE

    def cancel(self) -> None:
        """Cancels the job."""
        flink_child.cancel(*self.cluster)


class _Pipeline(beam.Pipeline):
    """A pipeline whose result submits the job again after a failure."""

    def __init__(self, options: PipelineOptions, retries: int, cluster: Cluster | None) -> None:
        super().__init__(options=options)
        self._retries = retries
        self._cluster = cluster

    def run(self, *arguments: Any) -> _Result:
        result = _Result(lambda: super(_Pipeline, self).run(*arguments), self._retries, self._cluster)
        if self._cluster:
            result.address, result.text = self._cluster.address, self._cluster.text
        return result


class _Result:
    """The result of a job and of its further attempts. Has no `address` and `text` on the mini cluster."""

    address: dict[str, str]
    text: str

    def __init__(self, submit: Callable[[], Any], retries: int, cluster: Cluster | None) -> None:
        self._submit = submit
        self._retries = retries
        self._cluster = cluster
        self._result = submit()

    def wait_until_finish(self) -> str:
        """Waits for the last attempt, and returns its state.

        Raises:
          RuntimeError: the job failed, or the job server has ended; has the message of Flink or gRPC.
        """
        state, error = self._wait_for_outcome()
        while error is not None and state == PipelineState.FAILED and self._retries > 0:
            self._retries -= 1
            _LOGGER.warning("submitting the job again, %d further attempts remain: %s", self._retries, _message(error))
            self._result = self._submit()
            state, error = self._wait_for_outcome()
        if error is not None:
            raise RuntimeError(_message(error)) from error
        return state

    def _wait_for_outcome(self) -> tuple[str, Exception | None]:
        try:
            return self._result.wait_until_finish(), None
        except (RuntimeError, grpc.RpcError) as error:
            # Without an answer, the job may still run, so `run_job` cancels it instead of submitting it again.
            with contextlib.suppress(grpc.RpcError):
                return str(self._result.state), error
            return PipelineState.UNKNOWN, error

    def cancel(self) -> None:
        """Cancels the job on Flink; Beam's own `cancel` only removes it from the job server."""
        if self._cluster:  # the mini cluster ends with its job server
            flink_child.cancel(*self._cluster)

    def metrics(self) -> Any:
        """Returns the current metrics of the job."""
        return copy.copy(self._result).metrics()  # a result caches the metrics of the first call


def _message(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        details = getattr(error, "details", None)  # the complete text is a page long
        text = str(details() if callable(details) else error)
        return f"the connection to the job server of Flink broke: {' '.join(text.split())}"
    return _STATE_PREFIX.sub("", str(error))
