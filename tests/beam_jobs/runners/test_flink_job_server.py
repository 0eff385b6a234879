"""The process of a job server: how it begins, and that it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from beam_jobs.errors import FeedlineError
from beam_jobs.runners import flink_job_server
from tests.beam_jobs.web_server import Asked, body, status
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


def test_a_server_ends_with_a_process_that_was_killed_and_what_it_left_is_cleared_away(server, tmp_path):
    # A cluster that knows three jobs, and does not answer the first time it is asked.
    jobs = [("mine", "feedline-1", -1), ("over", "feedline-1", 17), ("another", "feedline-2", -1)]
    said = {"jobs": [dict(zip(("jid", "name", "end-time"), job, strict=True)) for job in jobs]}
    server.pages["/jobs/overview"] = Asked(status(500), body(json.dumps(said).encode()))
    server.pages |= dict.fromkeys((f"/jobs/{job}?mode=cancel" for job, *_ in jobs), status(202))
    directory = tmp_path / "logs"
    directory.mkdir()
    command = [sys.executable, "-c", CLIENT, LISTEN, directory, server.url("/")]
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
    assert server.seen == {"/jobs/overview": 2, "PATCH /jobs/mine?mode=cancel": 1}
    assert not directory.exists()
