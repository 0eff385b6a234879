"""A stand-in for the service of Dataflow on loopback: it takes jobs as the service does, and really runs them.

What it cannot stand in for: starting machines, containers, autoscaling, permissions, quotas.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

WORKER = Path(__file__).parent / "dataflow_worker.py"


class Job:
    """A job that was sent: its description, and the worker that runs it."""

    def __init__(self, description: dict, python: str, directory: Path) -> None:
        self.id = str(uuid.uuid4())
        self.description = description
        self.stopped = False
        self.watched = threading.Event()  # somebody waits for its end
        self._log = directory / f"{description['name']}.log"
        command = [
            python,
            "-I",
            "-W",
            "ignore",
            str(WORKER),
            "run",
            self.options["pipelineUrl"],
            json.dumps(self.options),
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=subprocess.STDOUT)

    @property
    def options(self) -> dict:
        """What the job says its workers should know."""
        return self.description["environment"]["sdkPipelineOptions"]["options"]

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def state(self) -> str:
        code = self._process.poll()
        if self.stopped:
            return "JOB_STATE_CANCELLED"
        return "JOB_STATE_RUNNING" if code is None else "JOB_STATE_FAILED" if code else "JOB_STATE_DONE"

    def freeze(self) -> None:
        """Has it make no progress until it is stopped."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process.poll() is None:
            self.stopped = True
            self._process.kill()
        self._process.wait(timeout=30)


class Service(ThreadingHTTPServer):
    """The service.

    Attributes:
      jobs: that were sent, in order.
      refusal: status and message to answer every new job with; None takes it.
      python: interpreter of the workers.
      freezes: whether new jobs never end by themselves.
    """

    daemon_threads = True

    def __init__(self, python: str, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.jobs: list[Job] = []
        self.refusal: tuple[int, str] | None = None
        self.python = python
        self.directory = directory
        self.freezes = False

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def log_message(self, *_):
        """Keeps quiet."""

    def do_POST(self):
        description = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.refusal:
            status, message = self.server.refusal
            answer(self, {"error": {"code": status, "message": message}}, status)
            return
        job = Job(description, self.server.python, self.server.directory)
        if self.server.freezes:
            job.freeze()
        self.server.jobs.append(job)
        answer(self, self._described(job) | {"currentState": "JOB_STATE_PENDING"})

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        job = self._job()
        job.stop()
        answer(self, self._described(job))

    def do_GET(self):
        job = self._job()
        job.watched.set()
        if self._path().endswith("/messages"):
            answer(self, {"jobMessages": messages(job)})
        elif self._path().endswith("/metrics"):
            answer(self, {"metrics": []})
        else:
            answer(self, self._described(job))

    def _path(self) -> str:
        return urlsplit(self.path).path

    def _job(self) -> Job:
        return next(job for job in self.server.jobs if f"/{job.id}" in self._path())

    def _described(self, job: Job) -> dict:
        same = {key: job.description[key] for key in ("name", "clientRequestId")}
        return {"id": job.id, "currentState": job.state, **same}


def messages(job: Job) -> list[dict]:
    """Returns what the service writes about a job that failed: the traceback of a worker, and the end of the job."""
    if job.state != "JOB_STATE_FAILED":
        return []
    cause = "Work item failed." if job.log else "SDK disconnect."
    traceback = f"{job.log}\npassed through:\n==>\n    dist_proc/dax/workflow/worker/fnapi_service_impl.cc:1287\n"
    end = (
        "Workflow failed. Causes: S01:Buckets/Read+Examine failed., The job failed because a work item has failed 4 "
        "times. Look in previous log entries for the cause of each one of the 4 failures. The work item was attempted "
        f"on these workers: \n\n      photos-harness-x1b2\n      Root cause: {cause},\n"
    )
    common = {"time": "2025-01-01T00:00:00Z", "messageImportance": "JOB_MESSAGE_ERROR"}
    texts = [traceback, end] if job.log else [end]
    return [{"id": str(number), "messageText": text, **common} for number, text in enumerate(texts)]


def answer(handler: BaseHTTPRequestHandler, content: dict, status: int = 200) -> None:
    """Answers a request with JSON."""
    body = json.dumps(content).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def serving(directory: Path, python: str = sys.executable) -> Iterator[Service]:
    """Serves on a free port; ends with every worker it started.

    Args:
      directory: of the logs.
      python: interpreter of the workers.
    """
    service = Service(python, directory)
    thread = threading.Thread(target=service.serve_forever, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        for job in service.jobs:
            job.stop()
        service.shutdown()
        service.server_close()
        thread.join(timeout=30)
