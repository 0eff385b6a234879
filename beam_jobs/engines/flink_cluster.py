"""What a Flink cluster says of itself, asked before anything is sent to it."""

from __future__ import annotations

import http.client
import json
import urllib.request
from typing import TYPE_CHECKING

from beam_jobs.errors import OptionError

if TYPE_CHECKING:
    from beam_jobs.engines.flink import Options

_TIMEOUT_S = 15.0


def slots(options: Options) -> int:
    """Returns how many units of work will run at a time.

    Raises:
      OptionError: the cluster does not answer, is of another version, or has fewer slots than asked for.
    """
    if options.is_local:
        return options.slots
    version, total = _overview(options.flink_master)
    minor = ".".join(version.split(".")[:2])
    if minor != options.flink_version:
        raise OptionError(
            f"the cluster at {options.flink_master} runs Flink {version}, flink_version is {options.flink_version}; "
            f"set --runner-option flink_version={minor}, if that is one that Beam knows"
        )
    if total < max(1, options.parallelism):
        raise OptionError(
            f"the cluster at {options.flink_master} has {total} slots, parallelism is {options.parallelism}; start "
            "more task managers, or lower --runner-option parallelism"
        )
    return options.parallelism or total


def address(master: str) -> str:
    """Returns the URL of a cluster's REST endpoint."""
    return master if master.startswith(("http://", "https://")) else f"http://{master}"


def cancel(master: str, name: str) -> None:
    """Ends the jobs of a name on a cluster; those that are over stay as they are.

    Raises:
      OSError, ValueError: the cluster does not answer.
    """
    jobs = f"{address(master).rstrip('/')}/jobs"
    with urllib.request.urlopen(f"{jobs}/overview", timeout=_TIMEOUT_S) as answer:  # noqa: S310 - as in `_overview`
        found = json.load(answer)["jobs"]
    for job in found:
        if job["name"] == name and job["end-time"] < 0:
            request = urllib.request.Request(f"{jobs}/{job['jid']}?mode=cancel", method="PATCH")  # noqa: S310
            urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()  # noqa: S310


def _overview(master: str) -> tuple[str, int]:
    """Returns the version of a cluster and its slots, free or not."""
    try:
        url = f"{address(master).rstrip('/')}/overview"
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - http or https: `address`
            found = json.load(answer)
        return str(found["flink-version"]), int(found["slots-total"])
    except (OSError, ValueError, TypeError, KeyError, http.client.HTTPException) as error:
        raise OptionError(
            f"flink_master is {master}, which does not answer as the REST endpoint of a Flink cluster "
            f"({getattr(error, 'reason', error)}); start the cluster, correct the address, or leave it out for a mini "
            "cluster on this machine"
        ) from error
