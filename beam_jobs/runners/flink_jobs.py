"""Jobs on Flink that survive the loss of a task manager.

Flink runs the batch jobs of Beam without a restart strategy, independent of the options of Beam. So this module sends a
failed job again. It continues after its finished units of work, whose results are in files.
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

_STATE = re.compile(r"Pipeline \S+ failed in state \w+: ")
_POLL_S = 1.0
_LOGGER = logging.getLogger(__name__)


class Pipelines:
    """Creates pipelines that send their job again when it fails on Flink; see `beam_job.ServicePipelines`.

    Args:
      arguments: arguments of Beam's Flink runner.
      processes: number of worker processes.
      retries: largest number of further attempts of a job.
      name: name of the jobs, unique to a run; they are found and cancelled by it.
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

    def attach(self, address: Mapping[str, Any]) -> _LeftJob | None:
        """Returns a job that an earlier command left running; None if it has ended or is unknown.

        Raises:
          OptionError: it runs on another cluster.
          FeedlineError: the cluster gave no answer.
        """
        url = self._cluster.url if self._cluster else ""
        if address["url"] != url:
            raise OptionError(f"a job of an earlier command may still run at {address['url']}; set flink_master to it")
        job = _LeftJob(Cluster(url, str(address["name"])))
        try:
            return job if job.cluster.running() else None
        except flink_child.NO_ANSWER as error:
            raise FeedlineError(f"the Flink cluster at {url} gives no answer: {error}") from error


class Cluster(NamedTuple):
    """The jobs of a run on a cluster.

    Attributes:
      url: URL of the REST endpoint.
      name: name of the jobs.
    """

    url: str
    name: str

    @property
    def address(self) -> dict[str, str]:
        """What `Pipelines.attach` finds the job by."""
        return {"engine": Pipelines.engine, "url": self.url, "name": self.name}

    @property
    def text(self) -> str:
        """The job in a message."""
        return f"the job {self.name} on the Flink cluster at {self.url}"

    def running(self) -> bool:
        """Returns whether a job runs; raises `flink_child.NO_ANSWER`."""
        return any(entry["end-time"] < 0 for entry in flink_child.jobs(self.url, self.name))

    def last_state(self) -> str:
        """Returns the state of the last job, of Flink; raises `flink_child.NO_ANSWER`."""
        entries = flink_child.jobs(self.url, self.name)
        return str(max(entries, key=lambda entry: entry["start-time"])["state"]) if entries else ""


class _LeftJob:
    """A job that an earlier command left running. Its job server is gone, so it is not sent again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.address, self.text = cluster.address, cluster.text

    def wait_until_finish(self) -> str:
        """Waits for the end, and returns the state.

        Raises:
          RuntimeError: the job failed, or was cancelled.
          NoAnswer: the cluster gives no answer.
        """
        try:
            while self.cluster.running():
                time.sleep(_POLL_S)
            state = self.cluster.last_state()
        except flink_child.NO_ANSWER as error:
            raise NoAnswer(f"{self.text} may run, but the cluster gives no answer: {error}") from error
        if state != "FINISHED":
            raise RuntimeError(
                f"{self.text} ended as {state or 'unknown'}; its exceptions are in the web page of Flink"
            )
        return PipelineState.DONE

    def cancel(self) -> None:
        """Cancels the job."""
        flink_child.cancel(*self.cluster)


class _Pipeline(beam.Pipeline):
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
    """The result of a job and of its further attempts; without `address` and `text` on the mini cluster."""

    address: dict[str, str]
    text: str

    def __init__(self, send: Callable[[], Any], retries: int, cluster: Cluster | None) -> None:
        self._send = send
        self._retries = retries
        self._cluster = cluster
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
            # Without an answer the job may still run, so it is not sent again; `run_job` cancels it.
            with contextlib.suppress(grpc.RpcError):
                return str(self._result.state), error
            return PipelineState.UNKNOWN, error

    def cancel(self) -> None:
        """Cancels the job on Flink; Beam's own `cancel` only removes it from the job server."""
        if self._cluster:  # the mini cluster ends with its job server
            flink_child.cancel(*self._cluster)

    def metrics(self) -> Any:
        """Returns the current metrics of the job."""
        return copy.copy(self._result).metrics()  # a result caches its first metrics


def _message(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        details = getattr(error, "details", None)  # the complete text is a page
        text = str(details() if callable(details) else error)
        return f"the connection to the job server of Flink broke: {' '.join(text.split())}"
    return _STATE.sub("", str(error))
