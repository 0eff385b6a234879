"""Cost estimate of an ingest: core seconds from measured rates, and time, vCPU hours and requests of Dataflow."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from beam_jobs.options import IngestOptions

# Images/s of a complete ingest on both cores of the machine that `benchmarks/results/latest.json` describes, by policy
# and facts: the sections `ingest` (500x375 pixels) and `large` (2000x1500 pixels) that `make bench` wrote there. Two
# busy cores correspond to cloud vCPUs, which are hardware threads: two of a core.
RATES_SMALL = {
    ("copy", "basic"): 1518.0,
    ("copy", "all"): 1348.0,
    ("resize", "basic"): 1004.0,
    ("resize", "all"): 852.0,
    ("raw", "all"): 621.0,
}
RATES_LARGE = {("resize", "basic"): 299.0, ("resize", "all"): 269.0}
# Images/s of decoding the same files at full size, which is the cost of `copy` per additional pixel.
DECODE_SMALL, DECODE_LARGE = 2216.0, 316.0
CORES = 2
SMALL_MEGAPIXELS, LARGE_MEGAPIXELS = 0.1875, 3.0

# Core seconds of the client for Google Storage to read one image of 400 kB; 0.9 ms for 56 kB. Measured over loopback
# with the emulator of the tests, so without the encryption and the latency of the real service.
REQUEST_SECONDS = 0.0013

# Wall time of the command for 24 photographs of 240x320 pixels, whose own time is negligible: the minimum of 5 runs in
# this process, and of 2 runs on the mini cluster with a parallelism of 2. Both on two cores of a virtual machine with
# other load, with files in the page cache. It consists of imports, on Flink the start of the job server, and for each
# of two jobs the start of the workers and their imports.
LOCAL_START_SECONDS = 12.0
FLINK_START_SECONDS = 39.0

# The plan is computed in the process of the command. `python -m benchmarks.plan` on two slow cores, a million images:
# 20 s and 1,035 MB with near duplicates, of which at most `plan_memory_mb` are tables.
PLAN_SECONDS_PER_IMAGE = 20e-6
PLAN_BYTES_PER_IMAGE = 1_035


@dataclass(frozen=True, kw_only=True)
class Work:
    """Estimated work of an ingest; images and their bytes are from the listing of the source.

    Attributes:
      images: number of images to ingest.
      read_bytes: size of their files; each is read twice, to examine and to write the image.
      written_bytes: size of the shards.
      buckets: number of units of examining.
      shards: split -> number of units of writing.
      core_seconds: computing time of both jobs, in seconds of one core.
      requests: number of requests for images to an object store; 0 for local files.
      remote: whether images are read from an object store or a web server.
    """

    images: int
    read_bytes: int
    written_bytes: int
    buckets: int
    shards: Mapping[str, int]
    core_seconds: float
    requests: int
    remote: bool


@dataclass(frozen=True, kw_only=True)
class ResourceEstimate:
    """Estimated resources of some work on an engine.

    Attributes:
      lines: name -> text, to print.
      values: name -> number for programs, in the unit in its name.
    """

    lines: Mapping[str, str]
    values: Mapping[str, Any]


def core_seconds(options: IngestOptions, megapixels: float) -> float:
    """Returns the core seconds of examining and writing one image, without reading it.

    It is linear in the megapixels, from measurements with JPEG files of two sizes; the accuracy is that of an estimate.

    Args:
      options: options of the ingest, with policy and facts.
      megapixels: size of the source image.
    """
    policy, facts = options.pixels.policy, options.facts
    # `raw` was measured only with all facts, which are a small part of its time.
    small = CORES / RATES_SMALL.get((policy, facts), RATES_SMALL[policy, "all"])
    if policy == "copy":
        slope = _slope(CORES / DECODE_SMALL, CORES / DECODE_LARGE)
    else:  # `raw` and `resize` decode at the smallest sufficient scale
        slope = _slope(CORES / RATES_SMALL["resize", "all"], CORES / RATES_LARGE["resize", "all"])
    minimum = CORES / RATES_SMALL["copy", "basic"] / 4  # for very small images
    return max(minimum, small + slope * (megapixels - SMALL_MEGAPIXELS))


def estimate_core_resources(work: Work, cores: int, start_seconds: float) -> ResourceEstimate:
    """Estimates the resources of machines without a price: the time on a number of cores.

    Args:
      work: work of the ingest.
      cores: number of cores.
      start_seconds: time before the first image and between the jobs.
    """
    seconds = start_seconds + work.core_seconds / cores
    network = ", plus the time of the network" if work.remote else ""
    start = f"of which {duration(start_seconds)} are starting"
    lines = {"time": f"{duration(seconds)}, {start}, on {about(cores)} cores like those of the benchmarks{network}"}
    values = {"cores": cores, "seconds": _rounded(seconds), "start_seconds": start_seconds}
    return ResourceEstimate(lines=lines, values=values)


def _slope(small_seconds: float, large_seconds: float) -> float:
    return (large_seconds - small_seconds) / (LARGE_MEGAPIXELS - SMALL_MEGAPIXELS)


def about(value: float, unit: str = "") -> str:
    """Returns a number with two significant digits and its unit."""
    rounded = float(f"{value:.2g}")
    text = f"{rounded:,.0f}" if abs(rounded) >= 10 else f"{rounded:g}"
    return f"{text} {unit}".strip()


def duration(seconds: float) -> str:
    """Returns a time in seconds, minutes or hours, with two significant digits."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 90:
        return about(seconds, "s")
    return about(seconds / 60, "min") if seconds < 5400 else about(seconds / 3600, "h")


def size(count: float) -> str:
    """Returns a number of bytes with two significant digits, in B to TB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 995:  # 995 and more round to 1000
            return about(count, unit)
        count /= 1000
    return about(count, "TB")


# Of the computing: 0.86 to 0.97 with `copy` and `resize` of 3,000 photographs on two cores; examining also re-encodes.
_EXAMINING_SHARE = 0.9
_BUSY_SHARE = 0.7  # of the paid time of a core
_STARTUP_MINUTES = 5  # from the request of a worker to its first image; less with a container image of Feedline
# Requests for the whole ingest, for a unit of examining and for a shard, besides those for images; copying counts as
# writing, and deleting is free. `tests/engines/test_dataflow_worker.py` counts them over an emulator.
_READS = 28, 7, 12
_WRITES = 44, 4, 5
_WRITES_PER_SECOND = 1 / 5 + 1 / 10  # the lease of the lock, and the progress
_LISTS_PER_SECOND = 1 / 2  # of the work that workers have finished, by `beam_job.Tally`, which reads each file once
_LISTED_PER_REQUEST = 1000


@dataclass(frozen=True, kw_only=True)
class DataflowPool:
    """The workers of a job.

    Attributes:
      region: region of the workers.
      machine_type: machine type of a worker.
      cores: number of virtual cores of a worker.
      min_workers: number of workers that the user wants at the start; 0 for none.
      max_workers: largest number of workers.
    """

    region: str
    machine_type: str
    cores: int
    min_workers: int
    max_workers: int

    def workers(self, units: int) -> int:
        """Returns the number of workers for a number of units of work of about the same size.

        Every core processes the same number of units, as far as possible: more workers would not end earlier, as half
        of them would wait for the last units. `benchmarks.stragglers` simulates it.
        """
        most = min(self.max_workers, math.ceil(units / self.cores))
        rounds = math.ceil(units / (most * self.cores)) if most else 1
        return max(self.min_workers, math.ceil(units / (rounds * self.cores)))


def estimate_dataflow_resources(work: Work, pool: DataflowPool, vcpu_hour_price: float) -> ResourceEstimate:
    """Estimates the resources of an ingest on Dataflow.

    The estimate assumes that the service keeps the workers that each of the two jobs begins with.

    Args:
      work: work of the ingest.
      pool: workers of the jobs.
      vcpu_hour_price: price of a vCPU hour, in any currency; 0 for an estimate without a cost.
    """
    reading = work.requests * REQUEST_SECONDS  # half of it in each job
    examining = _EXAMINING_SHARE * (work.core_seconds - reading) + reading / 2
    workers = [pool.workers(units) for units in (work.buckets, sum(work.shards.values()))]
    times = [
        core_seconds / _BUSY_SHARE / (count * pool.cores) + _STARTUP_MINUTES * 60
        for core_seconds, count in zip((examining, work.core_seconds - examining), workers, strict=True)
    ]
    seconds, starting = sum(times), len(times) * _STARTUP_MINUTES * 60
    worker_hours = sum(map(operator.mul, workers, times)) / 3600
    vcpu_hours = worker_hours * pool.cores
    cost = vcpu_hours * vcpu_hour_price
    reads, writes = store_requests(work, seconds, on_workers=True)
    lines = {
        "workers": f"{workers[0]} to examine and {workers[1]} to write, at most {pool.max_workers}: "
        f"{pool.machine_type} in {pool.region}",
        "time": f"{duration(seconds)}, of which {duration(starting)} are starting",
        "paid": f"{about(worker_hours, 'worker hours')} = {about(vcpu_hours, 'vCPU hours')}",
        "requests": f"{about(reads)} to read, {about(writes)} to write, copy and list",
        "cost": f"{about(cost)} at {vcpu_hour_price:g} a vCPU hour, without requests and storage" if cost else "",
        "assumed": f"cores busy {_BUSY_SHARE:.0%} of the time, {_STARTUP_MINUTES} min to start a worker",
    }
    values = {
        "workers": max(workers),
        "max_workers": pool.max_workers,
        "seconds": _rounded(seconds),
        "worker_hours": _rounded(worker_hours),
        "vcpu_hours": _rounded(vcpu_hours),
        "read_requests": reads,
        "write_requests": writes,
        **({"cost": _rounded(cost)} if cost else {}),
    }
    return ResourceEstimate(lines=lines, values=values)


def store_requests(work: Work, seconds: float, on_workers: bool) -> tuple[int, int]:
    """Returns the number of requests to a store that read, and of those that write, copy or list.

    Args:
      work: work of the ingest, with output and images in object stores.
      seconds: duration of the ingest.
      on_workers: whether other processes do the work, so that the command asks the store how far they are.
    """
    units, shards = work.buckets, sum(work.shards.values())
    reads, writes = (sum(map(operator.mul, (1, units, shards), each)) for each in (_READS, _WRITES))
    listed = work.images / _LISTED_PER_REQUEST if work.requests else 0
    if on_workers:
        reads += units + shards
        files = max(_WRITES[1] * units, _WRITES[2] * shards)  # in the listed directory of a job
        listed += seconds * _LISTS_PER_SECOND * math.ceil(files / _LISTED_PER_REQUEST)
    return work.requests + reads, math.ceil(writes + listed + seconds * _WRITES_PER_SECOND)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
