"""The price table of Dataflow estimates, and what they assume. A YAML file overrides any of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from beam_jobs import validate, yaml_text
from beam_jobs.errors import OptionError
from beam_jobs.suggest import unknown


@dataclass(frozen=True, kw_only=True)
class Prices:
    """List prices of batch jobs on Dataflow and of Google Storage beside them, in US dollars.

    The figures are Google's public list prices as they were known in 2025. They change, differ between regions and
    agreements, and are no offer: look at cloud.google.com/dataflow/pricing and cloud.google.com/storage/pricing
    before you rely on them.

    Attributes:
      source: where the table is from, printed with every estimate.
      vcpu_hour: of a worker's virtual core.
      memory_gb_hour: of a worker's memory.
      disk_gb_hour: of a worker's standard persistent disk.
      shuffle_gb: of data that passes the shuffle service.
      read_10k: of ten thousand requests that read an object.
      write_10k: of ten thousand requests that write or list objects.
      storage_gb_month: of a GB kept in a standard bucket.
      busy_share: share of the time in which a paid core works, above 0, at most 1. An assumption.
      startup_minutes: from asking for a worker to its first image. An assumption; a container image saves much of it.
    """

    source: str = "list prices, us-central1, 2025; check them before you rely on this"
    vcpu_hour: float = 0.056
    memory_gb_hour: float = 0.003557
    disk_gb_hour: float = 0.000054
    shuffle_gb: float = 0.011
    read_10k: float = 0.004
    write_10k: float = 0.05
    storage_gb_month: float = 0.02
    busy_share: float = 0.7
    startup_minutes: float = 5.0

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source:
            raise OptionError(f"prices source is {self.source!r}; say where and from when the prices are")
        for item in dataclasses.fields(self):
            if item.name != "source":
                validate.at_least(f"prices {item.name}", getattr(self, item.name), 0)
        validate.above("prices busy_share", self.busy_share, 0)
        validate.share("prices busy_share", self.busy_share)


def load(path: str) -> Prices:
    """Reads a YAML file of prices; what it leaves out keeps its default. Empty for the defaults.

    Raises:
      OptionError: it cannot be read, names an unknown price, or has other prices but not where they are from.
    """
    if not path:
        return Prices()
    try:
        with open(path, encoding="utf-8") as stream:
            values = yaml_text.parse(stream)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise OptionError(f"prices is {path!r}, which cannot be read: {reason}") from error
    except yaml.YAMLError as error:
        raise OptionError(f"prices {path} is not YAML: {' '.join(str(error).split())}") from error
    names = [item.name for item in dataclasses.fields(Prices)]
    if not isinstance(values, Mapping):
        raise OptionError(f"prices {path} must hold a mapping such as `vcpu_hour: 0.06`")
    for name in values:
        if name not in names:
            raise OptionError(unknown("price", name, names))
    if "source" not in values:
        raise OptionError(
            f"prices {path} does not say where its prices are from; add `source: list prices, REGION, DATE`"
        )
    return Prices(**values)
