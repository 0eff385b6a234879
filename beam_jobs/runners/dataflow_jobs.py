"""Jobs on Dataflow: checked before they are sent, reported in one line, stopped when the waiting process ends.

Checked is the graph as the workers will get it: how large it is, and what is pickled into it. That works on the proto
alone, so that it can be looked at without a service.
"""

from __future__ import annotations

import base64
import bz2
import contextlib
import logging
import pickletools
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.portability.python_urns import PICKLED_DOFN_INFO
from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner
from apache_beam.transforms.environments import DockerEnvironment

from beam_jobs import stack
from beam_jobs.errors import FeedlineError, OptionError
from beam_jobs.runners.beam_job import MakePipeline, Unanswered
from beam_jobs.storage import is_remote
from beam_jobs.storage.object_stores import gcs

_PICKLED_ELEMENT = b"\xff\x80"  # as Beam's coder of any object marks it
MAX_BYTES = 10_000_000  # of the service, for the graph of a job


def check_graph(proto: Any) -> None:
    """Checks a job before it is sent.

    Args:
      proto: `beam_runner_api_pb2.Pipeline`.

    Raises:
      FeedlineError: Dataflow would refuse the job, or its workers could not load it.
    """
    count = proto.ByteSize()
    if count > MAX_BYTES:
        raise FeedlineError(
            f"the graph of the job has {count / 1e6:.1f} MB, Dataflow takes {MAX_BYTES / 1e6:.0f}; it lists every unit "
            "of work, so make fewer of them with a larger --shard-mb, or a larger `bucket_images`"
        )
    for name, payload in pickled_functions(proto).items():
        texts = set(pickled_words(payload))
        if "__main__" in texts:
            raise FeedlineError(f"{name} holds code of __main__, which no worker can import; move it into a module")
        if here := next((text for text in texts if text.endswith(".parquet") and not is_remote(text)), ""):
            raise FeedlineError(
                f"{here} lies on this machine, where no worker reads it; give an --out in a gs:// bucket"
            )


def pickled_functions(proto: Any) -> dict[str, bytes]:
    """Returns the name of every step with code in it -> that code, as Beam pickled it."""
    found = {}
    for transform in proto.components.transforms.values():
        if not transform.spec.urn.startswith("beam:transform:pardo:"):
            continue
        payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
        if payload.do_fn.urn == PICKLED_DOFN_INFO:
            found[transform.unique_name] = payload.do_fn.payload
    return found


def pickled_words(payload: bytes) -> Iterator[str]:
    """Yields every text in some pickled code and its elements, names of modules among them. Nothing is executed."""
    pending = [bz2.decompress(base64.b64decode(payload))]
    while pending:
        for _, argument, _ in pickletools.genops(pending.pop()):
            if isinstance(argument, str):
                yield argument
            elif isinstance(argument, bytes) and argument.startswith(_PICKLED_ELEMENT):
                pending.append(argument[1:])


# What to do about the answers that users meet; others say enough themselves.
_REMEDIES = {
    401: f"log in again with `{gcs.LOGIN}`",
    403: "enable the API with `gcloud services enable dataflow.googleapis.com`, and ask for the role Dataflow Admin",
    404: "look at project and region",
    409: "a job of that name runs already; wait for it, or set job_name",
    429: "the project is at its limit of jobs or requests; wait, or ask for a larger quota",
}


def check_credentials() -> None:
    """Checks that there are credentials of Google Cloud, without asking what they are good for.

    Raises:
      OptionError: there are none.
    """
    if reason := gcs.missing_login():
        raise OptionError(reason)


def pipelines(arguments: Sequence[str], names: Sequence[str]) -> MakePipeline:
    """Returns a function that makes the pipelines of an ingest, one after the other.

    Args:
      arguments: of Beam, for every job.
      names: the argument of each job that names it, in order.
    """
    # The store of the source is asked before there is a pipeline, and should be asked in the same name.
    FileSystems.set_options(PipelineOptions(list(arguments)))
    remaining = iter(names)

    def make() -> beam.Pipeline:
        return _Pipeline(options=PipelineOptions([*arguments, next(remaining)]))

    return make


class _Pipeline(beam.Pipeline):
    """A pipeline that is looked at before it is sent."""

    def run(self, test_runner_api: bool | str = "AUTO") -> Any:
        # Any image will do for looking; with the real one Beam would pack the code once more.
        look = DockerEnvironment.from_container_image("unused")
        check_graph(self.to_runner_api(default_environment=look))
        with _one_line(), _quiet():
            return _Running(super().run(test_runner_api), self.runner, self.options.view_as(GoogleCloudOptions))


class _Running:
    """A job of the service."""

    def __init__(self, result: Any, runner: DataflowRunner, options: GoogleCloudOptions) -> None:
        self._result = result
        self._runner = runner
        self._options = options

    def wait_until_finish(self) -> Any:
        """Waits for the end of the job, and returns how it ended.

        Raises:
          FeedlineError: it failed.
          Unanswered: the service did not say how it is, for as long as Beam's client goes on asking: ten minutes.
        """
        # Beam's own way of waiting loses the error of the thread that asks, and takes it for the end of the job.
        try:
            while not self._result.is_in_terminal_state():
                self._runner.poll_for_job_completion(self._runner, self._result, None)
        except Exception as error:
            raise Unanswered(f"Dataflow does not say how the job at {self._place()} is: {_words(error)}") from error
        with _one_line(self._place()):
            return self._result.wait_until_finish()

    def cancel(self) -> None:
        """Stops the job, unless it has ended: without this process it would go on and be paid for."""
        if not self._result.is_in_terminal_state():
            self._result.cancel()

    def metrics(self) -> Any:
        """Returns the metrics of the job, as Beam does."""
        return self._result.metrics()

    def _place(self) -> str:
        options = self._options
        return f"https://console.cloud.google.com/dataflow/jobs/{options.region}/{self._result.job_id()}"


@contextlib.contextmanager
def _one_line(place: str = "") -> Iterator[None]:
    """Turns what the service says into one line."""
    try:
        yield
    except FeedlineError:
        raise
    except Exception as error:
        if refusal := stack.refusal_of_dataflow(error):
            remedy = _REMEDIES.get(refusal[0], "")
            message = f"Dataflow refused: {_words(error)}"
            raise FeedlineError("; ".join(part for part in (message, remedy) if part)) from error
        if not place:
            raise
        advice = "what was finished is kept, run the same command again"
        raise FeedlineError(f"a job on Dataflow failed: {_words(error)}; its logs are at {place}; {advice}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Beam from logging a refusal in its own words, many lines of them, and remarks about the wheel."""
    logger = logging.getLogger("apache_beam.runners")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _words(error: Exception) -> str:
    """Returns one line about an error: what the service says, or the last line of anything else."""
    if refusal := stack.refusal_of_dataflow(error):
        status, reason = refusal
        return f"{' '.join(reason.split()) or 'no reason given'} ({status})"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip().rstrip(".")
