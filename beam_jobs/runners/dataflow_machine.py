"""Machine types of Compute Engine: how many cores a name stands for."""

from __future__ import annotations

import re

from beam_jobs.errors import OptionError

_NAME = re.compile(r"[a-z]\d[a-z]?-(?:standard|highmem|highcpu)-(?P<cores>\d+)")
_CUSTOM = re.compile(r"(?:[a-z]\d[a-z]?-)?custom-(?P<cores>\d+)-\d+(?:-ext)?")


def cores(name: str) -> int:
    """Returns the virtual cores of the machine type that a name stands for.

    Raises:
      OptionError: it is no such name.
    """
    found = _CUSTOM.fullmatch(name) or _NAME.fullmatch(name)
    if not found or not int(found["cores"]):
        raise OptionError(
            f"worker_machine_type is {name!r}; name one of Compute Engine with at least one whole core, such as "
            "n2-standard-4, n2-highmem-8 or custom-4-16384"
        )
    return int(found["cores"])
