"""What an ingest costs on Dataflow, by the list of prices and the measured seconds of an image."""

from __future__ import annotations

import math
from dataclasses import dataclass

from beam_jobs.engines.costs import Bill, Work, about, duration, money, size
from beam_jobs.engines.dataflow_machine import Machine
from beam_jobs.engines.prices import Prices

DISK_GB = 25  # of a worker of a batch job, whose shuffle runs in the service
_JOBS = 2  # each starts workers of its own
_WRITES_PER_UNIT = 4  # the file, its facts or sidecar, and their renames
_LISTED_PER_REQUEST = 1000
_REFERENCE_BYTES = 500  # what a reference to a unit takes in the shuffle; images never pass it


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The workers of a job.

    Attributes:
      region: where they run.
      machine_type: name of what each is.
      machine: cores and memory of it.
      least: workers to begin with; 0 for the choice of the service.
      most: workers at most.
      disk_gb: disk of each.
    """

    region: str
    machine_type: str
    machine: Machine
    least: int
    most: int
    disk_gb: int

    def workers(self, units: int) -> int:
        """Returns how many of them some units of work keep busy, a unit a core."""
        return max(self.least, min(self.most, math.ceil(units / self.machine.cpus)))


def bill(work: Work, pool: Pool, prices: Prices) -> Bill:
    """Returns time and money of some work.

    The workers are taken to be as many as there is work for from the beginning; autoscaling gets there in minutes and
    pays for fewer meanwhile.

    Args:
      work: what there is to do.
      pool: what it is done on.
      prices: what that costs, and what is assumed.
    """
    workers = pool.workers(work.units)
    cores = workers * pool.machine.cpus
    working = work.core_seconds / prices.busy_share / cores
    starting = _JOBS * prices.startup_minutes * 60
    hours = workers * (working + starting) / 3600
    parts = {
        "workers": hours * _worker_hour(pool, prices),
        "shuffle": (work.buckets + sum(work.shards.values())) * _REFERENCE_BYTES / 1e9 * prices.shuffle_gb,
        "requests": _requests(work, prices),
    }
    total = sum(parts.values())
    monthly = work.written_bytes / 1e9 * prices.storage_gb_month
    lines = {
        "workers": f"{workers} x {pool.machine_type} in {pool.region}, at most {pool.most}",
        "time": f"{duration(working + starting)}, of which {duration(starting)} are starting",
        "paid": f"{about(hours, 'worker hours')} = {about(hours * pool.machine.cpus, 'vCPU hours')}",
        "cost": f"{money(total)}: " + ", ".join(f"{name} {money(part)}" for name, part in parts.items()),
        "storage": f"{money(monthly)} a month for {size(work.written_bytes)}",
        "prices": prices.source,
        "assumed": f"cores busy {prices.busy_share:.0%} of the time, {prices.startup_minutes:g} min to start a worker",
    }
    values = {
        "workers": workers,
        "max_workers": pool.most,
        "seconds": _rounded(working + starting),
        "worker_hours": _rounded(hours),
        "vcpu_hours": _rounded(hours * pool.machine.cpus),
        "cost_usd": {name: _rounded(part) for name, part in parts.items()} | {"total": _rounded(total)},
        "storage_usd_month": _rounded(monthly),
        "prices": dict(vars(prices)),
    }
    return Bill(lines=lines, values=values)


def _worker_hour(pool: Pool, prices: Prices) -> float:
    machine = pool.machine
    compute = machine.cpus * prices.vcpu_hour + machine.memory_gb * prices.memory_gb_hour
    return compute + pool.disk_gb * prices.disk_gb_hour


def _requests(work: Work, prices: Prices) -> float:
    writes = (work.buckets + sum(work.shards.values())) * _WRITES_PER_UNIT
    if work.requests:
        writes += math.ceil(work.images / _LISTED_PER_REQUEST)
    return work.requests / 1e4 * prices.read_10k + writes / 1e4 * prices.write_10k


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
