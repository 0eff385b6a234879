"""What an ingest takes: its work, the seconds of a core that each kind of image took, and the bill of Dataflow.

Of Dataflow it is time, vCPU hours and requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from beam_jobs.options import IngestOptions

# Images/s of a whole ingest on both cores of the machine that `benchmarks/results/latest.json` describes, by policy and
# facts: the sections `ingest` (500x375 pixels) and `large` (2000x1500 pixels) of that file, as `make bench` left them.
# Two busy cores are the right measure of a cloud vCPU, which is one of the two hardware threads of a core.
RATES_SMALL = {
    ("copy", "basic"): 1518.0,
    ("copy", "all"): 1348.0,
    ("resize", "basic"): 1004.0,
    ("resize", "all"): 852.0,
    ("raw", "all"): 621.0,
}
RATES_LARGE = {("resize", "basic"): 299.0, ("resize", "all"): 269.0}
# A bare decode of the same files: what `copy` adds for every further pixel, for it decodes at full size.
DECODE_SMALL, DECODE_LARGE = 2216.0, 316.0
CORES = 2
SMALL_MEGAPIXELS, LARGE_MEGAPIXELS = 0.1875, 3.0

# Seconds of a core that the client for Google Storage takes to read one image of 400 kB; 0.9 ms for 56 kB. Measured
# over loopback from the emulator of the tests, so without the encryption and the distance of the real service.
REQUEST_SECONDS = 0.0013

# Wall time from the command to its end for 24 photographs of 240x320 pixels, which take no time of their own: the
# smallest of 5 runs in this process, and of 2 on the mini cluster with a parallelism of 2. Both on two cores of a
# virtual machine that had other work, with files in the page cache. It is imports, then on Flink the job server, and
# for each of two jobs the workers and their imports.
LOCAL_START_SECONDS = 12.0
FLINK_START_SECONDS = 39.0

# The plan is made where the command runs, not on the workers: section `plan` of the same file, a million images.
PLAN_SECONDS_PER_IMAGE = 4.2e-6
PLAN_BYTES_PER_IMAGE = 900


@dataclass(frozen=True, kw_only=True)
class Work:
    """What an ingest has to do. Estimated, but for what the listing of the source tells.

    Attributes:
      images: to ingest.
      read_bytes: of their files, read once to examine them and once more to write them.
      written_bytes: of the shards.
      buckets: units of examining.
      shards: split -> units of writing.
      core_seconds: of computing, both jobs together.
      requests: for images, to an object store; 0 for local files.
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

    @property
    def units(self) -> int:
        """The most units that can be worked on at a time in both jobs."""
        return max(1, min(self.buckets, sum(self.shards.values())))


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What some work takes on an engine.

    Attributes:
      lines: name -> text, to print.
      values: the same for machines: numbers in the unit that their name says.
    """

    lines: Mapping[str, str]
    values: Mapping[str, Any]


def core_seconds(options: IngestOptions, megapixels: float) -> float:
    """Returns the seconds of a core that examining and writing one image takes, its reading not counted.

    Measured with JPEG files at two sizes and drawn out in a straight line between and beyond them, which is near enough
    for a plan and no more.

    Args:
      options: policy and facts.
      megapixels: of the image as it is read.
    """
    policy, facts = options.pixels.policy, options.facts
    # `raw` was measured with every fact alone; those are little of what it does.
    small = CORES / RATES_SMALL.get((policy, facts), RATES_SMALL[policy, "all"])
    if policy == "copy":
        slope = _slope(CORES / DECODE_SMALL, CORES / DECODE_LARGE)
    else:  # both decode at the smallest scale that will do
        slope = _slope(CORES / RATES_SMALL["resize", "all"], CORES / RATES_LARGE["resize", "all"])
    least = CORES / RATES_SMALL["copy", "basic"] / 4  # no image is free, however small
    return max(least, small + slope * (megapixels - SMALL_MEGAPIXELS))


def on_cores(work: Work, cores: int, start_seconds: float) -> Bill:
    """Returns the bill of machines of your own: time on so many cores.

    Args:
      work: to do.
      cores: that do it.
      start_seconds: before the first image, and between the jobs.
    """
    seconds = start_seconds + work.core_seconds / cores
    waiting = ", and what the network takes" if work.remote else ""
    started = f"of which {duration(start_seconds)} are starting"
    lines = {
        "time": f"{duration(seconds)}, {started}, on {about(cores)} cores like those of the benchmarks{waiting}",
    }
    return Bill(
        lines=lines, values={"cores": cores, "seconds": float(f"{seconds:.3g}"), "start_seconds": start_seconds}
    )


def _slope(small_seconds: float, large_seconds: float) -> float:
    return (large_seconds - small_seconds) / (LARGE_MEGAPIXELS - SMALL_MEGAPIXELS)


def about(value: float, unit: str = "") -> str:
    """Returns a number with two significant digits, which is more than an estimate is good for."""
    rounded = float(f"{value:.2g}")
    text = f"{rounded:,.0f}" if abs(rounded) >= 10 else f"{rounded:g}"
    return f"{text} {unit}".strip()


def duration(seconds: float) -> str:
    """Returns a time in seconds, minutes or hours, two significant digits of it."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 90:
        return about(seconds, "s")
    return about(seconds / 60, "min") if seconds < 5400 else about(seconds / 3600, "h")


def size(count: float) -> str:
    """Returns bytes in the unit that fits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 995:  # two digits of more are a thousand
            return about(count, unit)
        count /= 1000
    return about(count, "TB")


_DATAFLOW_JOBS = 2  # each starts workers of its own
_BUSY_SHARE = 0.7  # of the time in which a paid core works
_STARTUP_MINUTES = 5  # from asking for a worker to its first image; an image with Feedline in it takes less
_WRITES_PER_UNIT = 4  # the file, its facts or sidecar, and their renames
_LISTED_PER_REQUEST = 1000


@dataclass(frozen=True, kw_only=True)
class DataflowPool:
    """The workers of a job.

    Attributes:
      region: where they run.
      machine_type: name of what each is.
      cores: virtual cores of each.
      least: workers to begin with; 0 for the choice of the service.
      most: workers at most.
    """

    region: str
    machine_type: str
    cores: int
    least: int
    most: int

    def workers(self, units: int) -> int:
        """Returns how many of them some units of work keep busy, a unit a core."""
        return max(self.least, min(self.most, math.ceil(units / self.cores)))


def dataflow_bill(work: Work, pool: DataflowPool, vcpu_hour_price: float) -> Bill:
    """Returns what some work takes.

    The workers are taken to be as many as there is work for from the beginning; autoscaling gets there in minutes and
    pays for fewer meanwhile.

    Args:
      work: what there is to do.
      pool: what it is done on.
      vcpu_hour_price: of a vCPU hour, in any currency; 0 for an estimate without money.
    """
    workers = pool.workers(work.units)
    cores = workers * pool.cores
    starting = _DATAFLOW_JOBS * _STARTUP_MINUTES * 60
    seconds = work.core_seconds / _BUSY_SHARE / cores + starting
    worker_hours, vcpu_hours = workers * seconds / 3600, cores * seconds / 3600
    cost = vcpu_hours * vcpu_hour_price
    writes = _writes(work)
    lines = {
        "workers": f"{workers} x {pool.machine_type} in {pool.region}, at most {pool.most}",
        "time": f"{duration(seconds)}, of which {duration(starting)} are starting",
        "paid": f"{about(worker_hours, 'worker hours')} = {about(vcpu_hours, 'vCPU hours')}",
        "requests": f"{about(work.requests)} to read, {about(writes)} to write and list",
        "cost": f"{about(cost)} at {vcpu_hour_price:g} a vCPU hour, without requests and storage" if cost else "",
        "assumed": f"cores busy {_BUSY_SHARE:.0%} of the time, {_STARTUP_MINUTES} min to start a worker",
    }
    values = {
        "workers": workers,
        "max_workers": pool.most,
        "seconds": _rounded(seconds),
        "worker_hours": _rounded(worker_hours),
        "vcpu_hours": _rounded(vcpu_hours),
        "write_requests": writes,
        **({"cost": _rounded(cost)} if cost else {}),
    }
    return Bill(lines=lines, values=values)


def _writes(work: Work) -> int:
    listed = math.ceil(work.images / _LISTED_PER_REQUEST) if work.requests else 0
    return (work.buckets + sum(work.shards.values())) * _WRITES_PER_UNIT + listed


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
