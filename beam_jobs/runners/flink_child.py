"""Runs a command that ends with its parent process, even when the parent is killed.

A separate program that imports nothing of feedline: `python -I flink_child.py PARENT URL JOB DIRECTORY COMMAND...`,
started by the process PARENT as the leader of a process group. When PARENT has ended, this program ends the group (the
job server and the workers that it started), cancels the job on the cluster, which would continue to write, and removes
the directory of the logs.
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
from typing import Any, NamedTuple

_POLL_S = 1.0
_STOP_S = 20.0
_TIMEOUT_S = 15.0
_TRIES = 5


class Leftovers(NamedTuple):
    """Jobs and files of a killed process, which are cleared; empty for nothing.

    Attributes:
      url: URL of the REST endpoint of a cluster.
      job: name of the jobs on the cluster.
      directory: directory to remove.
    """

    url: str = ""
    job: str = ""
    directory: str = ""


def main(parent: int, leftovers: Leftovers, command: list[str]) -> int:
    """Runs the command.

    Args:
      parent: id of the parent process.
      leftovers: jobs and files to clear when the parent was killed.
      command: program and arguments.

    Returns:
      exit code of the command; 128 plus the number of a signal that ended it.
    """
    # SIGTERM is for the command. A handler instead of SIG_IGN, which the command would inherit.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with subprocess.Popen(command) as server:  # noqa: S603 - the command of the caller
        while server.poll() is None and os.getppid() == parent:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_POLL_S)
        if os.getppid() != parent:
            _end(server)
            _clear(leftovers)
            os.killpg(0, signal.SIGKILL)  # processes of the command, and this process
    code = server.returncode
    return code if code >= 0 else 128 - code


NO_ANSWER = (OSError, ValueError, KeyError, TypeError, http.client.HTTPException)  # errors of `jobs` and `cancel`


def jobs(url: str, name: str) -> list[dict[str, Any]]:
    """Returns the jobs of a name on a cluster, those that have ended included.

    Args:
      url: URL of its REST endpoint.
      name: name of the jobs.

    Raises:
      NO_ANSWER: the cluster does not answer as one.
    """
    with urllib.request.urlopen(f"{url.rstrip('/')}/jobs/overview", timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the user's cluster
        return [entry for entry in json.load(answer)["jobs"] if entry["name"] == name]


def cancel(url: str, name: str) -> None:
    """Cancels the running jobs of a name on a cluster; arguments and errors are those of `jobs`."""
    for entry in jobs(url, name):
        if entry["end-time"] < 0:
            address = f"{url.rstrip('/')}/jobs/{entry['jid']}?mode=cancel"
            request = urllib.request.Request(address, method="PATCH")  # noqa: S310
            urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()  # noqa: S310


def _end(server: subprocess.Popen[bytes]) -> None:
    """Ends the command, before its jobs are cancelled: a running job server could still send one."""
    os.killpg(0, signal.SIGTERM)
    try:
        server.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()


def _clear(leftovers: Leftovers) -> None:
    for _ in range(_TRIES if leftovers.url else 0):
        with contextlib.suppress(*NO_ANSWER):
            cancel(leftovers.url, leftovers.job)
            break
        time.sleep(_POLL_S)
    if leftovers.directory:
        shutil.rmtree(leftovers.directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Leftovers(*sys.argv[2:5]), sys.argv[5:]))
