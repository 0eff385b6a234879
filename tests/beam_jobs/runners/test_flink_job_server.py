"""The process of a job server: how it begins, and that it ends."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from beam_jobs.errors import FeedlineError
from beam_jobs.runners import flink_job_server
from tests.engines.flink_parts import program
from tests.engines.flink_processes import members, wait_until


def test_a_server_that_cannot_start_says_why_in_one_line(tmp_path):
    trace = "\\tat org.A.main(A.java:1)\\n\\t... 2 more\\n"
    script = program(tmp_path / "java", f"echo 'Error: Unable to access jarfile x.jar'; printf '{trace}'; exit 1")
    said = "the job server of Flink ended with code 1: Error: Unable to access jarfile x.jar$"
    with pytest.raises(FeedlineError, match=said), flink_job_server.running_server([str(script)], str(tmp_path)):
        pass


LISTEN = """
import os, socket, subprocess, sys, time
worker = subprocess.Popen(["sleep", "300"])
port = int(sys.argv[sys.argv.index("--job-port") + 1])
with socket.create_server(("localhost", port)):
    print("group", os.getpgid(0), flush=True)
    time.sleep(300)
"""
CLIENT = """
import sys, time
from beam_jobs.runners import flink_job_server
from beam_jobs.runners.flink_child import Leftovers
command, directory, url = sys.argv[1:]
left = Leftovers(url, "feedline-1", directory)
with flink_job_server.running_server([sys.executable, "-c", command], directory, left):
    print("running", flush=True)
    time.sleep(300)
"""


def group_of(folder: Path) -> int:
    return int((folder / flink_job_server.SERVER_LOG).read_text().split()[1])


def test_a_server_and_what_it_started_end_with_the_block(tmp_path):
    with flink_job_server.running_server([sys.executable, "-c", LISTEN], str(tmp_path)):
        wait_until(lambda: (tmp_path / flink_job_server.SERVER_LOG).stat().st_size, 10)
        group = group_of(tmp_path)
        assert len(members(group)) == 3
    wait_until(lambda: not members(group), 10)


class _Cluster(http.server.BaseHTTPRequestHandler):
    """A cluster that knows three jobs, and does not answer the first time it is asked."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.asked.append(self.path)
        jobs = [("mine", "feedline-1", -1), ("over", "feedline-1", 17), ("another", "feedline-2", -1)]
        said = {"jobs": [dict(zip(("jid", "name", "end-time"), job, strict=True)) for job in jobs]}
        self._answer(500 if len(self.server.asked) == 1 else 200, json.dumps(said).encode())

    def do_PATCH(self):
        self.server.asked.append(self.path)
        self._answer(202, b"{}")

    def _answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def rest():
    """A server that behaves as the REST endpoint of a cluster does, and notes what it is asked."""
    with http.server.ThreadingHTTPServer(("localhost", 0), _Cluster) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def test_a_server_ends_with_a_process_that_was_killed_and_what_it_left_is_cleared_away(rest, tmp_path):
    directory = tmp_path / "logs"
    directory.mkdir()
    url = f"http://localhost:{rest.server_address[1]}/"
    command = [sys.executable, "-c", CLIENT, LISTEN, directory, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        try:
            assert client.stdout.readline() == "running\n"
            wait_until(lambda: (directory / flink_job_server.SERVER_LOG).stat().st_size, 10)
            group = group_of(directory)
        finally:
            client.kill()
    try:
        wait_until(lambda: not members(group), 60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    assert rest.asked == ["/jobs/overview", "/jobs/overview", "/jobs/mine?mode=cancel"]
    assert not directory.exists()
