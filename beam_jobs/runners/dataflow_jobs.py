"""Jobs on Dataflow: checked before they are sent, with errors of one line, cancelled when the command ends.

The check covers the size of the graph and the code and paths that are pickled into it. It needs only the proto of the
graph, not the service.
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

_PICKLED_ELEMENT = b"\xff\x80"  # prefix of Beam's coder for any object
MAX_BYTES = 10_000_000  # limit of the service for the graph of a job


def check_graph(proto: Any) -> None:
    """Checks the graph of a job before it is sent.

    Args:
      proto: `beam_runner_api_pb2.Pipeline`.

    Raises:
      FeedlineError: Dataflow would refuse the job, or its workers could not run it.
    """
    count = proto.ByteSize()
    if count > MAX_BYTES:
        raise FeedlineError(
            f"the graph of the job has {count / 1e6:.1f} MB, Dataflow takes {MAX_BYTES / 1e6:.0f}; it holds the "
            "options and class names, so give fewer of them"
        )
    for name, payload in pickled_functions(proto).items():
        texts = set(pickled_words(payload))
        if "__main__" in texts:
            raise FeedlineError(f"{name} holds code of __main__, which no worker can import; move it into a module")
        if path := next((text for text in texts if text.endswith(UNITS_SUFFIX) and not is_remote(text)), ""):
            raise FeedlineError(f"{path} is on this machine, where no worker reads it; give an --out in a gs:// bucket")


def pickled_functions(proto: Any) -> dict[str, bytes]:
    """Returns step -> pickled code, for the steps that have code."""
    functions = {}
    for transform in proto.components.transforms.values():
        if not transform.spec.urn.startswith("beam:transform:pardo:"):
            continue
        payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
        if payload.do_fn.urn == PICKLED_DOFN_INFO:
            functions[transform.unique_name] = payload.do_fn.payload
    return functions


def pickled_words(payload: bytes) -> Iterator[str]:
    """Yields every text in pickled code and its elements, including names of modules. Nothing is executed."""
    pending = [bz2.decompress(base64.b64decode(payload))]
    while pending:
        for _, argument, _ in pickletools.genops(pending.pop()):
            if isinstance(argument, str):
                yield argument
            elif isinstance(argument, bytes) and argument.startswith(_PICKLED_ELEMENT):
                pending.append(argument[1:])


# HTTP status -> remedy; the messages of other answers are clear.
_REMEDIES = {
    401: f"log in again with `{gcs.LOGIN}`",
    403: "enable the API with `gcloud services enable dataflow.googleapis.com`, and ask for the role Dataflow Admin",
    404: "look at project and region",
    409: "a job of that name runs already; wait for it, or set job_name",
    429: "the project is at its limit of jobs or requests; wait, or ask for a larger quota",
}


class Pipelines:
    """Creates the pipelines of an ingest, one per call; see `beam_job.ServicePipelines`.

    Args:
      arguments: arguments of Beam for every job.
      name: the jobs are called NAME-examine, NAME-write and NAME-verify.
      pool: the workers; it says with how many a job begins, unless the arguments name a number.
    """

    engine = "dataflow"

    def __init__(self, arguments: Sequence[str], name: str, pool: DataflowPool) -> None:
        # The store of the source is used before there is a pipeline, and should get the same options.
        FileSystems.set_options(PipelineOptions(list(arguments)))
        self._arguments = arguments
        self._name = name
        self._pool = pool
        self.processes = pool.max_workers * pool.cores

    def __call__(self) -> beam.Pipeline:
        """Returns a new pipeline."""
        pipeline = _Pipeline(options=PipelineOptions(list(self._arguments)))
        pipeline.name, pipeline.workers = self._name, self._pool.workers
        return pipeline

    def attach(self, address: Mapping[str, Any]) -> _Job | None:
        """Returns a job that an earlier command left running; None if it has ended or is unknown.

        Raises:
          FeedlineError: the service refused, or gave no answer.
        """
        options = PipelineOptions(list(self._arguments))
        cloud = options.view_as(GoogleCloudOptions)
        cloud.project, cloud.region = str(address["project"]), str(address["region"])
        runner = DataflowRunner()
        try:
            runner.dataflow_client = apiclient.DataflowApplicationClient(options)
            result = DataflowPipelineResult(runner.dataflow_client.get_job(str(address["id"])), runner, options)
        except Exception as error:
            refusal = stack.dataflow_refusal(error)
            if refusal and refusal[0] == HTTPStatus.NOT_FOUND:
                return None
            raise FeedlineError(f"Dataflow gives no answer about the job {address['id']}: {_message(error)}") from error
        return None if result.is_in_terminal_state() else _Job(result, runner, cloud)


_JOB_NAMES = {"examining": "examine", "writing": "write", "verifying": "verify"}


class _Pipeline(StagePipeline):
    """A pipeline whose graph is checked before it is sent."""

    name: str
    workers: Callable[[int], int]

    def run(self, test_runner_api: bool | str = "AUTO") -> Any:
        self.configure()
        # The check needs no real container image; with it, Beam would pack the code once more.
        environment = DockerEnvironment.from_container_image("unused")
        check_graph(self.to_runner_api(default_environment=environment))
        with _explain_errors(), _without_logs():
            return _Job(super().run(test_runner_api), self.runner, self.options.view_as(GoogleCloudOptions))

    def configure(self) -> None:
        """Names the job, and sets its workers at the start: the service would begin with one for a short list."""
        suffix = f"-{_JOB_NAMES[self.stage]}" if self.stage else ""  # without: the job that runs the command itself
        self.options.view_as(GoogleCloudOptions).job_name = f"{self.name}{suffix}"
        options = self.options.view_as(WorkerOptions)
        if self.units and not options.num_workers:
            options.num_workers = self.workers(self.units)


class _Job:
    """A job of the service."""

    def __init__(self, result: Any, runner: DataflowRunner, options: GoogleCloudOptions) -> None:
        self._result = result
        self._runner = runner
        self._options = options

    @property
    def address(self) -> dict[str, str]:
        """What `Pipelines.attach` finds the job by."""
        options = self._options
        place = {"project": str(options.project), "region": str(options.region)}
        return {"engine": Pipelines.engine, **place, "id": str(self._result.job_id())}

    @property
    def text(self) -> str:
        """The job in a message."""
        return f"the job on Dataflow at {self._url()}"

    def wait_until_finish(self) -> Any:
        """Waits for the end of the job, and returns its state.

        Raises:
          FeedlineError: the job failed.
          NoAnswer: the service gave no answer for ten minutes, the limit of Beam's client.
        """
        # Beam's own `wait_until_finish` loses the error of its polling thread, and treats it as the end of the job.
        try:
            while not self._result.is_in_terminal_state():
                self._runner.poll_for_job_completion(self._runner, self._result, None)
        except Exception as error:
            raise NoAnswer(f"Dataflow gives no answer about the job at {self._url()}: {_message(error)}") from error
        with _explain_errors(self._url()):
            return self._result.wait_until_finish()

    def cancel(self) -> None:
        """Cancels the job, unless it has ended: it would continue and be paid for."""
        if not self._result.is_in_terminal_state():
            self._result.cancel()

    def metrics(self) -> Any:
        """Returns the metrics of the job as an object of Beam."""
        return self._result.metrics()

    def _url(self) -> str:
        options = self._options
        return f"https://console.cloud.google.com/dataflow/jobs/{options.region}/{self._result.job_id()}"


@contextlib.contextmanager
def _explain_errors(url: str = "") -> Iterator[None]:
    """Raises errors of the service, and with a URL of a job all errors, as `FeedlineError` with one line."""
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
    """Suppresses the logs of Beam about a job that Dataflow refuses, and about building the wheel of the package."""
    logger = logging.getLogger("apache_beam.runners")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


# The line of an exception in a traceback. Below it, the service writes which of its files the message passed through.
_EXCEPTION = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:: .+|Error)$", re.MULTILINE)


def _message(error: Exception) -> str:
    """Returns the message of the service; of a traceback of a worker its last exception, else the last line."""
    if refusal := stack.dataflow_refusal(error):
        status, reason = refusal
        return f"{' '.join(reason.split()) or 'no reason given'} ({status})"
    exceptions = _EXCEPTION.findall(str(error))
    line = last_line(Exception(exceptions[-1]) if exceptions else error)
    return "no reason given" if line == "None" else line.rstrip(".,")
