"""The worker, started as a cluster starts it: by a pool of Beam, in a process of its own, with what is installed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import apache_beam as beam
import psutil
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.environments import ExternalEnvironment

from beam_jobs import ingest
from beam_jobs.options import IngestOptions, PixelOptions
from beam_jobs.runners.flink import WORKER
from beam_jobs.stages import resume
from benchmarks.resident import FamilyPeak, family_bytes
from tests.beam_jobs.runs import files_under
from tests.engines.flink_processes import free_ports, members, wait_until
from tests.make_images import jpeg

WORKER_PATH = Path(sys.executable).parent / WORKER


@contextlib.contextmanager
def pool() -> Iterator[tuple[subprocess.Popen, str]]:
    """Runs a worker pool while the block lasts; gives its process and where it listens."""
    (port,) = free_ports(1)
    command = [sys.executable, "-W", "ignore", "-m", "apache_beam.runners.worker.worker_pool_main"]
    command += [f"--service_port={port}", f"--container_executable={WORKER_PATH}"]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: answers(port), 60)
        yield process, f"localhost:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
        return True
    return False


def external(place: str, workers: int) -> beam.Pipeline:
    options = PipelineOptions(direct_num_workers=workers)
    return beam.Pipeline(runner=FnApiRunner(default_environment=ExternalEnvironment(place)), options=options)


def options_of(source: Path, out: Path) -> IngestOptions:
    return IngestOptions(source=str(source), out=str(out), splits={"train": 0.7, "eval": 0.3}, shards=2)


def test_a_worker_in_a_process_of_its_own_makes_the_bytes_of_the_in_process_runner(photos, tmp_path):
    ingest.run(options_of(photos, tmp_path / "here"))
    with pool() as (_, place):
        ingest.run(options_of(photos, tmp_path / "there"), lambda: external(place, workers=1))
    assert files_under(tmp_path / "there") == files_under(tmp_path / "here")


def make_photographs(folder: Path, count: int) -> None:
    for number in range(count):
        path = folder / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number, 300, 400))


def decoders(process: int) -> set[int]:
    """Returns the decoders below a process: forks of a fork server, which have its command line."""
    found = set()
    for child in psutil.Process(process).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "sandbox" in " ".join(child.cmdline()) and child.cmdline() == psutil.Process(child.ppid()).cmdline():
                found.add(child.pid)
    return found


@pytest.mark.cluster
def test_each_worker_process_decides_on_its_decoders_and_not_the_machine_that_submits(tmp_path, monkeypatch):
    make_photographs(tmp_path / "photos", 400)
    options = replace(options_of(tmp_path / "photos", tmp_path / "out"), bucket_images=20)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    most, done, before = 0, threading.Event(), family_bytes()

    def watch(workers: int) -> None:
        nonlocal most
        while not done.wait(0.02):
            most = max(most, len(decoders(workers)))

    with pool() as (process, place), FamilyPeak() as memory:
        watcher = threading.Thread(target=watch, args=(process.pid,))
        watcher.start()
        try:
            assert ingest.run(options, lambda: external(place, workers=4)).counts.written == 400
        finally:
            done.set()
            watcher.join()
    assert 1 <= most <= 4
    assert 4 * 0.3e9 < memory.peak - before < 4 * 2e9  # half of what docs/dataflow.md asks for a core


@pytest.mark.cluster
def test_units_that_run_twice_and_workers_that_stand_still_for_a_while_lose_nothing(tmp_path, monkeypatch):
    """As on a service that takes a worker for dead, gives its work to another one, and is wrong about it."""
    make_photographs(tmp_path / "photos", 120)
    (tmp_path / "photos" / "a" / "broken.jpg").write_bytes(b"no image")
    changed = {"bucket_images": 10, "pixels": PixelOptions(policy="resize")}  # which writes a spool file for each unit
    options = replace(options_of(tmp_path / "photos", tmp_path / "there"), **changed)
    ingest.run(replace(options, out=str(tmp_path / "here")))
    write_units, done, stopped = resume.write_units, threading.Event(), set()
    attempts = defaultdict(set)
    monkeypatch.setattr(
        resume, "write_units", lambda path, units: write_units(path, [unit for unit in units for _ in range(2)])
    )

    def look() -> int:
        """Notes which attempts at a unit have a spool file, and returns the number of finished units."""
        names: list[str] = []
        with contextlib.suppress(OSError):  # it is not there yet, or no more
            names = os.listdir(tmp_path / "there" / "_work" / "examined")
        for unit, attempt in re.findall(r"spool-(.+?)\.([0-9a-f]{32})", " ".join(names)):
            attempts[unit].add(attempt)
        return sum(name.startswith("done-") for name in names)

    def stand_still(pool_process: int) -> None:
        """Stops a worker in the middle of a unit until the other one, which has the same units, has finished one."""
        while not done.wait(0.002):
            for worker in psutil.Process(pool_process).children() * bool(before := look()):
                with contextlib.suppress(psutil.Error):
                    done.wait(0.03)
                    worker.suspend()
                    deadline = time.monotonic() + 1
                    while look() == before and time.monotonic() < deadline:
                        done.wait(0.002)
                    worker.resume()
                    stopped.add(worker.pid)

    with pool() as (process, place):
        watcher = threading.Thread(target=stand_still, args=(process.pid,))
        watcher.start()
        try:
            counts = ingest.run(options, lambda: external(place, workers=2)).counts
        finally:
            done.set()
            watcher.join()
    assert len(stopped) >= 4, "two workers of each job"
    assert max(map(len, attempts.values())) == 2, "both workers were in one unit at the same time"
    assert (counts.found, counts.written, sum(counts.rejects.values())) == (121, 120, 1)
    assert files_under(tmp_path / "there") == files_under(tmp_path / "here")


def threads(process: int) -> int:
    """Returns how many threads a process has besides its first."""
    return len(os.listdir(f"/proc/{process}/task")) - 1


def test_a_worker_ends_with_the_process_that_started_it():
    waiting_for_nobody = f"{WORKER_PATH} --id=1 --provision_endpoint=localhost:{free_ports(1)[0]}"
    starter = subprocess.Popen(["sh", "-c", f"{waiting_for_nobody} & wait"], start_new_session=True)
    try:
        wait_until(lambda: any(map(threads, set(members(starter.pid)) - {starter.pid})), 30)
        starter.kill()
        starter.wait(30)
        wait_until(lambda: not members(starter.pid), 20)  # it would have waited for a minute
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(starter.pid, signal.SIGKILL)


def test_a_worker_without_an_address_to_ask_ends_with_what_is_missing():
    done = subprocess.run([WORKER_PATH, "--id=1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "the following arguments are required: " in done.stderr
