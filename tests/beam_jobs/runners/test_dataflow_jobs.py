"""Waiting for a job on Dataflow whose service cannot be reached for a while: Beam's real client, and a server."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.runners.dataflow.dataflow_runner import (
    DataflowPipelineResult,
    DataflowRunner,
    DataflowRuntimeException,
)
from apache_beam.runners.dataflow.internal import apiclient
from apache_beam.runners.runner import PipelineRunner

from beam_jobs.common.system import Progress, no_watch
from beam_jobs.errors import FeedlineError
from beam_jobs.runners import beam_job, dataflow_jobs
from beam_jobs.runners.beam_job import run_job
from beam_jobs.runners.dataflow_jobs import _Job
from tests.engines.dataflow_service import answer


class Service(ThreadingHTTPServer):
    """Describes one job.

    Attributes:
      status: of HTTP, that requests are answered with; 0 breaks them off.
      end: state of the job.
      cancelled: whether somebody has cancelled it.
    """

    daemon_threads = True

    def __init__(self, status: int, end: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.end = end
        self.cancelled = False


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def log_message(self, *_):
        """Keeps quiet."""

    def do_GET(self):
        if self.server.status == 200:
            answer(self, {"id": "job", "currentState": self.server.end, "jobMessages": []})
        elif self.server.status:
            answer(self, {"error": {"message": "the backend\nis away"}}, self.server.status)

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.cancelled = True
        answer(self, {"id": "job", "currentState": "JOB_STATE_CANCELLED"})


class Sent(PipelineRunner):
    """A runner whose job was sent to the service already."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        url = f"http://localhost:{service.server_port}/"
        arguments = ["--project=p", "--region=us-central1", "--no_auth", f"--dataflow_endpoint={url}"]
        options = PipelineOptions([*arguments, "--temp_location=gs://bucket/tmp"])
        runner = DataflowRunner()
        runner.dataflow_client = apiclient.DataflowApplicationClient(options)
        answers = service.status, service.end
        service.status, service.end = 200, "JOB_STATE_RUNNING"
        result = DataflowPipelineResult(runner.dataflow_client.get_job("job"), runner, options)
        service.status, service.end = answers
        self._running = _Job(result, runner, options.view_as(GoogleCloudOptions))

    def run_pipeline(self, pipeline, options):
        return self._running


@pytest.fixture
def serving(monkeypatch) -> Iterator:
    """Serves a job; nobody waits between two requests."""
    made = []
    wait = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: wait(min(seconds, 0.01)))

    def serve(status: int, end: str = "JOB_STATE_DONE") -> Service:
        made.append(Service(status, end))
        threading.Thread(target=made[-1].serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return made[-1]

    yield serve
    for service in made:
        service.shutdown()
        service.server_close()


def follow(service: Service) -> None:
    stage = beam.ptransform_fn(lambda root: root | beam.Create([1]))
    run_job("examining", Progress(1), stage(), lambda: beam.Pipeline(runner=Sent(service)), no_watch)


class Lines(logging.Handler):
    """Takes what is said of jobs, and does something at the second line."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._act = act

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if len(self.lines) == 2:
            self._act()


@contextlib.contextmanager
def at_the_second_line(act: Callable[[], object]) -> Iterator[list[str]]:
    handler = Lines(act)
    logger = logging.getLogger(beam_job.__name__)
    logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("status", [503, 0])
def test_a_job_goes_on_while_its_service_gives_no_answer(serving, status):
    service = serving(status)
    with at_the_second_line(lambda: setattr(service, "status", 200)) as lines:
        follow(service)
    assert not service.cancelled
    assert len(lines) == 2
    assert all(line.startswith("Dataflow does not answer for the job at https://") for line in lines)
    assert all(line.endswith("the next request is in 60 s; Ctrl-C ends this command") for line in lines)
    assert not status or f": the backend is away ({status}); the job continues" in lines[0]
    assert not any("\n" in line for line in lines)


def test_a_job_that_failed_meanwhile_has_failed(serving):
    service = serving(503, "JOB_STATE_FAILED")
    failed = pytest.raises(FeedlineError, match="^a job on Dataflow failed: no reason given; its logs are at")
    with at_the_second_line(lambda: setattr(service, "status", 200)), failed:
        follow(service)
    assert not service.cancelled, "it has ended"


PASSED = "\npassed through:\n==>\n    dist_proc/dax/workflow/worker/fnapi_service_impl.cc:1287\n"
FAILED = "Workflow failed. Causes: S01 failed., A work item has failed 4 times. It was attempted on these workers: "


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f"KeyError: 1\n\nTraceback (...):\nOSError: full [while running 'Examine-42']{PASSED}", "OSError: full"),
        (f"Traceback (...):\n  File x\nMemoryError{PASSED}", "MemoryError"),
        (f"ValueError: two\nlines [while running 'Examine-ptransform-42']\n{PASSED}", "ValueError: two"),
        (f"beam_jobs.errors.SourceError: photos is gone{PASSED}", "photos is gone"),
        (f"{FAILED}\n\n  w1\n    Root cause: The worker lost contact,\n", "Root cause: The worker lost contact"),
    ],
)
def test_the_line_of_a_failed_worker_is_that_of_its_exception(text, cause):
    with pytest.raises(FeedlineError) as caught, dataflow_jobs._explain_errors("https://place"):
        raise DataflowRuntimeException(f"Dataflow pipeline failed. State: FAILED, Error:\n{text}", None)
    assert str(caught.value).startswith(f"a job on Dataflow failed: {cause}; its logs are at https://place; ")


def test_the_user_cancels_a_job_whose_service_gives_no_answer(serving):
    service = serving(503, "JOB_STATE_RUNNING")

    def ctrl_c() -> None:
        service.status = 200
        raise KeyboardInterrupt

    with at_the_second_line(ctrl_c), pytest.raises(KeyboardInterrupt):
        follow(service)
    assert service.cancelled
