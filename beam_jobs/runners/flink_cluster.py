"""What a Flink cluster says of itself, asked before anything is sent to it."""

from __future__ import annotations

import http.client
import json
import urllib.request
from dataclasses import dataclass

from beam_jobs.errors import OptionError

_TIMEOUT_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Overview:
    """What a cluster says of itself.

    Attributes:
      version: of Flink, such as `1.19.3`.
      slots: of all its task managers, free or not.
      task_managers: how many there are.
    """

    version: str
    slots: int
    task_managers: int

    @property
    def minor(self) -> str:
        """The version as `flink_version` names it, such as `1.19`."""
        return ".".join(self.version.split(".")[:2])

    def has_room(self, parallelism: int) -> bool:
        """Returns whether as many units of work find a slot, at least one if the number is left to the cluster."""
        return self.slots >= max(1, parallelism)


def slots(master: str, version: str, parallelism: int) -> int:
    """Returns how many units of work will run at a time on a cluster.

    Args:
      master: see `overview`.
      version: of Flink that it must have, such as `1.19`.
      parallelism: units of work asked for; 0 takes every slot.

    Raises:
      OptionError: the cluster does not answer, is of another version, or has fewer slots than asked for.
    """
    try:
        found = overview(master)
    except ConnectionError as error:
        raise OptionError(
            f"flink_master is {master}, which does not answer as the REST endpoint of a Flink cluster "
            f"({error}); start the cluster, correct the address, or leave it out for a mini cluster on this machine"
        ) from error
    if found.minor != version:
        raise OptionError(
            f"the cluster at {master} runs Flink {found.version}, flink_version is {version}; "
            f"set --runner-option flink_version={found.minor}, if that is one that Beam knows"
        )
    if not found.has_room(parallelism):
        raise OptionError(
            f"the cluster at {master} has {found.slots} slots, parallelism is {parallelism}; "
            "start more task managers, or lower --runner-option parallelism"
        )
    return parallelism or found.slots


def overview(master: str, timeout_s: float = _TIMEOUT_S) -> Overview:
    """Asks a cluster what it is.

    Args:
      master: `host:port` of its REST endpoint, which may have `http://` or `https://` before it.
      timeout_s: seconds without an answer after which it is given up.

    Raises:
      ConnectionError: it does not answer as a Flink cluster does; the message is the reason, one line.
    """
    try:
        url = f"{address(master).rstrip('/')}/overview"
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - http or https: `address`
            found = json.load(answer)
        return Overview(
            version=str(found["flink-version"]),
            slots=int(found["slots-total"]),
            task_managers=int(found.get("taskmanagers", 0)),
        )
    except (OSError, ValueError, TypeError, KeyError, http.client.HTTPException) as error:
        raise ConnectionError(_reason(error)) from error


def address(master: str) -> str:
    """Returns the URL of a cluster's REST endpoint."""
    return master if master.startswith(("http://", "https://")) else f"http://{master}"


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return "it speaks no HTTP"  # the error quotes whatever came instead
    return " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
