"""Runs Beam on Apache Flink: on a mini cluster in one JVM of this machine, or on an existing cluster.

The version and the number of slots of a cluster are checked before a job is sent to it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass as plain_dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic.dataclasses import dataclass

from beam_jobs.common import settings
from beam_jobs.common.settings import STRICT, Count, OneOf
from beam_jobs.common.system import cores
from beam_jobs.errors import OptionError
from beam_jobs.options import IngestOptions
from beam_jobs.runners import cost_estimate
from beam_jobs.runners.cost_estimate import ResourceEstimate, Work

if TYPE_CHECKING:
    from beam_jobs.runners.beam_job import MakePipeline


_TIMEOUT_S = 15.0


@plain_dataclass(frozen=True, kw_only=True)
class ClusterOverview:
    """Version and size of a Flink cluster.

    Attributes:
      version: version of Flink, such as `1.19.3`.
      slots: number of slots of all task managers, free or not.
      task_managers: number of task managers.
    """

    version: str
    slots: int
    task_managers: int

    @property
    def minor(self) -> str:
        """The minor version, such as `1.19`; has the format of `Options.flink_version`."""
        return ".".join(self.version.split(".")[:2])

    @property
    def slots_per_task_manager(self) -> int:
        """The largest number of slots of a task manager, assuming that the numbers differ by at most one."""
        return -(-self.slots // max(1, self.task_managers))

    def has_slots(self, parallelism: int) -> bool:
        """Returns whether the cluster has at least `parallelism` slots, and at least one."""
        return self.slots >= max(1, parallelism)


def fitting_cluster(master: str, version: str, parallelism: int) -> ClusterOverview:
    """Returns version and size of a cluster after checking that the jobs can run on it.

    Args:
      master: see `cluster_overview`.
      version: required minor version of Flink, such as `1.19`.
      parallelism: required number of slots, one for each unit of work that is processed in parallel; 0 for any number.

    Raises:
      OptionError: the cluster does not answer, has another version, or has fewer slots than required.
    """
    try:
        overview = cluster_overview(master)
    except ConnectionError as error:
        raise OptionError(
            f"flink_master is {master}, which does not answer as the REST endpoint of a Flink cluster "
            f"({error}); start the cluster, correct the address, or omit it for a mini cluster on this machine"
        ) from error
    if overview.minor != version:
        raise OptionError(
            f"the cluster at {master} runs Flink {overview.version}, flink_version is {version}; "
            f"set --runner-option flink_version={overview.minor}, if Beam supports that version"
        )
    if not overview.has_slots(parallelism):
        raise OptionError(
            f"the cluster at {master} has {overview.slots} slots, parallelism is {parallelism}; "
            "start more task managers, or lower --runner-option parallelism"
        )
    return overview


def cluster_overview(master: str, timeout_s: float = _TIMEOUT_S) -> ClusterOverview:
    """Returns version and size of a cluster, which are requested from it.

    Args:
      master: `host:port` of its REST endpoint, optionally with `http://` or `https://`.
      timeout_s: maximum time without an answer, in seconds.

    Raises:
      ConnectionError: the endpoint does not answer like a Flink cluster; the message is the reason as one line.
    """
    try:
        url = f"{cluster_url(master).rstrip('/')}/overview"
        with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310 - http or https: `cluster_url`
            overview = json.load(response)
        return ClusterOverview(
            version=str(overview["flink-version"]),
            slots=int(overview["slots-total"]),
            task_managers=int(overview.get("taskmanagers", 0)),
        )
    except (OSError, ValueError, TypeError, KeyError, http.client.HTTPException) as error:
        raise ConnectionError(_connection_problem(error)) from error


def cluster_url(master: str) -> str:
    """Returns the URL of a cluster's REST endpoint."""
    return master if master.startswith(("http://", "https://")) else f"http://{master}"


def _connection_problem(error: Exception) -> str:
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return "the answer is not HTTP"  # the message of the exception contains the received bytes
    return " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__


LOCAL = "[local]"
VERSIONS = ("1.17", "1.18", "1.19", "1.20", "2.0")  # versions for which Beam publishes a job server
WORKER = "feedline-worker"  # command whose code is `beam_jobs.runners.flink_worker`

_SIZE = re.compile(r"[1-9]\d*[mg]")
_ADDRESS = re.compile(r"(https?://)?[\w.-]+(:\d{1,5})?(/[\w./-]*)?")
_HOST_PORT = re.compile(r"[\w.-]+:\d{1,5}")


def worker_path() -> str:
    """Returns the path of the worker program in this environment, or on `PATH`; by default in this environment."""
    directory = os.path.join(sys.prefix, "bin")
    return shutil.which(WORKER, path=directory) or shutil.which(WORKER) or os.path.join(directory, WORKER)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options(settings.Options):
    """Settings of a run on Flink.

    Attributes:
      flink_master: `[local]` for a mini cluster in one JVM of this machine, or `host:port` of the REST endpoint of a
        cluster, optionally with `http://` or `https://`.
      flink_version: minor version of the cluster, for which the job server is downloaded.
      parallelism: batches of images, or shards, processed at a time; 0 uses every slot, or every core of this machine.
      job_server_jar: path or URL of Beam's Flink job server; empty downloads that for this Beam and `flink_version`.
      worker_command: program that starts a worker, by its path on every task manager; empty uses the path of
        `feedline-worker` in this environment, or else on `PATH`.
      worker_pool: `host:port` of a worker pool, an address that the task managers can reach; instead of
        `worker_command`, for task managers in containers without Feedline.
      workers: worker processes per task manager, each with one decoder process; 0 starts up to one per slot.
      retries: number of times that a failed job is submitted again; its finished work is not repeated.
      java_memory: maximum heap of the JVM on this machine, which runs the job server and any mini cluster.
      log_dir: directory for the logs; empty uses a temporary directory, which remains only if a job failed.

    Raises:
      OptionError: a value is out of range; the message gives the value and the allowed values.
    """

    name: ClassVar[str] = "flink"
    flink_master: str = LOCAL
    flink_version: Annotated[str, OneOf(VERSIONS)] = "1.19"
    parallelism: Count = 0
    job_server_jar: str = ""
    worker_command: str = ""
    worker_pool: str = ""
    workers: Count = 0
    retries: Count = 3
    java_memory: str = "1g"
    log_dir: str = ""

    def __post_init__(self) -> None:
        if not self.is_local and not _ADDRESS.fullmatch(self.flink_master):
            raise OptionError(
                f"flink_master is {self.flink_master!r}; it must be {LOCAL}, or host:port of the REST endpoint"
            )
        if not _SIZE.fullmatch(self.java_memory):
            raise OptionError(f"java_memory is {self.java_memory!r}; it must be a size such as 512m or 2g")
        if self.worker_pool and not _HOST_PORT.fullmatch(self.worker_pool):
            raise OptionError(f"worker_pool is {self.worker_pool!r}; it must be host:port")
        if self.worker_pool and self.worker_command:
            raise OptionError("worker_pool and worker_command are both set; set only one of them")

    @property
    def is_local(self) -> bool:
        """Whether the cluster is a mini cluster in a JVM of this machine."""
        return self.flink_master == LOCAL

    def cluster(self) -> ClusterOverview:
        """Returns version and size of the cluster; requests them from an existing cluster.

        Raises:
          OptionError: the cluster does not answer, has another version, or has fewer slots than requested.
        """
        if self.is_local:
            return ClusterOverview(version=self.flink_version, slots=self.parallelism or cores(), task_managers=1)
        return fitting_cluster(self.flink_master, self.flink_version, self.parallelism)

    @contextlib.contextmanager
    def open(self) -> Iterator[MakePipeline]:
        """See `Engine.open`."""
        from beam_jobs.runners import flink_job_server, flink_jobs
        from beam_jobs.runners.flink_child import Leftovers

        worker = self._find_worker()
        cluster = self.cluster()
        java = flink_job_server.find_java()
        jar = flink_job_server.find_jar(self.flink_version, self.job_server_jar)
        command = flink_job_server.server_command(java, jar, self.flink_master, self.java_memory)
        job_name = f"feedline-{uuid.uuid4().hex[:12]}"
        url = "" if self.is_local else cluster_url(self.flink_master)
        with flink_job_server.log_files(self.log_dir) as log_dir:
            leftovers = Leftovers(url, job_name, "" if self.log_dir else log_dir)
            with flink_job_server.running_server(command, log_dir, leftovers) as endpoint:
                arguments = [*self.beam_arguments(worker, cluster), f"--job_endpoint={endpoint}"]
                workers = cluster.task_managers * (self.workers or cluster.slots_per_task_manager)
                processes = min(workers, self.parallelism or cluster.slots)
                yield flink_jobs.Pipelines(arguments, processes, self.retries, job_name, url)

    def check(self, ingest: IngestOptions) -> None:
        """Checks the requirements of `open`, without starting or downloading a program.

        Args:
          ingest: unused; Flink runs every ingest.

        Raises:
          OptionError: the worker, the cluster, Java or the job server is missing or unsuitable.
        """
        from beam_jobs.runners import flink_job_server

        self._find_worker()
        self.cluster()
        flink_job_server.find_java()
        flink_job_server.check_jar(self.flink_version, self.job_server_jar)

    def estimate_resources(self, work: Work) -> ResourceEstimate:
        """Returns the estimated time of an ingest on the slots of the cluster.

        Raises:
          OptionError: as for `cluster`.
        """
        slots = self.parallelism or self.cluster().slots
        return cost_estimate.estimate_core_resources(work, slots, cost_estimate.FLINK_START_SECONDS)

    def _find_worker(self) -> str:
        if self.worker_pool:
            return ""  # the pool starts the workers
        command = self.worker_command or worker_path()
        if self.is_local and not os.access(command, os.X_OK):
            raise OptionError(
                f"the worker {command} does not exist or is not executable; install feedline again, or set "
                "--runner-option worker_command=PATH"
            )
        return command

    def beam_arguments(self, worker: str, cluster: ClusterOverview) -> list[str]:
        """Returns the arguments of Beam's Flink runner, except the address of its job server.

        Args:
          worker: path of the program that starts a worker; unused with a worker pool.
          cluster: cluster on which the jobs run.
        """
        environment = (
            ("--environment_type=EXTERNAL", f"--environment_config={self.worker_pool}")
            if self.worker_pool
            else ("--environment_type=PROCESS", f"--environment_config={json.dumps({'command': worker})}")
        )
        return [
            "--runner=FlinkRunner",
            f"--flink_master={self.flink_master}",
            f"--parallelism={self.parallelism or cluster.slots}",
            f"--sdk_worker_parallelism={self.workers or cluster.slots_per_task_manager}",
            *environment,
            "--sdk_location=container",  # workers have Beam and feedline installed, so no package is sent
            "--experiments=disable_logging_submission_environment",
        ]
