"""A standalone Flink cluster of real processes on this machine: a job manager and task managers, each a JVM."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from beam_jobs.runners import flink_job_server
from beam_jobs.runners.flink_job_server import JAVA_OPENS
from tests.engines import flink_parts

TASK_MANAGERS = 2
SLOTS = 2  # each, so that either can take the whole job when the other has died
_START_S = 90.0
_LOG = """\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
appender.out.name = out
appender.out.type = CONSOLE
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ABSOLUTE} %p %c{1} %m%n
"""
# Flink's own scripts work these out of one figure.
_MEMORY = {
    "taskmanager.cpu.cores": 1.0,
    "taskmanager.memory.framework.heap.size": "128m",
    "taskmanager.memory.framework.off-heap.size": "128m",
    "taskmanager.memory.task.heap.size": "256m",
    "taskmanager.memory.task.off-heap.size": "0m",
    "taskmanager.memory.managed.size": "64m",
    "taskmanager.memory.network.min": "64m",
    "taskmanager.memory.network.max": "64m",
    "taskmanager.memory.jvm-metaspace.size": "256m",
    "taskmanager.memory.jvm-overhead.min": "192m",
    "taskmanager.memory.jvm-overhead.max": "192m",
}


class Cluster:
    """Two task managers and what leads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rest_port, rpc_port = free_ports(2)
        self._settings = {
            "jobmanager.rpc.address": "localhost",
            "jobmanager.rpc.port": rpc_port,
            "jobmanager.bind-host": "localhost",
            "rest.address": "localhost",
            "rest.bind-address": "localhost",
            "rest.port": self.rest_port,
            "taskmanager.host": "localhost",
            "taskmanager.bind-host": "localhost",
            "taskmanager.numberOfTaskSlots": SLOTS,
            "cluster.evenly-spread-out-slots": "true",
            "heartbeat.interval": 1000,
            "heartbeat.timeout": 10000,
            "io.tmp.dirs": str(folder / "tmp"),
            **_MEMORY,
        }
        self.task_managers: list[subprocess.Popen] = []
        self._all: list[subprocess.Popen] = []

    def start(self) -> None:
        """Starts all processes and waits until every slot is there."""
        for name in ("conf", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{key}: {value}\n" for key, value in self._settings.items())
        (self.folder / "conf" / "config.yaml").write_text(lines)
        (self.folder / "conf" / "log4j.properties").write_text(_LOG)
        main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        self._java("job-manager", main, "--executionMode", "cluster")
        for _ in range(TASK_MANAGERS):
            self.start_task_manager()
        wait_until(self._is_up, _START_S, self.tail)

    def start_task_manager(self) -> None:
        """Starts one more task manager."""
        name = f"task-manager-{len(self.task_managers)}"
        self.task_managers.append(self._java(name, "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"))

    def stop(self) -> None:
        """Ends all processes, and those that they started."""
        for process in self._all:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def _is_up(self) -> bool:
        ended = [process.args for process in self._all if process.poll() is not None]
        assert not ended, self.tail()
        return self.overview().get("slots-total") == TASK_MANAGERS * SLOTS

    def overview(self) -> dict:
        """Returns what the cluster says of itself, nothing while it does not answer."""
        return self.get("overview") or {}

    def get(self, path: str) -> dict | None:
        """Returns what the REST endpoint answers, None while it does not."""
        try:
            with urllib.request.urlopen(f"http://localhost:{self.rest_port}/{path}", timeout=5) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None

    def jobs(self) -> dict[str, str]:
        """Returns the state of every job."""
        found = self.get("jobs/overview") or {"jobs": []}
        return {job["jid"]: job["state"] for job in found["jobs"]}

    def tail(self) -> str:
        """Returns the ends of all logs, for the message of a failed test."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in logs)

    def _java(self, name: str, main: str, *arguments: str) -> subprocess.Popen:
        log_settings = f"-Dlog4j.configurationFile={self.folder / 'conf' / 'log4j.properties'}"
        command = [flink_job_server.find_java(), "-Xmx512m", *JAVA_OPENS, log_settings]
        command += [
            "-cp",
            f"{flink_parts.distribution()}/*",
            main,
            "--configDir",
            str(self.folder / "conf"),
            *arguments,
        ]
        with open(self.folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._all.append(process)
        return process


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Runs a cluster while the block lasts."""
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def wait_until(holds: Callable[[], object], seconds: float, explain: Callable[[], str] = str) -> None:
    """Waits until something holds, and fails with an explanation when it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s\n{explain()}"
        time.sleep(0.02)


def members(leader: int) -> list[int]:
    """Returns the processes of a group that still run; those that have ended and nobody waits for do not count."""
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if _group_of(path) == leader]


def _group_of(stat: Path) -> int:
    with contextlib.suppress(OSError, IndexError):
        fields = stat.read_text().rpartition(")")[2].split()
        return int(fields[2]) if fields[0] != "Z" else 0
    return 0


def free_ports(count: int) -> list[int]:
    """Returns numbers of ports that nobody listens to."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]
