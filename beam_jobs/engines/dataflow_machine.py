"""Machine types of Compute Engine: how many cores and how much memory a name stands for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from beam_jobs.errors import OptionError

_NAME = re.compile(r"(?P<family>[a-z]\d[a-z]?)-(?P<shape>standard|highmem|highcpu)-(?P<cpus>\d+)")
_CUSTOM = re.compile(r"(?:[a-z]\d[a-z]?-)?custom-(?P<cpus>\d+)-(?P<mb>\d+)(?:-ext)?")
# GB of memory a core. Families that differ from the rule are those that Dataflow workers are usually made of.
_GB_PER_CPU = {"standard": 4.0, "highmem": 8.0, "highcpu": 1.0}
_OTHER_GB_PER_CPU = {
    ("n1", "standard"): 3.75,
    ("n1", "highmem"): 6.5,
    ("n1", "highcpu"): 0.9,
    ("c3", "highcpu"): 2.0,
    ("n4", "highcpu"): 2.0,
    ("c4", "standard"): 3.75,
    ("c4", "highmem"): 7.75,
    ("c4", "highcpu"): 2.0,
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a worker is.

    Attributes:
      cpus: virtual cores.
      memory_gb: memory.
    """

    cpus: int
    memory_gb: float


def machine(name: str) -> Machine:
    """Returns what the name of a machine type stands for.

    Raises:
      OptionError: it is no such name.
    """
    if custom := _CUSTOM.fullmatch(name):
        found = Machine(cpus=int(custom["cpus"]), memory_gb=int(custom["mb"]) / 1024)
    elif known := _NAME.fullmatch(name):
        key = known["family"], known["shape"]
        cpus = int(known["cpus"])
        found = Machine(cpus=cpus, memory_gb=cpus * _OTHER_GB_PER_CPU.get(key, _GB_PER_CPU[known["shape"]]))
    else:
        found = Machine(cpus=0, memory_gb=0)
    if not found.cpus:
        raise OptionError(
            f"worker_machine_type is {name!r}; name one of Compute Engine with at least one whole core, such as "
            "n2-standard-4, n2-highmem-8 or custom-4-16384"
        )
    return found
