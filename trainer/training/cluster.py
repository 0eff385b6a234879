"""`TF_CONFIG`, the environment variable that tells a worker who the others are, checked before TensorFlow reads it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from beam_jobs.errors import OptionError
from trainer.input.position import Host

VARIABLE = "TF_CONFIG"
EXAMPLE = '{"cluster": {"worker": ["10.0.0.1:5000", "10.0.0.2:5000"]}, "task": {"type": "worker", "index": 0}}'
_TRAINING = ("chief", "worker")  # in this order they are numbered, as TensorFlow does


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Who trains together.

    Attributes:
      host: which of them this process is; host 0 is the chief.
      address: of this process, `name:port`.
    """

    host: Host
    address: str


def cluster_of_environment() -> Cluster:
    """Returns the cluster that `TF_CONFIG` describes.

    Raises:
      OptionError: it is missing or wrong.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        raise OptionError(f"strategy is multi_worker and the environment variable {VARIABLE} is not set; set {EXAMPLE}")
    try:
        return parse_cluster(json.loads(text))
    except json.JSONDecodeError as error:
        raise OptionError(f"{VARIABLE} is not JSON: {error}; it must be such as {EXAMPLE}") from error


def parse_cluster(config: Any) -> Cluster:
    """Returns the cluster of the decoded `TF_CONFIG`.

    Raises:
      OptionError: a part is missing or wrong; the message names it.
    """
    tasks, task = _part(config, "cluster"), _part(config, "task")
    others = sorted(set(tasks) - set(_TRAINING))
    if others:
        raise OptionError(f"cluster of {VARIABLE} holds {', '.join(others)}; multi_worker takes chief and worker only")
    addresses = {kind: _addresses(kind, tasks[kind]) for kind in _TRAINING if kind in tasks}
    everyone = [address for kind in _TRAINING for address in addresses.get(kind, ())]
    for address in everyone:
        if everyone.count(address) > 1:
            raise OptionError(f"cluster of {VARIABLE} names {address} twice; every worker needs an address of its own")
    kind, index = task.get("type"), task.get("index")
    if kind not in addresses:
        raise OptionError(f"task.type of {VARIABLE} is {kind!r}; it must be one of {', '.join(addresses) or 'worker'}")
    count = len(addresses[kind])
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise OptionError(f"task.index of {VARIABLE} is {index!r}; of {count} {kind} it must be 0 to {count - 1}")
    before = len(addresses.get("chief", ())) if kind == "worker" else 0
    return Cluster(host=Host(index=before + index, count=len(everyone)), address=addresses[kind][index])


def _part(config: Any, name: str) -> Mapping[str, Any]:
    part = config.get(name) if isinstance(config, Mapping) else None
    if not isinstance(part, Mapping):
        raise OptionError(f"{VARIABLE} has no {name}; it must be such as {EXAMPLE}")
    return part


def _addresses(kind: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not values or (kind == "chief" and len(values) != 1):
        wanted = "a list of one address" if kind == "chief" else "a list of addresses"
        raise OptionError(f"cluster.{kind} of {VARIABLE} is {values!r}; it must be {wanted}, such as 10.0.0.1:5000")
    for value in values:
        match = re.fullmatch(r"\S+:(\d{1,5})", str(value))
        if not match or not 0 < int(match[1]) < 1 << 16:
            raise OptionError(
                f"cluster.{kind} of {VARIABLE} holds {value!r}; it must be NAME:PORT, such as 10.0.0.1:5000"
            )
    return tuple(values)
