"""Beam's Flink job server: a JVM of this machine that takes pipelines, and runs or sends them on."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import IO

from beam_jobs.common import child_python
from beam_jobs.errors import FeedlineError
from beam_jobs.runners import flink_child
from beam_jobs.runners.flink_child import Left
from beam_jobs.runners.flink_logs import SERVER_LOG

_START_S = 120.0
_STOP_S = 20.0
_LOOK_S = 0.2
_NOTHING = Left()
# Flink reflects into these; Java 17 refuses without. Those that Flink's own scripts pass, as far as it needs them here.
_PACKAGES = ("lang", "lang.reflect", "io", "net", "nio", "text", "time", "util", "util.concurrent")
OPENED = (
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _PACKAGES),
    "--add-opens=java.base/java.util.concurrent.atomic=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent.locks=ALL-UNNAMED",
)
# The mini cluster has no business outside this machine.
_BOUND = ("jobmanager.bind-host", "taskmanager.bind-host", "rest.bind-address")
_NOISE = re.compile(r"\s*(at [\w.$/<>]+\(|\.\.\. \d+ more|Usage: | {2,}|--)|\s*$")


def command(java: str, jar: str, master: str, memory: str) -> list[str]:
    """Returns the command that starts the server, but for what `running` adds: where it listens and keeps its files.

    Args:
      java: path of `java`.
      jar: path of the job server's jar.
      master: `[local]` or the address of the cluster.
      memory: largest heap, such as `1g`.
    """
    dated = "-Dorg.slf4j.simpleLogger.showDateTime=true"
    return [java, f"-Xmx{memory}", dated, *OPENED, "-jar", jar, "--flink-master", master]


@contextlib.contextmanager
def running(command: Sequence[str], log_dir: str, left: Left = _NOTHING) -> Iterator[str]:
    """Runs a job server while the block lasts; it and all that it started end with the block, or with this process.

    Args:
      command: as `command` returns it.
      log_dir: directory for its log and the files it keeps while it runs.
      left: what is to be cleared away when this process is killed.

    Returns:
      `host:port` that takes jobs.

    Raises:
      FeedlineError: it ended, or took no job within two minutes.
    """
    port = _free_port()
    log = os.path.join(log_dir, SERVER_LOG)
    places = ["--job-port", str(port), "--artifact-port", "0", "--expansion-port", "-1"]
    files = ["--artifacts-dir", os.path.join(log_dir, "artifacts"), "--flink-conf-dir", _settings(log_dir)]
    with open(log, "ab") as stream:
        server = _started([*command, *places, *files], left, stream)
        try:
            _await(server, port, log)
            yield f"localhost:{port}"
        finally:
            _stop(server)


def _started(command: Sequence[str], left: Left, log: IO[bytes]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C is for this process, which cancels the job before the server has to go.
    ending_with_this = [sys.executable, "-I", flink_child.__file__, str(os.getpid()), *left, *command]
    return subprocess.Popen(  # noqa: S603 - the Java and the jar of the user
        ending_with_this,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=child_python.environment(),  # of its workers
    )


def _settings(directory: str) -> str:
    """Writes the settings of the mini cluster, and returns their folder."""
    place = os.path.join(directory, "conf")
    os.makedirs(place, exist_ok=True)
    for name in ("flink-conf.yaml", "config.yaml"):  # before Flink 2, and from 2 on
        with open(os.path.join(place, name), "w", encoding="utf-8") as stream:
            stream.writelines(f"{key}: localhost\n" for key in _BOUND)
    return place


def _await(server: subprocess.Popen[bytes], port: int, log: str) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise FeedlineError(f"the job server of Flink ended with code {server.returncode}: {last_words(log)}")
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=_LOOK_S):
            return
        time.sleep(_LOOK_S)
    raise FeedlineError(f"the job server of Flink took no job for {_START_S:.0f} s: {last_words(log)}")


def last_words(log: str) -> str:
    """Returns the last line of a Java log that says something: no frame of a stack trace, no line of help."""
    with open(log, encoding="utf-8", errors="replace") as stream:
        lines = [line.strip() for line in stream if not _NOISE.match(line)]
    return lines[-1][:300] if lines else "it wrote nothing"


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Ends the server and what it started, the workers among them."""
    try:
        _signal(server, signal.SIGTERM)
    finally:  # Ctrl-C may come while it is waited for
        _signal(server, signal.SIGKILL)


def _signal(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(_STOP_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port
