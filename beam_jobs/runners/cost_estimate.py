"""Estimates the cost of an ingest: core seconds from measured rates, and time, vCPU hours and requests on Dataflow."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from beam_jobs.options import IngestOptions

# Images/s of a complete ingest on both cores of the machine that `benchmarks/results/latest.json` describes, by policy
# and facts, from its sections `ingest` (500x375 pixels) and `large` (2000x1500 pixels), which `make bench` wrote. Two
# busy cores correspond to two vCPUs of a cloud, which are the hardware threads of one physical core.
RATES_SMALL = {
    ("copy", "basic"): 1518.0,
    ("copy", "all"): 1348.0,
    ("resize", "basic"): 1004.0,
    ("resize", "all"): 852.0,
    ("raw", "all"): 621.0,
}
RATES_LARGE = {("resize", "basic"): 299.0, ("resize", "all"): 269.0}
# Images/s of decoding the same files at full size. The policy `copy` needs this time for each additional pixel.
DECODE_SMALL, DECODE_LARGE = 2216.0, 316.0
CORES = 2
SMALL_MEGAPIXELS, LARGE_MEGAPIXELS = 0.1875, 3.0

# Core seconds of the client for Google Storage to read one image of 400 kB; 0.9 ms for 56 kB. Measured over loopback
# with the emulator of the tests, so without the encryption and the latency of the real service.
REQUEST_SECONDS = 0.0013

# Wall time of the command for 24 photographs of 240x320 pixels, whose processing time is negligible: the minimum of 5
# local runs, and of 2 runs on the mini cluster with a parallelism of 2. Measured on two cores of a virtual machine with
# other load, with the files in the page cache. On Flink, the time includes the start of the job server, and for each of
# the two jobs the start of the workers and their imports.
LOCAL_START_SECONDS = 12.0
FLINK_START_SECONDS = 39.0

# The plan is computed in the process of the command. `python -m benchmarks.plan` on two slow cores measured 20 s and
# 1,035 MB for a million images with near duplicates; tables use at most `plan_memory_mb` of this memory.
PLAN_SECONDS_PER_IMAGE = 20e-6
PLAN_BYTES_PER_IMAGE = 1_035


@dataclass(frozen=True, kw_only=True)
class Work:
    """Estimated work of an ingest. The number and size of the images are from the listing of the source.

    Attributes:
      images: number of images to ingest.
      read_bytes: size of the files of the images, bytes; each is read twice, to examine and to write the image.
      written_bytes: size of the shards, bytes.
      buckets: number of units of work of the examination.
      shards: split -> number of shards, which are the units of work of writing.
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
    """Estimated resources of an ingest on an engine.

    Attributes:
      lines: name -> text, to print.
      values: name -> number for programs; the name contains the unit of measurement.
    """

    lines: Mapping[str, str]
    values: Mapping[str, Any]


def core_seconds(options: IngestOptions, megapixels: float) -> float:
    """Returns the core seconds of examining and writing one image, without reading it.

    The estimate is linear in the megapixels, from measurements with JPEG files of two sizes.

    Args:
      options: options of the ingest, with policy and facts.
      megapixels: size of the source image.
    """
    policy, facts = options.pixels.policy, options.facts
    # `raw` was measured only with all facts, which take a small part of its time.
    small_image_seconds = CORES / RATES_SMALL.get((policy, facts), RATES_SMALL[policy, "all"])
    if policy == "copy":
        slope = _seconds_per_megapixel(CORES / DECODE_SMALL, CORES / DECODE_LARGE)
    else:  # `raw` and `resize` decode JPEG files at the smallest sufficient scale
        slope = _seconds_per_megapixel(CORES / RATES_SMALL["resize", "all"], CORES / RATES_LARGE["resize", "all"])
    minimum = CORES / RATES_SMALL["copy", "basic"] / 4  # for very small images
    return max(minimum, small_image_seconds + slope * (megapixels - SMALL_MEGAPIXELS))


def estimate_core_resources(work: Work, cores: int, start_seconds: float) -> ResourceEstimate:
    """Returns the estimated time on a number of cores, without a cost.

    Args:
      work: work of the ingest.
      cores: number of cores.
      start_seconds: time before the first image and between the jobs.
    """
    seconds = start_seconds + work.core_seconds / cores
    network = ", plus the time of reading over the network" if work.remote else ""
    times = f"{duration(seconds)}, including {duration(start_seconds)} to start"
    lines = {"time": f"{times}, on {about(cores)} cores like those of the benchmarks{network}"}
    values = {"cores": cores, "seconds": _rounded(seconds), "start_seconds": start_seconds}
    return ResourceEstimate(lines=lines, values=values)


def _seconds_per_megapixel(small_seconds: float, large_seconds: float) -> float:
    return (large_seconds - small_seconds) / (LARGE_MEGAPIXELS - SMALL_MEGAPIXELS)


def about(value: float, unit: str = "") -> str:
    """Returns a number with two significant digits and its unit of measurement, as text."""
    rounded = float(f"{value:.2g}")
    text = f"{rounded:,.0f}" if abs(rounded) >= 10 else f"{rounded:g}"
    return f"{text} {unit}".strip()


def duration(seconds: float) -> str:
    """Returns a duration as text in seconds, minutes or hours, with two significant digits."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 90:
        return about(seconds, "s")
    return about(seconds / 60, "min") if seconds < 5400 else about(seconds / 3600, "h")


def size(count: float) -> str:
    """Returns a number of bytes as text in B to TB, with two significant digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 995:  # 995 and more round to 1000
            return about(count, unit)
        count /= 1000
    return about(count, "TB")


# Share of the examination in the computing time; 0.86 to 0.97 with `copy` and `resize`, 3,000 photographs, two cores.
_EXAMINING_SHARE = 0.9
_BUSY_SHARE = 0.7  # share of the paid time of a core in which it computes
_STARTUP_MINUTES = 5  # from the request of a worker to its first image; less with a container image of Feedline
# Requests per ingest, per bucket of images, per shard, without those for images; copying is writing, and deleting is
# free. `tests/engines/test_dataflow_worker.py` counts them with an emulator.
_READS = 28, 7, 12
_WRITES = 44, 4, 5
_WRITES_PER_SECOND = 1 / 5 + 1 / 10  # renewals of the lock, and updates of the progress file
_LISTS_PER_SECOND = 1 / 2  # listings of finished work by `beam_job.Tally`
_LISTED_PER_REQUEST = 1000  # files in the response to a listing request


@dataclass(frozen=True, kw_only=True)
class DataflowPool:
    """The workers of a job on Dataflow.

    Attributes:
      region: region of the workers.
      machine_type: machine type of a worker.
      cores: number of virtual cores of a worker.
      min_workers: number of workers at the start, set by the user; 0 if not set.
      max_workers: largest number of workers.
    """

    region: str
    machine_type: str
    cores: int
    min_workers: int
    max_workers: int

    def workers(self, units: int) -> int:
        """Returns the number of workers to start for a number of units of work of about the same size.

        A round is the time in which each core processes one unit of work. The result is the smallest number of workers
        that needs no more rounds than `max_workers` would. `benchmarks.stragglers` simulates such jobs.
        """
        busy_workers = min(self.max_workers, math.ceil(units / self.cores))
        rounds = math.ceil(units / (busy_workers * self.cores)) if busy_workers else 1
        return max(self.min_workers, math.ceil(units / (rounds * self.cores)))


def estimate_dataflow_resources(work: Work, pool: DataflowPool, vcpu_hour_price: float) -> ResourceEstimate:
    """Returns the estimated resources of an ingest on Dataflow.

    The estimate assumes that each of the two jobs keeps its initial number of workers.

    Args:
      work: work of the ingest.
      pool: workers of the jobs.
      vcpu_hour_price: price of a vCPU hour, in any currency; 0 for an estimate without a cost.
    """
    reading_seconds = work.requests * REQUEST_SECONDS  # half of this time is in each job
    examining_seconds = _EXAMINING_SHARE * (work.core_seconds - reading_seconds) + reading_seconds / 2
    workers = [pool.workers(units) for units in (work.buckets, sum(work.shards.values()))]
    durations = [
        core_seconds / _BUSY_SHARE / (count * pool.cores) + _STARTUP_MINUTES * 60
        for core_seconds, count in zip((examining_seconds, work.core_seconds - examining_seconds), workers, strict=True)
    ]
    seconds, start_seconds = sum(durations), len(durations) * _STARTUP_MINUTES * 60
    worker_hours = sum(map(operator.mul, workers, durations)) / 3600
    vcpu_hours = worker_hours * pool.cores
    cost = vcpu_hours * vcpu_hour_price
    reads, writes = store_requests(work, seconds, on_workers=True)
    lines = {
        "workers": f"{workers[0]} to examine and {workers[1]} to write, at most {pool.max_workers}: "
        f"{pool.machine_type} in {pool.region}",
        "time": f"{duration(seconds)}, including {duration(start_seconds)} to start",
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
    """Returns the number of read requests to a store, and the number of requests that write, copy or list.

    Args:
      work: work of the ingest, with output and images in object stores.
      seconds: duration of the ingest.
      on_workers: whether workers process the images, so that the command lists and reads the files of finished work.
    """
    buckets, shards = work.buckets, sum(work.shards.values())
    reads, writes = (sum(map(operator.mul, (1, buckets, shards), counts)) for counts in (_READS, _WRITES))
    listings = work.images / _LISTED_PER_REQUEST if work.requests else 0
    if on_workers:
        reads += buckets + shards  # `beam_job.Tally` reads each file of finished work once
        files = max(_WRITES[1] * buckets, _WRITES[2] * shards)  # number of files in the listed directory of a job
        listings += seconds * _LISTS_PER_SECOND * math.ceil(files / _LISTED_PER_REQUEST)
    return work.requests + reads, math.ceil(writes + listings + seconds * _WRITES_PER_SECOND)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
