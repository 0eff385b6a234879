"""Jobs on Dataflow: checks each job before it is sent, cancels it, and reports errors as one line.

The check covers the size of the job graph and the code and paths that are pickled into it. It reads only the proto of
the graph and sends no request to the service.
"""

from __future__ import annotations

import base64
import bz2
import contextlib
import logging
import pickletools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, WorkerOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.portability.python_urns import PICKLED_DOFN_INFO
from apache_beam.runners.dataflow.dataflow_runner import DataflowPipelineResult, DataflowRunner
from apache_beam.runners.dataflow.internal import apiclient
from apache_beam.transforms.environments import DockerEnvironment

from beam_jobs import stack
from beam_jobs.errors import FeedlineError
from beam_jobs.runners.beam_job import NoAnswer, StagePipeline, last_line
from beam_jobs.runners.cost_estimate import DataflowPool
from beam_jobs.stages.resume import UNITS_SUFFIX
from beam_jobs.storage import is_remote
from beam_jobs.storage.object_stores import gcs

_PICKLED_ELEMENT = b"\xff\x80"  # prefix that Beam's coder writes before a pickled object
MAX_BYTES = 10_000_000  # limit of the service for the graph of a job


def check_graph(proto: Any) -> None:
    """Checks the graph of a job before it is sent.

    Args:
      proto: `beam_runner_api_pb2.Pipeline`.

    Raises:
      FeedlineError: Dataflow would reject the job, or its workers could not run it.
    """
    size = proto.ByteSize()
    if size > MAX_BYTES:
        raise FeedlineError(
            f"the graph of the job has {size / 1e6:.1f} MB, Dataflow allows {MAX_BYTES / 1e6:.0f}; it contains the "
            "options and class names: reduce them"
        )
    for name, payload in pickled_functions(proto).items():
        words = set(pickled_words(payload))
        if "__main__" in words:
            raise FeedlineError(f"{name} contains code of __main__, which no worker can import; move it into a module")
        if path := next((word for word in words if word.endswith(UNITS_SUFFIX) and not is_remote(word)), ""):
            raise FeedlineError(f"{path} is on this machine, where no worker can read it; set --out to a gs:// path")


def pickled_functions(proto: Any) -> dict[str, bytes]:
    """Returns name of the step -> pickled `DoFn`, for the steps that have a `DoFn`."""
    functions = {}
    for transform in proto.components.transforms.values():
        if not transform.spec.urn.startswith("beam:transform:pardo:"):
            continue
        payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
        if payload.do_fn.urn == PICKLED_DOFN_INFO:
            functions[transform.unique_name] = payload.do_fn.payload
    return functions


def pickled_words(payload: bytes) -> Iterator[str]:
    """Yields every string in pickled code and in the objects pickled in it, such as module names. Executes no code."""
    pickles = [bz2.decompress(base64.b64decode(payload))]
    while pickles:
        for _, argument, _ in pickletools.genops(pickles.pop()):
            if isinstance(argument, str):
                yield argument
            elif isinstance(argument, bytes) and argument.startswith(_PICKLED_ELEMENT):
                pickles.append(argument[1:])


# HTTP status -> remedy, for the errors whose message from the service has no remedy.
_REMEDIES = {
    401: f"log in again with `{gcs.LOGIN}`",
    403: "enable the API with `gcloud services enable dataflow.googleapis.com`, and ask for the role Dataflow Admin",
    404: "check project and region",
    409: "a job with this name already runs; wait until it ends, or set job_name",
    429: "the project has reached its limit of jobs or requests; wait, or request a larger quota",
}


class Pipelines:
    """Creates the pipelines of an ingest, one per call; see `beam_job.ServicePipelines`.

    Args:
      arguments: arguments of Beam for every job.
      name: the jobs are named NAME-examine, NAME-write and NAME-verify.
      pool: the workers, from which the initial number of workers is computed unless the arguments have `num_workers`.
    """

    engine = "dataflow"

    def __init__(self, arguments: Sequence[str], name: str, pool: DataflowPool) -> None:
        # Beam reads the source before a pipeline exists, and must use the same options for it.
        FileSystems.set_options(PipelineOptions(list(arguments)))
        self._arguments = arguments
        self._name = name
        self._pool = pool
        self.processes = pool.max_workers * pool.cores

    def __call__(self) -> beam.Pipeline:
        """Returns a new pipeline."""
        pipeline = _Pipeline(options=PipelineOptions(list(self._arguments)))
        pipeline.name, pipeline.count_workers = self._name, self._pool.workers
        return pipeline

    def attach(self, address: Mapping[str, Any]) -> _Job | None:
        """Returns a job that an earlier command started; None if the job has ended or is unknown.

        Raises:
          FeedlineError: the service rejected the request, or did not answer.
        """
        options = PipelineOptions(list(self._arguments))
        cloud_options = options.view_as(GoogleCloudOptions)
        cloud_options.project, cloud_options.region = str(address["project"]), str(address["region"])
        runner = DataflowRunner()
        try:
            runner.dataflow_client = apiclient.DataflowApplicationClient(options)
            result = DataflowPipelineResult(runner.dataflow_client.get_job(str(address["id"])), runner, options)
        except Exception as error:
            refusal = stack.dataflow_refusal(error)
            if refusal and refusal[0] == HTTPStatus.NOT_FOUND:
                return None
            raise FeedlineError(f"Dataflow does not answer for the job {address['id']}: {_message(error)}") from error
        return None if result.is_in_terminal_state() else _Job(result, runner, cloud_options)


_JOB_NAMES = {"examining": "examine", "writing": "write", "verifying": "verify"}


class _Pipeline(StagePipeline):
    """A pipeline whose graph is checked before it is sent."""

    name: str
    count_workers: Callable[[int], int]

    def run(self, test_runner_api: bool | str = "AUTO") -> Any:
        self.configure()
        # Any container image suffices for the check; without one, Beam would pack the code once more.
        environment = DockerEnvironment.from_container_image("unused")
        check_graph(self.to_runner_api(default_environment=environment))
        with _explain_errors(), _without_logs():
            return _Job(super().run(test_runner_api), self.runner, self.options.view_as(GoogleCloudOptions))

    def configure(self) -> None:
        """Sets the name of the job and, unless the user set it, the initial number of workers for the units of work."""
        suffix = f"-{_JOB_NAMES[self.stage]}" if self.stage else ""  # no stage: the job that runs the complete command
        self.options.view_as(GoogleCloudOptions).job_name = f"{self.name}{suffix}"
        options = self.options.view_as(WorkerOptions)
        if self.units and not options.num_workers:
            options.num_workers = self.count_workers(self.units)


class _Job:
    """A job on the service; see `beam_job.ServiceJob`."""

    def __init__(self, result: Any, runner: DataflowRunner, options: GoogleCloudOptions) -> None:
        self._result = result
        self._runner = runner
        self._options = options

    @property
    def address(self) -> dict[str, str]:
        """Project, region and id of the job, for `Pipelines.attach`."""
        options = self._options
        location = {"project": str(options.project), "region": str(options.region)}
        return {"engine": Pipelines.engine, **location, "id": str(self._result.job_id())}

    @property
    def text(self) -> str:
        """Description of the job in messages."""
        return f"the job on Dataflow at {self._url()}"

    def wait_until_finish(self) -> Any:
        """Waits for the end of the job, and returns its state.

        Raises:
          FeedlineError: the job failed.
          NoAnswer: the service did not answer for ten minutes, the limit of Beam's client.
        """
        # `wait_until_finish` of Beam ignores an error of its polling thread, and treats it as the end of the job.
        try:
            while not self._result.is_in_terminal_state():
                self._runner.poll_for_job_completion(self._runner, self._result, None)
        except Exception as error:
            raise NoAnswer(f"Dataflow does not answer for the job at {self._url()}: {_message(error)}") from error
        with _explain_errors(self._url()):
            return self._result.wait_until_finish()

    def cancel(self) -> None:
        """Cancels the job unless it has ended; otherwise the job would continue at a cost."""
        if not self._result.is_in_terminal_state():
            self._result.cancel()

    def metrics(self) -> Any:
        """Returns the metrics of the job as Beam's `MetricResults`."""
        return self._result.metrics()

    def _url(self) -> str:
        options = self._options
        return f"https://console.cloud.google.com/dataflow/jobs/{options.region}/{self._result.job_id()}"


@contextlib.contextmanager
def _explain_errors(url: str = "") -> Iterator[None]:
    """Converts errors of the service to `FeedlineError` with one line; with the URL of a job, converts all errors."""
    try:
        yield
    except FeedlineError:
        raise
    except Exception as error:
        if refusal := stack.dataflow_refusal(error):
            remedy = _REMEDIES.get(refusal[0], "")
            message = f"Dataflow refused: {_message(error)}"
            raise FeedlineError("; ".join(part for part in (message, remedy) if part)) from error
        if not url:
            raise
        advice = "run the same command again, which continues an ingest"
        raise FeedlineError(f"a job on Dataflow failed: {_message(error)}; its logs are at {url}; {advice}") from error


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Suppresses the logs of Beam about a rejected job and about building the wheel of the package."""
    logger = logging.getLogger("apache_beam.runners")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


# The line of an exception in a traceback. The service appends lines about its own source files.
_EXCEPTION = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:: .+|Error)$", re.MULTILINE)


def _message(error: Exception) -> str:
    """Returns the message of the service, or the last exception of a worker's traceback, or else the last line."""
    if refusal := stack.dataflow_refusal(error):
        status, reason = refusal
        return f"{' '.join(reason.split()) or 'no reason given'} ({status})"
    exceptions = _EXCEPTION.findall(str(error))
    line = last_line(Exception(exceptions[-1]) if exceptions else error)
    return "no reason given" if line == "None" else line.rstrip(".,")  # Beam formats a missing message as `None`
