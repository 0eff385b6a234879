"""Runs a command that ends with its parent process, even when the parent is killed.

A separate program without imports from feedline: `python -I flink_child.py PARENT URL JOB DIRECTORY COMMAND...`, which
the process with the id PARENT starts as the leader of a process group. When PARENT has ended, this program ends the
group (the job server and its workers), cancels the job on the cluster, which would continue to write, and removes the
directory of the logs.
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
    """Jobs to cancel and files to remove after a process was killed; an empty field has no effect.

    Attributes:
      url: URL of the REST endpoint of a cluster.
      job: name of the jobs on the cluster.
      directory: directory to remove.
    """

    url: str = ""
    job: str = ""
    directory: str = ""


def main(parent: int, leftovers: Leftovers, command: list[str]) -> int:
    """Runs the command, and ends it when the parent process has ended.

    Args:
      parent: id of the parent process.
      leftovers: jobs and files to remove when the parent has ended.
      command: program and arguments.

    Returns:
      exit code of the command, or 128 plus the number of the signal that ended it.
    """
    # Only the command reacts to SIGTERM: it would inherit SIG_IGN, but does not inherit a handler.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with subprocess.Popen(command) as process:  # noqa: S603 - command of the caller
        while process.poll() is None and os.getppid() == parent:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
        if os.getppid() != parent:
            _end_command(process)
            _remove_leftovers(leftovers)
            os.killpg(0, signal.SIGKILL)  # remaining processes of the command, and this process
    code = process.returncode
    return code if code >= 0 else 128 - code


NO_ANSWER = (OSError, ValueError, KeyError, TypeError, http.client.HTTPException)  # errors of `jobs` and `cancel`


def jobs(url: str, name: str) -> list[dict[str, Any]]:
    """Returns the running and ended jobs with a name on a cluster, as entries of Flink's `/jobs/overview`.

    Args:
      url: URL of the REST endpoint of the cluster.
      name: name of the jobs.

    Raises:
      NO_ANSWER: one of these exceptions: the cluster does not answer, or the response is not that of Flink.
    """
    with urllib.request.urlopen(f"{url.rstrip('/')}/jobs/overview", timeout=_TIMEOUT_S) as reply:  # noqa: S310 - the user's cluster
        return [entry for entry in json.load(reply)["jobs"] if entry["name"] == name]


def cancel(url: str, name: str) -> None:
    """Cancels the running jobs with a name on a cluster; has the arguments and exceptions of `jobs`."""
    for entry in jobs(url, name):
        if entry["end-time"] < 0:  # the job runs
            address = f"{url.rstrip('/')}/jobs/{entry['jid']}?mode=cancel"
            request = urllib.request.Request(address, method="PATCH")  # noqa: S310
            urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()  # noqa: S310


def _end_command(process: subprocess.Popen[bytes]) -> None:
    """Ends the command. Its jobs are cancelled afterwards, because a running job server could start another job."""
    os.killpg(0, signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _remove_leftovers(leftovers: Leftovers) -> None:
    for _ in range(_TRIES if leftovers.url else 0):
        with contextlib.suppress(*NO_ANSWER):
            cancel(leftovers.url, leftovers.job)
            break
        time.sleep(_POLL_S)
    if leftovers.directory:
        shutil.rmtree(leftovers.directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Leftovers(*sys.argv[2:5]), sys.argv[5:]))
