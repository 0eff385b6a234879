"""What an ingest takes on Dataflow, by the measured seconds of an image: time, vCPU hours and requests."""

from __future__ import annotations

import math
from dataclasses import dataclass

from beam_jobs.runners.cost_estimate import Bill, Work, about, duration

_JOBS = 2  # each starts workers of its own
_BUSY_SHARE = 0.7  # of the time in which a paid core works
_STARTUP_MINUTES = 5  # from asking for a worker to its first image; an image with Feedline in it takes less
_WRITES_PER_UNIT = 4  # the file, its facts or sidecar, and their renames
_LISTED_PER_REQUEST = 1000


@dataclass(frozen=True, kw_only=True)
class Pool:
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


def bill(work: Work, pool: Pool, vcpu_hour_price: float) -> Bill:
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
    starting = _JOBS * _STARTUP_MINUTES * 60
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
