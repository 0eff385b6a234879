"""Checks for `feedline ingest --runner flink`: this machine and a cluster."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from beam_jobs.errors import OptionError
from beam_jobs.runners import flink, flink_job_server
from beam_jobs.runners.flink import Options, worker_path
from pipeline import doctor
from pipeline.doctor import NETWORK_TIMEOUT_S, Check

_ENGINE = "flink"
_REMEDY = "feedline ingest SOURCE --out DIR --runner flink --runner-option"


def checks(settings: Mapping[str, Any]) -> Iterator[Check]:
    """Checks this machine, then the cluster of `engine.flink_master`."""
    yield from doctor.package_checks()
    warning = doctor.other_runner(settings, _ENGINE)
    if warning:
        yield warning
    options = Options() if warning else _engine_options(settings)
    if isinstance(options, Check):
        yield options
        return
    yield java()
    yield from job_server(options)
    yield worker(options)
    yield cluster(options)


def java() -> Check:
    """Checks that Java is installed and new enough for the job server."""
    try:
        path = flink_job_server.find_java()
    except OptionError as error:
        remedy = doctor.install_system_command("default-jre-headless")
        return Check(name="java", ok=False, detail=str(error).partition(";")[0], remedy=remedy)
    _, out, err = doctor.run_program([path, "-version"], NETWORK_TIMEOUT_S)
    return Check(name="java", ok=True, detail=f"{path}, {(err + out).partition(chr(10))[0]}")


def job_server(options: Options) -> Iterator[Check]:
    """Checks the jar in the settings, if any; otherwise the first run downloads it."""
    jar = options.job_server_jar
    if jar:
        exists = os.path.isfile(os.path.expanduser(jar)) or "://" in jar
        detail = f"{jar}{'' if exists else ' is not a file'}"
        yield Check(name="job server", ok=exists, detail=detail, remedy=f"{_REMEDY} job_server_jar=PATH")


def worker(options: Options) -> Check:
    """Checks the program that starts workers, if it is on this machine."""
    version = platform.python_version()
    if options.worker_pool:
        return Check(name="worker", ok=True, detail=f"pool at {options.worker_pool}; it must have Python {version}")
    command = options.worker_command or worker_path()
    if not os.access(command, os.X_OK):
        remedy = doctor.install_command("--force-reinstall", "--no-deps", doctor.DISTRIBUTION)
        detail = f"{command} does not exist or is not executable"
        return Check(name="worker", ok=False, detail=detail, remedy=remedy, needed=options.is_local)
    python = _python_version(command)
    if python and python != version:
        detail = f"{command} has Python {python}, this program {version}; pickled code needs the same version"
        return Check(name="worker", ok=False, detail=detail, remedy=f"{_REMEDY} worker_command=PATH")
    remark = "" if options.is_local else "; task managers need the same program at this path"
    return Check(name="worker", ok=True, detail=f"{command}, Python {python or version}{remark}")


def cluster(options: Options) -> Check:
    """Checks the version and the slots of a cluster."""
    if options.is_local:
        return Check(name="cluster", ok=True, detail="a mini cluster in one JVM of this machine")
    try:
        overview = flink.cluster_overview(options.flink_master, NETWORK_TIMEOUT_S)
    except ConnectionError as error:
        return _connection_failure(flink.cluster_url(options.flink_master), error)
    detail = f"Flink {overview.version} with {overview.task_managers} task managers and {overview.slots} slots"
    if overview.minor != options.flink_version:
        detail = f"{detail}; the job server is for {options.flink_version}"
        return Check(name="cluster", ok=False, detail=detail, remedy=f"{_REMEDY} \"flink_version='{overview.minor}'\"")
    if not overview.has_slots(options.parallelism):
        detail = f"{detail}; parallelism is {options.parallelism}"
        return Check(name="cluster", ok=False, detail=detail, remedy="taskmanager.sh start")
    return Check(name="cluster", ok=True, detail=detail)


def _connection_failure(address: str, error: ConnectionError) -> Check:
    """Returns a failed check for an unknown host name, a closed port, or a server that is not Flink."""
    cause = getattr(error.__cause__, "reason", error.__cause__)
    if isinstance(cause, socket.gaierror):
        host = urlsplit(address).hostname
        detail = f"the name {host} does not resolve: {error}"
        remedy = f"{_REMEDY} flink_master=HOST:PORT, or echo 'ADDRESS {host}' | sudo tee -a /etc/hosts"
    elif isinstance(cause, ConnectionRefusedError):
        detail, remedy = f"nothing listens at {address}: {error}", "start-cluster.sh"
    else:
        detail = f"{address} does not answer as Flink: {error}"
        remedy = f"{_REMEDY} flink_master=HOST:PORT of the REST endpoint; rest.port of Flink is 8081 by default"
    return Check(name="cluster", ok=False, detail=detail, remedy=remedy)


def _engine_options(settings: Mapping[str, Any]) -> Options | Check:
    """Returns the options in the section `engine`, or a failed check of it."""
    engine = settings.get("engine") or {}
    if not isinstance(engine, Mapping):
        return Check(name="section engine", ok=False, detail=f"engine is {engine!r}", remedy=doctor.SHOW_CONFIG)
    values = {key: engine[key] for key in engine if key != "runner"}
    return doctor.section_options(Options, {"engine": values}, "engine")


def _python_version(command: str) -> str:
    """Returns the Python version of a console script; empty for other files."""
    interpreter = doctor.interpreter(command)
    if not interpreter:
        return ""
    command_line = [interpreter, "-I", "-c", "import platform; print(platform.python_version())"]
    code, out, _ = doctor.run_program(command_line, 10)
    return "" if code else out.strip()
