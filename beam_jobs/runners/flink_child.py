"""Runs a command that ends with the process that asked for it, even when that one was killed and could end nothing.

A program of its own, without anything of feedline: `python -I flink_child.py PARENT URL JOB DIRECTORY COMMAND...`,
started by the process PARENT as the leader of a process group. When PARENT is gone, all of that group ends: the job
server, and the workers that it started. Then the job that it sent to a cluster is cancelled, which would go on
writing, and the directory of its logs is removed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from typing import NamedTuple

_LOOK_S = 1.0
_STOP_S = 20.0
_TIMEOUT_S = 15.0
_TRIES = 5


class Left(NamedTuple):
    """What a killed process leaves behind; empty for nothing.

    Attributes:
      url: of the REST endpoint of a cluster.
      job: name of the jobs sent there.
      directory: that is not needed any more.
    """

    url: str = ""
    job: str = ""
    directory: str = ""


def main(parent: int, left: Left, command: list[str]) -> int:
    """Runs the command.

    Args:
      parent: number of the process that this one ends with.
      left: what is cleared away when that one was killed.
      command: program and arguments.

    Returns:
      its exit code; above 128 by the number of the signal that ended it.
    """
    # SIGTERM is for the command. A handler, as a signal that is ignored would be ignored by the command too.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with subprocess.Popen(command) as server:  # noqa: S603 - as the caller says
        while server.poll() is None and os.getppid() == parent:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_LOOK_S)
        if os.getppid() != parent:
            _end(server)
            _clear(left)
            os.killpg(0, signal.SIGKILL)  # what the command left behind, and this process
    code = server.returncode
    return code if code >= 0 else 128 - code


def cancel(url: str, job: str) -> None:
    """Ends the jobs of a name on a cluster; those that are over stay as they are.

    Args:
      url: of its REST endpoint.
      job: the name.

    Raises:
      OSError, ValueError, HTTPException: the cluster does not answer.
    """
    jobs = f"{url.rstrip('/')}/jobs"
    with urllib.request.urlopen(f"{jobs}/overview", timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the user's cluster
        found = json.load(answer)["jobs"]
    for one in found:
        if one["name"] == job and one["end-time"] < 0:
            request = urllib.request.Request(f"{jobs}/{one['jid']}?mode=cancel", method="PATCH")  # noqa: S310
            urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()  # noqa: S310


def _end(server: subprocess.Popen[bytes]) -> None:
    """Ends the command first: a job server that still runs could send a job after it was looked for."""
    os.killpg(0, signal.SIGTERM)
    try:
        server.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()


def _clear(left: Left) -> None:
    for _ in range(_TRIES if left.url else 0):
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            cancel(left.url, left.job)
            break
        time.sleep(_LOOK_S)
    if left.directory:
        shutil.rmtree(left.directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Left(*sys.argv[2:5]), sys.argv[5:]))
